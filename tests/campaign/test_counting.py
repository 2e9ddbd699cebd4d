"""What consumers count, and which audit segments are read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.campaign import records
from tests.campaign.consumers import Consumer
from tests.campaign.matching import Audit, Route, Stream, Tally

BODY = b"1 0 "


@pytest.fixture
def consumer() -> Consumer:
    return Consumer("q", Tally(), (), "/")


def copies(consumer: Consumer) -> int:
    return consumer.tally.count(1, 0)


def test_each_delivery_on_one_connection_counts(consumer: Consumer) -> None:
    consumer.count(BODY, redelivered=False)
    consumer.count(BODY, redelivered=False)
    assert copies(consumer) == 2


def test_a_redelivered_message_that_was_never_counted_counts(consumer: Consumer) -> None:
    consumer.count(BODY, redelivered=True)
    assert copies(consumer) == 1


@pytest.mark.parametrize("redelivered", [True, False])
def test_a_repeated_delivery_on_a_later_connection_does_not_count(consumer: Consumer, redelivered: bool) -> None:
    consumer.count(BODY, redelivered=False)
    consumer.begin_session()
    consumer.count(BODY, redelivered)
    assert (copies(consumer), consumer.redelivered) == (1, 1)


def line(message: int, **more: object) -> bytes:
    record = {"kind": "publish", "message_id": f"1-{message}", "queues": ["a"], "exchanges": ["x"]}
    return json.dumps(record | more).encode() + b"\n"


def test_closed_and_open_segments_are_read_once(tmp_path: Path) -> None:
    stream = Stream(1, "test", [Route("e", recorded=frozenset(("a", "x")))])
    for _ in range(4):
        stream.add(0)
    folder = tmp_path / "date=2026-11-21" / "hour=07"
    folder.mkdir(parents=True)
    (folder / "audit-m-1-1.jsonl.gz").write_bytes(gzip.compress(line(0) + line(9, kind="settle")))
    (folder / "_audit-m-1-2.jsonl").write_bytes(line(1) + line(9, message_id=None) + line(2)[:-20])
    (folder / "_audit-m-1-2.jsonl.gz").write_bytes(gzip.compress(line(1)))  # being compressed
    audit = Audit([stream])
    records.read(tmp_path, audit)
    assert [audit.count(1, message) for message in range(4)] == [1, 1, 0, 0]
    assert audit.wrong == []
