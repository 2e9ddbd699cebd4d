from __future__ import annotations

import json
import re
import struct
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oxproxy.amqp.tables import encode_value
from oxproxy.audit.policy import AuditMode, AuditPolicy
from oxproxy.errors import ConfigError
from oxproxy.relay.records.audit_record import HOUR, TimestampText, gap_record
from oxproxy.relay.records.privacy import HASHABLE, HEADER_CHARACTERS, Privacy, header_value
from oxproxy.values import Value
from tests.audit.lines import TS, line, log, settle_line

KEY = b"0123456789abcdef"
LOG = log("main-1", rules=lambda: "ab12")
ORIGIN = LOG.origin("c7", "guest", "/", 3)
DECIDED = LOG.decided(
    b"documents",
    "routed",
    queues=[b"q1", b"q2"],
    exchanges=[b"x"],
    remotes=["archive/q"],
    bindings=["b1", "public documents"],
    rule=4,
)


def parsed(line: bytes) -> dict[str, Any]:  # Any: JSON
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert line.isascii()
    record: dict[str, Any] = json.loads(line, object_pairs_hook=no_duplicates)
    return record


def no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    assert len({name for name, _ in pairs}) == len(pairs)
    return dict(pairs)


def test_a_publish_has_the_documented_fields() -> None:
    assert parsed(line(LOG, DECIDED, ORIGIN, 12, b"a.b", b"m1", 100)) == {
        "v": 1,
        "kind": "publish",
        "ts": TS,
        "proxy": "main-1",
        "conn": "c7",
        "user": "guest",
        "vhost": "/",
        "ch": 3,
        "seq": 12,
        "exchange": "documents",
        "rk": "a.b",
        "message_id": "m1",
        "size": 100,
        "outcome": "routed",
        "queues": ["q1", "q2"],
        "exchanges": ["x"],
        "remotes": ["archive/q"],
        "bindings": ["b1", "public documents"],
        "rule": 4,
        "rules": "ab12",
        "reason": None,
        "headers": {},
    }


def test_optional_fields_are_written_only_if_known() -> None:
    record = parsed(line(LOG, DECIDED, ORIGIN, 1, b"", None, 0, '{"a":"b"}'))
    assert record["message_id"] is None
    assert record["headers"] == {"a": "b"}
    assert "decide_us" not in record


def test_a_line_contains_the_duration_of_the_decision() -> None:
    decided = LOG.decided(b"documents", "routed")
    timed = parsed(line(LOG, decided, ORIGIN, 1, b"k", None, 0, decide_us=12.345))
    assert timed.pop("decide_us") == 12.3
    assert timed == parsed(line(LOG, decided, ORIGIN, 1, b"k", None, 0))


def test_the_hour_is_at_the_same_position_in_every_kind_of_record() -> None:
    settled = settle_line(LOG, "c7", 3, 12, "returned")
    lines = [line(LOG, DECIDED, ORIGIN, 1, b"", None, 0), gap_record(TS, "m", 2, TS, TS), settled]
    assert [record[HOUR] for record in lines] == [b"2026-11-21T07"] * 3


def test_settle_and_gap_records() -> None:
    assert parsed(settle_line(LOG, "c7", 3, 12, "acked", 250.04)) == {
        "ts": TS,
        "v": 1,
        "kind": "settle",
        "proxy": "main-1",
        "conn": "c7",
        "ch": 3,
        "seq": 12,
        "result": "acked",
        "confirm_us": 250.0,
    }
    later = TS.replace("07:", "08:")
    gap = parsed(gap_record(TS, "main-1", 5, TS, later))
    assert gap == {
        "ts": TS,
        "v": 1,
        "kind": "gap",
        "proxy": "main-1",
        "dropped": 5,
        "from": TS,
        "to": later,
    }


@given(st.binary(max_size=40), st.none() | st.binary(max_size=40))
@example(b'"\\\n\r\x00\x7f\xff', b"\xe2\x80\xa8 \xed\xa0\x80")
def test_any_bytes_make_one_line_of_json(routing_key: bytes, message_id: bytes | None) -> None:
    record = parsed(line(LOG, DECIDED, ORIGIN, 1, routing_key, message_id, 5))
    assert record["rk"] == routing_key.decode(errors="backslashreplace")
    assert record["message_id"] == (None if message_id is None else message_id.decode(errors="backslashreplace"))
    assert record["size"] == 5


@given(st.text(), st.text(), st.text(), st.binary(), st.text())
def test_any_names_make_one_line_of_json(conn: str, user: str, vhost: str, name: bytes, binding: str) -> None:
    records = log(vhost, rules=lambda: conn)
    decided = records.decided(name, "routed", [name], [name], [binding], binding, [user])
    record = parsed(line(records, decided, records.origin(conn, user, vhost, 1), 1, b"", None, 0))
    shown = name.decode(errors="backslashreplace")
    assert (record["exchange"], record["queues"], record["bindings"]) == (shown, [shown], [binding])
    assert (record["conn"], record["user"], record["vhost"]) == (conn, user, vhost)


@given(st.integers(0, 4_000_000_000), st.integers(0, 999_999))
def test_timestamps_are_rfc_3339_in_utc(second: int, micros: int) -> None:
    render = TimestampText()
    render(1.0)
    rendered = render(second + micros / 1_000_000)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", rendered)
    difference = datetime.fromisoformat(rendered) - datetime.fromtimestamp(second, UTC)
    assert abs(difference.total_seconds() - micros / 1_000_000) < 2e-6


