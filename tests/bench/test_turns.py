from __future__ import annotations

import time
from collections.abc import Iterator

from proxy.relay.counters import Counters, Traffic
from tests.bench import turns
from tests.bench.cases import MANY


def counters_of_many() -> Counters:
    counters = Counters(MANY)
    counters.traffic.name(
        counters.traffic.labels([("/", b"x")], [("/", b"x", f"b{number}") for number in range(MANY)], [])
    )
    return counters


async def test_every_series_is_read_in_turns_that_are_short_beside_the_whole() -> None:
    begin = time.process_time()
    longest, series = await turns.longest_turn_seconds(counters_of_many())
    assert series > MANY
    assert 0 < longest < (time.process_time() - begin) / 2


async def test_what_holds_the_loop_is_seen() -> None:
    class Slow(Traffic):
        def folding(self) -> Iterator[None]:
            end = time.process_time() + 0.1
            while time.process_time() < end:
                pass
            return super().folding()

    counters = counters_of_many()
    counters.traffic = Slow(MANY)
    longest, _ = await turns.longest_turn_seconds(counters)
    assert longest >= 0.1
