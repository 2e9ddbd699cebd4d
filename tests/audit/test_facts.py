"""Tests the records of facts: their content, their privacy, and that a segment contains all facts it refers to."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from oxproxy.amqp.tables import encode_table
from oxproxy.audit.policy import AuditMode, AuditPolicy
from oxproxy.audit.writer import AuditWriter
from oxproxy.relay.counters import AuditCounters
from oxproxy.relay.records.audit_record import PublishLog
from oxproxy.relay.records.facts_record import HEADERS_BYTES, FactsMode, FactsTable, read_table, read_typed, typed
from oxproxy.relay.records.privacy import Privacy
from oxproxy.routing.decision import Interest
from oxproxy.values import Table, Value
from tests.audit.lines import TS, line, log
from tests.audit.test_record import KEY
from tests.audit.test_segments import LogWithClock, visible
from tests.audit.test_segments import line as timed_line
from tests.relay.contents import tables

REGION, AMOUNT = (b"region", Value("S", b"eu")), (b"amount", Value("I", 2000))
ORIGIN = log().origin("c", "u", "/", 1)
TESTED = Interest(headers=frozenset((b"region", b"amount")))
ALL = FactsMode.ALL_MENTIONED


def content(
    table: FactsTable, interest: Interest, headers: Table = (), properties: dict[str, bytes | int] | None = None
) -> dict[str, Any]:  # Any: JSON
    """Return the record of a message's facts."""
    record = table.scope(interest, False).find(encode_table(headers), tuple(sorted((properties or {}).items())))
    assert record is not None
    parsed: dict[str, Any] = json.loads(b'{"ts":"' + TS.encode() + record.line)
    assert (parsed.pop("ts"), parsed.pop("v"), parsed.pop("kind"), parsed.pop("proxy")) == (TS, 1, "facts", "p")
    assert parsed.pop("facts") == record.number
    return parsed


def test_facts_contain_the_headers_and_properties_that_rules_test_with_their_types() -> None:
    table = FactsTable("p", Privacy(), ALL)
    interest = replace(TESTED, properties=frozenset(("type", "priority", "app_id")))
    assert content(table, interest, (AMOUNT, REGION), {"priority": 3, "type": b"order"}) == {
        "names": ["amount", "region"],
        "headers": [["amount", "I", 2000], ["region", "S", "eu"]],
        "property_names": ["app_id", "priority", "type"],
        "properties": {"priority": 3, "type": "order"},
    }


def test_equal_facts_have_one_number() -> None:
    scope = FactsTable("p", Privacy(), ALL).scope(TESTED, False)
    eu, us = encode_table((REGION,)), encode_table(((b"region", Value("S", b"us")),))
    first, second, third = scope.find(eu, ()), scope.find(us, ()), scope.find(eu, ())
    assert first is third is not second
    assert [record and record.number for record in (first, second)] == [1, 2]


def test_exchanges_whose_rules_test_the_same_share_their_facts() -> None:
    table = FactsTable("p", Privacy(), ALL)
    entries = encode_table((REGION,))
    assert table.scope(TESTED, False).find(entries, ()) is table.scope(TESTED, False).find(entries, ())
    assert table.scope(TESTED, False).find(entries, ()) is not table.scope(TESTED, True).find(entries, ())


@pytest.mark.parametrize("headers", [TESTED.headers, None])
def test_only_listed_headers_are_facts(headers: frozenset[bytes] | None) -> None:
    table = FactsTable("p", Privacy(frozenset((b"region", b"other"))))
    found = content(table, Interest(headers=headers), (AMOUNT, REGION))
    assert found["headers"] == [["region", "S", "eu"]]
    assert found["names"] == (["region"] if headers else ["other", "region"])
    assert "2000" not in json.dumps(found)


def test_messages_that_differ_only_in_headers_that_are_not_listed_have_the_same_facts() -> None:
    scope = FactsTable("p", Privacy(frozenset((b"region",)))).scope(TESTED, False)
    numbers = {scope.find(encode_table(((b"amount", Value("I", amount)), REGION)), ()) for amount in range(5)}
    assert len(numbers) == 1


def test_the_whole_header_table_is_a_fact_if_rules_test_it() -> None:
    found = content(FactsTable("p", Privacy(), ALL), Interest(headers=None), (AMOUNT, (b"BCC", Value("A", ()))))
    assert (found["names"], found["headers"]) == (None, [["amount", "I", 2000]])


def test_the_message_id_is_not_a_fact_since_the_record_of_the_publish_contains_it() -> None:
    interest = Interest(properties=frozenset(("message_id", "type")))
    scope = FactsTable("p", Privacy()).scope(interest, False)
    ids = (("message_id", b"1"), ("message_id", b"2"))
    records = {scope.find(b"", (number, ("type", b"t"))) for number in ids}
    assert len(records) == 1
    assert content(FactsTable("p", Privacy()), interest, (), {"message_id": b"1", "type": b"t"})["properties"] == {
        "type": "t"
    }


def test_hashed_fields_are_hashed_in_facts_as_well() -> None:
    privacy = Privacy(frozenset(), frozenset(("user", "rk")), KEY)
    interest = Interest(headers=frozenset((b"CC",)), properties=frozenset(("user_id",)))
    keys = (b"CC", Value("A", (Value("S", b"secret.key"),)))
    found = content(FactsTable("p", privacy, ALL), interest, (keys,), {"user_id": b"alice"})
    assert found["properties"] == {"user_id": {"hash": privacy.hash("user", b"alice")}}
    assert found["hashed"] == ["rk", "user"]
    assert [entry[:2] for entry in found["headers"]] == [["CC", None]]
    assert "secret" not in json.dumps(found)
    assert "alice" not in json.dumps(found)
    with pytest.raises(ValueError, match="type letter"):
        read_table(found["headers"])


