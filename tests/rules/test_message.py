from __future__ import annotations

import pytest

from proxy.routing.bindings.operators import TEXT_PROPERTIES
from proxy.routing.decision import Facts
from proxy.rules.message import DescribedMessage, MessageModel, described_message, destination_text, json_value
from proxy.values import Value, text
from proxy.yamlfile.document import Faults, read_document
from proxy.yamlfile.models import Keys, read_model


def read(text: str) -> tuple[DescribedMessage | None, list[str]]:
    faults = Faults()
    root = read_document(text, "f.yaml", faults)
    assert root is not None
    keys = Keys(root, faults)
    model = read_model(MessageModel, keys)
    message = None if model is None else described_message(model, keys)
    return message, [str(error) for error in faults.errors]


def test_a_message_has_key_headers_properties_and_size() -> None:
    text = """
exchange: documents
routing_key: a.b
headers: {type: public, size: 5, when: !timestamp 5}
properties: {type: doc, delivery_mode: 2, priority: 0, timestamp: 7, expiration: 60000}
body_size: 10
"""
    headers = ((b"type", Value("S", b"public")), (b"size", Value("I", 5)), (b"when", Value("T", 5)))
    properties: dict[str, bytes | int] = {
        "type": b"doc",
        "delivery_mode": 2,
        "priority": 0,
        "timestamp": 7,
        "expiration": b"60000",
    }
    assert read(text) == (DescribedMessage(b"documents", Facts(b"a.b", headers, properties, 10)), [])


def test_every_string_property_is_read() -> None:
    section = ", ".join(f"{key}: {key}" for key in TEXT_PROPERTIES)
    message, errors = read(f"exchange: a\nproperties: {{{section}}}\n")
    assert message is not None
    assert (message.facts.properties, errors) == ({key: key.encode() for key in TEXT_PROPERTIES}, [])


def test_rules_do_not_see_bcc() -> None:
    message, _ = read("exchange: a\nheaders: {BCC: [b], CC: [c]}\n")
    assert message is not None
    assert [name for name, _ in message.facts.headers] == [b"CC"]


@pytest.mark.parametrize("written", ["2026-07-01T12:00:00Z", "!timestamp 2026-07-01T12:00:00Z", "1782907200"])
def test_a_timestamp_is_seconds_or_a_time(written: str) -> None:
    message, errors = read(f"exchange: a\nproperties: {{timestamp: {written}}}\n")
    assert message is not None
    assert (message.facts.properties, errors) == ({"timestamp": 1782907200}, [])


@pytest.mark.parametrize(("written", "value"), [("5", b"5"), ("'005'", b"005"), ("'+5'", b"+5"), ("0", b"0")])
def test_an_expiration_keeps_its_text(written: str, value: bytes) -> None:
    message, errors = read(f"exchange: a\nproperties: {{expiration: {written}}}\n")
    assert message is not None
    assert (message.facts.properties, errors) == ({"expiration": value}, [])


@pytest.mark.parametrize(
    "written",
    [
        "{delivery_mode: 3}",
        "{delivery_mode: '2'}",
        "{priority: 256}",
        "{priority: -1}",
        "{timestamp: -1}",
        "{timestamp: true}",
        "{timestamp: 1.5}",
        "{timestamp: noon}",
        "{timestamp: .inf}",
        "{timestamp: [1]}",
        "{expiration: -5}",
        "{expiration: five}",
        "{expiration: 1.5}",
        "{expiration: ''}",
        "{type: 5}",
        f"{{type: {'a' * 256}}}",
        "{headers: {}}",
        "[]",
    ],
)
def test_properties_that_the_broker_refuses_are_errors(written: str) -> None:
    assert len(read(f"exchange: a\nproperties: {written}\n")[1]) == 1


def test_an_unknown_property_is_an_error_that_names_every_property() -> None:
    assert read("exchange: a\nproperties: {prio: 1}\n")[1] == [
        "f.yaml:2:14: properties.prio: unknown key; did you mean priority?"
    ]
    (fault,) = read("exchange: a\nproperties: {other: 1}\n")[1]
    assert fault == (
        "f.yaml:2:14: properties.other: unknown key, expected one of app_id, cluster_id, content_encoding, "
        "content_type, correlation_id, delivery_mode, expiration, message_id, priority, reply_to, timestamp, "
        "type, user_id"
    )


@pytest.mark.parametrize(
    ("seen", "shown"),
    [
        (None, None),
        (5, 5),
        (b"a", "a"),
        (b"\xff", {"hex": "ff"}),
        (Value("x", b"a"), {"hex": "61"}),
        (Value("t", True), True),
        (Value("V", None), None),
        (Value("A", (Value("I", 1), Value("S", b"a"))), [1, "a"]),
        (Value("F", ((b"k", Value("d", 1.5)),)), {"k": 1.5}),
    ],
)
def test_values_are_converted_to_json(seen: object, shown: object) -> None:
    assert json_value(seen) == shown


def test_names_of_any_bytes_can_be_read() -> None:
    assert text(b"a\xff") == "a\\xff"
    assert destination_text(("queue", b"q")) == "queue q"
