from __future__ import annotations

import pytest

from tests.bench import relay
from tests.bench.cases import Row
from tests.bench.relay import BINDINGS, PAIRS, PER_READ, Producer, reads
from tests.relay.wire import token

READS = 5


@pytest.fixture(autouse=True)
def few_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "DIFFERENT", 2_000)


@pytest.mark.parametrize(("row", "differs", "measured", "base"), PAIRS)
def test_both_exchanges_of_a_pair_route_equal_messages_to_equal_queues(
    row: Row, differs: tuple[str, ...], measured: str, base: str
) -> None:
    counts = []
    for exchange in (measured, base):
        upstream = Producer(reads(differs, exchange)).connection.produce(reads(differs, exchange)[0])
        counts.append([upstream.count(token("queue", f"q{number}".encode())) for number in range(BINDINGS)])
    assert counts[0] == counts[1]
    assert sum(counts[0]) == PER_READ
    assert min(counts[0]) > 0


@pytest.mark.parametrize(("row", "differs", "measured", "base"), PAIRS)
def test_decisions_are_cached_in_the_rows_where_values_repeat(
    row: Row, differs: tuple[str, ...], measured: str, base: str
) -> None:
    for exchange in (measured, base):
        producer = Producer(reads(differs, exchange))
        producer.microseconds(READS)
        hits = producer.connection.counters.relay("/").cache_hits
        assert hits == (0 if differs else READS * PER_READ - BINDINGS)