def test_chosen_fields_are_hashed_and_equal_values_stay_equal() -> None:
    records = log(privacy=Privacy(hashed=HASHABLE, key=KEY))
    origin = records.origin("c", "same", "/", 1)
    decided = records.decided(b"x", "routed")
    first = parsed(line(records, decided, origin, 1, b"same", b"same", 0))
    second = parsed(line(records, decided, origin, 2, b"same", None, 0))
    assert first["rk"] == second["rk"]
    assert second["message_id"] is None
    hashes = {first["rk"], first["message_id"], first["user"]}
    assert len(hashes) == 3, "equal values in different fields have equal hashes"
    assert all(re.fullmatch("[0-9a-f]{24}", value) for value in hashes)


def test_another_key_gives_other_hashes() -> None:
    assert Privacy(key=KEY).hash("rk", b"a") != Privacy(key=KEY[::-1]).hash("rk", b"a")


def test_only_chosen_fields_are_hashed() -> None:
    records = log(privacy=Privacy(hashed=frozenset(["message_id"]), key=KEY))
    record = parsed(line(records, records.decided(b"x", "routed"), records.origin("c", "u", "/", 1), 1, b"k", b"i", 0))
    assert (record["rk"], record["user"]) == ("k", "u")
    assert record["message_id"] != "i"


@pytest.mark.parametrize(
    ("hashed", "key", "message"),
    [
        (["size"], KEY, "can't hash size; expected message_id, rk, user"),
        (["rk"], b"", "expected 16 to 64"),
        (["rk"], b"short", "expected 16 to 64"),
        (["rk"], b"x" * 65, "expected 16 to 64"),
    ],
)
def test_invalid_privacy_settings_are_refused(hashed: list[str], key: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Privacy(hashed=frozenset(hashed), key=key)
    assert caught.value.key == "audit.hash"
    assert not key or key.decode() not in str(caught.value)


def header(name: bytes, letter: str, value: object) -> tuple[bytes, bytes]:
    return name, encode_value(Value(letter, value))


def test_only_listed_headers_are_written() -> None:
    records = log(privacy=Privacy(headers=frozenset([b"kind", b"n"])))
    entries = [
        header(b"secret", "S", b"hunter2"),
        header(b"kind", "S", b"a\xff"),
        header(b"kind", "S", b"second"),
        header(b"n", "I", 5),
    ]
    assert json.loads(records.headers(entries)) == {"kind": "a\\xff", "n": 5}
    assert log().headers(entries) == "{}"


def test_a_malformed_or_long_header_is_written_as_a_short_string() -> None:
    records = log(privacy=Privacy(headers=frozenset([b"bad", b"long"])))
    entries = [(b"bad", b"I\x00"), header(b"long", "S", b"x" * 10_000)]
    shown = json.loads(records.headers(entries))
    assert shown["bad"] == "I\x00"
    assert shown["long"] == "x" * HEADER_CHARACTERS


@pytest.mark.parametrize(
    ("letter", "value", "expected"),
    [
        ("S", b"text", "text"),
        ("t", True, True),
        ("l", -5, -5),
        ("d", 0.5, 0.5),
        ("d", float("inf"), "inf"),
        ("f", struct.unpack(">f", struct.pack(">f", 0.5))[0], 0.5),
        ("D", (2, 12345), "12345e-2"),
        ("T", 1795247999, "2026-11-21T07:59:59Z"),
        ("T", 2**63, 2**63),
        ("V", None, None),
        ("A", (Value("S", b"a"), Value("I", 1)), ["a", 1]),
        ("A", (Value("S", b"a"),) * HEADER_CHARACTERS, ('["a"' + ',"a"' * HEADER_CHARACTERS)[:HEADER_CHARACTERS]),
        ("F", ((b"k", Value("T", 0)),), {"k": "1970-01-01T00:00:00Z"}),
    ],
)
def test_values_of_every_header_type_are_converted_to_json(letter: str, value: object, expected: object) -> None:
    assert header_value(Value(letter, value)) == expected


def test_secrets_in_any_hashable_field_or_unlisted_header_do_not_reach_a_line() -> None:
    records = log(privacy=Privacy(frozenset([b"allowed"]), HASHABLE, KEY))
    origin = records.origin("c1", "hunter2", "/", 1)
    written = line(
        records,
        records.decided(b"x", "routed"),
        origin,
        1,
        b"hunter2",
        b"hunter2",
        7,
        records.headers([header(b"password", "S", b"hunter2"), header(b"allowed", "S", b"fine")]),
    )
    assert b"hunter2" not in written
    assert b"fine" in written
    assert KEY not in written


DOCS = (Path(__file__).parents[2] / "docs" / "reference" / "audit.md").read_text()


def test_the_documentation_lists_every_mode() -> None:
    assert re.findall(r"^\| `(\w+)` \|", DOCS.split("## Modes")[1].split("\n## ")[0], re.MULTILINE) == [
        mode.value for mode in AuditMode
    ]


def test_the_documentation_lists_the_fields_that_can_be_hashed() -> None:
    listed = re.search(r"`audit\.hash` \((.*?)\)", DOCS)
    assert listed is not None
    assert set(re.findall(r"`(\w+)`", listed[1])) == HASHABLE


def test_the_defaults_are_documented() -> None:
    default = {field.name: field.default for field in fields(AuditPolicy)}
    assert default["mode"] is AuditMode.BEST_EFFORT
    assert default["buffer_bytes"] == 32 << 20
    assert "32 MiB" in DOCS
    assert default["segment_bytes"] == 128 << 20
    assert "128 MiB" in DOCS
