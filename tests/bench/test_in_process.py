from __future__ import annotations

import time

import pytest

from oxproxy.garbage import without_collection
from oxproxy.observe.exposition import Exposition
from oxproxy.relay.counters import Counters
from tests.bench import in_process
from tests.bench.cases import MANY


def counters_of_many() -> Counters:
    counters = Counters(MANY)
    counters.traffic.name(
        counters.traffic.labels([("/", b"x")], [("/", b"x", f"b{number}") for number in range(MANY)], [])
    )
    return counters


async def test_every_series_is_read_in_iterations_much_shorter_than_the_whole() -> None:
    counters = counters_of_many()
    # A garbage collection would traverse all objects left by earlier tests in a single iteration.
    with without_collection():
        begin = time.process_time()
        longest, series = await in_process.longest_turn_seconds(counters)
        whole = time.process_time() - begin
    assert series > MANY
    assert 0 < longest < whole / 2


async def test_what_holds_the_loop_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Exposition):  # This is not a subclass of Counters, since Counters may be compiled.
        async def render(self, accept: str = "") -> tuple[bytes, str]:
            end = time.process_time() + 0.1
            while time.process_time() < end:
                pass
            return await super().render(accept)

    monkeypatch.setattr(in_process, "Exposition", Slow)
    longest, _ = await in_process.longest_turn_seconds(counters_of_many())
    assert longest >= 0.1