def test_large_and_malformed_headers_are_not_recorded() -> None:
    scope = FactsTable("p", Privacy(), ALL).scope(TESTED, False)
    assert scope.find(encode_table(((b"region", Value("S", b"x" * HEADERS_BYTES)),)), ()) is None
    assert scope.find(b"\x06region?", ()) is None


@given(tables())
def test_values_are_recorded_without_loss(table: Table) -> None:
    rendered = json.loads(json.dumps(typed(Value("F", table))))
    assert repr(read_typed(*rendered)) == repr(Value("F", table))  # NaN differs from itself


def test_the_remembered_facts_are_bounded() -> None:
    table = FactsTable("p", Privacy(), ALL, limit_bytes=10_000)
    scope = table.scope(TESTED, False)
    numbers = []
    for number in range(1000):
        record = scope.find(encode_table(((b"region", Value("I", number)),)), ())
        assert record is not None
        numbers.append(record.number)
        assert len(table.by_value) < 30
    assert numbers == sorted(set(numbers))


# -- lines and segments ----------------------------------------------------------------------------------------------


def published(publish_log: PublishLog, table: FactsTable, headers: Table) -> bytes:
    record = table.scope(TESTED, False).find(encode_table(headers), ())
    return line(publish_log, publish_log.decided(b"x", "routed"), ORIGIN, 1, b"k", None, 0, facts=record)


def test_the_record_of_a_publish_refers_to_its_facts() -> None:
    table = FactsTable("p", Privacy(), ALL)
    publish_log = log(facts=table)
    assert json.loads(published(publish_log, table, (REGION,)))["facts"] == 1
    assert json.loads(published(publish_log, table, ()))["facts"] == 2
    assert "facts" not in json.loads(line(publish_log, publish_log.decided(b"x", "passed"), ORIGIN, 1, b"k", None, 0))
    lines, size = table.take_used()
    assert (sorted(lines), size) == ([1, 2], sum(map(len, lines.values())))
    published(publish_log, table, (REGION,))
    assert table.take_used() == ({1: lines[1]}, 0), "facts are counted once"
    assert table.take_used() == ({}, 0)


def test_the_alternate_exchange_is_recorded_if_it_is_used() -> None:
    publish_log = log()
    decided = publish_log.decided(b"x", "unrouted", alternate=b"fallback")
    assert json.loads(line(publish_log, decided, ORIGIN, 1, b"k", None, 0))["alternate"] == "fallback"
    decided = publish_log.decided(b"x", "unrouted")
    assert "alternate" not in json.loads(line(publish_log, decided, ORIGIN, 1, b"k", None, 0))


def fact(number: int) -> dict[int, bytes]:
    return {number: f'","kind":"facts","facts":{number}}}\n'.encode()}


def kinds(text: bytes) -> list[str]:
    records = [json.loads(record) for record in text.splitlines()]
    return [f"facts {record['facts']}" if "kind" in record else record["text"] for record in records]


def test_each_segment_contains_its_facts_once_before_the_lines(tmp_path: Path) -> None:
    desk = LogWithClock(tmp_path)
    desk.log.write([timed_line(0, "a")], fact(1))
    desk.log.write([timed_line(0, "b")], fact(1) | fact(2))
    desk.log.write([timed_line(1800, "c")], fact(1))
    assert [(hour, kinds(text)) for hour, text in desk.files()] == [
        ("hour=07", ["facts 1", "a", "facts 2", "b"]),
        ("hour=08", ["facts 1", "c"]),
    ]
    times = {json.loads(record)["ts"][:13] for _, text in desk.files() for record in text.splitlines()[:1]}
    assert times == {"2026-11-21T07", "2026-11-21T08"}


def test_facts_count_towards_the_size_of_a_segment(tmp_path: Path) -> None:
    size = len(timed_line()) + 34 + len(fact(1)[1])
    desk = LogWithClock(tmp_path, segment_bytes=2 * size)
    for number in (1, 2, 3):
        desk.log.write([timed_line()], fact(number))
    assert [len(content) // size for _, content in desk.files()] == [2, 1]


def references_are_defined(directory: Path) -> Iterable[int]:
    """Check that every number in a segment is defined before in the same segment, and yield the numbers."""
    for path in directory.rglob("*.gz"):
        defined: set[int] = set()
        for record in map(json.loads, gzip.decompress(path.read_bytes()).splitlines()):
            if record["kind"] == "facts":
                assert record["facts"] not in defined, "a fact is written twice"
                defined.add(record["facts"])
            elif "facts" in record:
                assert record["facts"] in defined
                yield record["facts"]


async def test_a_writer_defines_all_facts_in_each_segment(tmp_path: Path) -> None:
    table = FactsTable("p", Privacy(), ALL, limit_bytes=20_000)
    policy = AuditPolicy(tmp_path, "m", AuditMode.BACKPRESSURE, segment_bytes=50_000)
    counters = AuditCounters()
    writer = AuditWriter(policy, counters, facts=table)
    await writer.start()
    publish_log = PublishLog("m", Privacy(), str, writer.append, lambda: 7e9, ruled_only=False, facts=table)
    for number in range(1000):
        record = table.scope(TESTED, False).find(encode_table(((b"region", Value("I", number % 100)),)), ())
        decided = publish_log.decided(b"x", "routed")
        publish_log.append([(publish_log.opening() + ORIGIN, number, b"k", None, 0, decided, "{}", -1.0, record)])
        if number % 7 == 0:
            writer.commit_point()
    await writer.close(20)
    assert len(list(references_are_defined(tmp_path))) == counters.lines == 1000
    assert len(visible(tmp_path)) > 3
