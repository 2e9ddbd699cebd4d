from __future__ import annotations

import struct

import pytest

from oxproxy.routing.bindings.operators import TEXT_PROPERTIES
from oxproxy.routing.decision import Facts
from oxproxy.rules.field_values import read_table, zone
from oxproxy.rules.message import DescribedMessage, MessageModel, described_message, destination_text, json_value
from oxproxy.values import Table, Value, text
from oxproxy.yamlfile.document import Faults, Mapping, read_document
from oxproxy.yamlfile.models import Keys, read_model
from tests.rules.loading import by_line


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


def read_values(text: str) -> tuple[Table, list[str]]:
    faults = Faults()
    root = read_document(text, "f.yaml", faults)
    assert isinstance(root, Mapping)
    table = read_table(root, "arguments", faults)
    return table, [str(error) for error in faults.errors]


def single(written: str) -> Value:
    table, errors = read_values(f"a: {written}\n")
    assert errors == []
    return table[0][1]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("text", Value("S", b"text")),
        ("é", Value("S", b"\xc3\xa9")),
        ("no", Value("S", b"no")),
        ("2026-11-21", Value("S", b"2026-11-21")),
        ("1:30", Value("S", b"1:30")),
        ("'5'", Value("S", b"5")),
        ("''", Value("S", b"")),
        ("5", Value("I", 5)),
        ("010", Value("I", 10)),
        ("0x1F", Value("I", 31)),
        ("2147483647", Value("I", 2**31 - 1)),
        ("2147483648", Value("l", 2**31)),
        ("-2147483648", Value("I", -(2**31))),
        ("-2147483649", Value("l", -(2**31) - 1)),
        ("9223372036854775807", Value("l", 2**63 - 1)),
        ("1.0", Value("d", 1.0)),
        ("true", Value("t", True)),
        ("null", Value("V", None)),
        ("~", Value("V", None)),
        ("[1, a]", Value("A", (Value("I", 1), Value("S", b"a")))),
        ("[]", Value("A", ())),
        ("{b: 1, a: null}", Value("F", ((b"b", Value("I", 1)), (b"a", Value("V", None))))),
        ("!timestamp 2026-11-21T08:00:00Z", Value("T", 1795248000)),
        ("!timestamp 2026-11-21T09:00:00+01:00", Value("T", 1795248000)),
        ("!timestamp 5", Value("T", 5)),
        ("!bytes 0a0B", Value("x", b"\n\x0b")),
        ("!bytes '0a 0b'", Value("x", b"\n\x0b")),
        ("!bytes ''", Value("x", b"")),
        ("!int64 5", Value("l", 5)),
        ("!int8 -128", Value("b", -128)),
        ("!uint8 255", Value("B", 255)),
        ("!int16 5", Value("s", 5)),
        ("!uint16 65535", Value("u", 65535)),
        ("!int32 5", Value("I", 5)),
        ("!uint32 4294967295", Value("i", 4294967295)),
        ("!float32 0.1", Value("f", struct.unpack(">f", struct.pack(">f", 0.1))[0])),
        ("!float32 2", Value("f", 2.0)),
    ],
)
def test_values_are_converted_to_amqp_types(written: str, value: Value) -> None:
    result = single(written)
    assert result == value
    assert type(result.value) is type(value.value)


@pytest.mark.parametrize("key", ["x-?hkv= type", "x-?rkre", "plain"])
def test_a_key_without_a_value_is_an_error_that_suggests_quotes(key: str) -> None:
    table, errors = read_values(f"first: 1\n{key}: # not a value\n")
    assert [name for name, _ in table] == [b"first"]
    assert len(errors) == 1
    assert by_line(errors)[0].startswith("f.yaml:2: arguments")
    assert "no value" in errors[0]
    assert "in quotes" in errors[0]


def test_a_list_item_without_a_value_is_an_error_with_its_position() -> None:
    assert read_values("a:\n  - 1\n  -\n")[1][0].startswith("f.yaml:3:4: arguments.a[1]: no value")


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        (".nan", "got .nan, expected a finite number"),
        ("-.inf", "got -.inf, expected a finite number"),
        ("1e999", "got 1e999, expected a finite number"),
        (
            "9223372036854775808",
            "got the number 9223372036854775808, expected a signed 64-bit integer",
        ),
        ("!int8 128", "got !int8 128, expected an integer from -128 to 127"),
        ("!int64 x", "got !int64 x, expected an integer from -9223372036854775808 to 9223372036854775807"),
        ("!int64 true", "got !int64 true, expected an integer from -9223372036854775808 to 9223372036854775807"),
        ("!bytes 0", "got !bytes 0, expected pairs of hexadecimal digits"),
        ("!bytes 0g", "got !bytes 0g, expected pairs of hexadecimal digits"),
        ("!float32 1e39", "got !float32 1e39, expected a finite single-precision number"),
        ("!float32 .nan", "got !float32 .nan, expected a finite single-precision number"),
        ("!float32 x", "got !float32 x, expected a finite single-precision number"),
    ],
)
def test_a_value_without_an_amqp_encoding_is_an_error(written: str, seen: str) -> None:
    assert read_values(f"a: {written}\n") == ((), [f"f.yaml:1:4: arguments.a: {seen}"])


@pytest.mark.parametrize(
    "written", ["2026-11-21T08:00:00", "2026-11-21", "soon", "2026-11-21T08:00:00.5Z", "1.5", "true"]
)
def test_a_timestamp_is_whole_seconds_or_a_time_with_its_zone(written: str) -> None:
    assert (
        "expected a time such as 2026-11-21T08:00:00Z, or seconds since 1970"
        in read_values(f"a: !timestamp {written}\n")[1][0]
    )


def test_an_unknown_tag_is_an_error_that_lists_the_known_ones() -> None:
    error = read_values("a: !re x\n")[1][0]
    assert "got the tag !re, expected one of !bytes, " in error
    assert "quotes" in error


def test_an_error_in_a_nested_value_names_its_path() -> None:
    assert read_values("a:\n  b c:\n    - 1\n    - .nan\n")[1] == [
        'f.yaml:4:7: arguments.a["b c"][1]: got .nan, expected a finite number'
    ]
    assert read_values("a: {b: {c: [.nan]}}\n")[1] == [
        "f.yaml:1:13: arguments.a.b.c[0]: got .nan, expected a finite number"
    ]


def test_a_key_longer_than_a_short_string_is_an_error() -> None:
    assert "got a key of 256 bytes, expected at most 255" in read_values(f"{'é' * 128}: 1\n")[1][0]
    nested = f"a:\n  - b:\n      {'k' * 256}: 1\n"
    expected = f"f.yaml:3:7: arguments.a[0].b.{'k' * 256}: got a key of 256 bytes, expected at most 255"
    assert read_values(nested)[1] == [expected]


@pytest.mark.parametrize("name", ["Nowhere/City", "", "../etc/passwd", "/etc/localtime", "a\0b", "Europe"])
def test_an_unknown_zone_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="a name from the time zone database"):
        zone(name)
