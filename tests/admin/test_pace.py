from __future__ import annotations

import asyncio

import pytest

from oxproxy.admin.pace import Pace


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_work_beyond_a_burst_is_restricted_to_its_share(clock: Clock) -> None:
    pace = Pace(0.1, 0.5, clock, clock.sleep)
    for _ in range(5):
        await pace.wait(0.1)
    assert clock.now == 1000.0
    for _ in range(20):
        await pace.wait(0.1)
    assert clock.now == pytest.approx(1019.0, abs=0.01)


async def test_a_pause_permits_another_burst(clock: Clock) -> None:
    pace = Pace(0.1, 0.5, clock, clock.sleep)
    for _ in range(2):
        clock.now += 60
        before = clock.now
        for _ in range(5):
            await pace.wait(0.1)
        assert clock.now == before


async def test_measured_work_is_done_one_after_the_other_in_order(clock: Clock) -> None:
    pace = Pace(0.1, 0.5, clock, clock.sleep)
    done: list[int] = []

    async def render(number: int) -> None:
        async with pace.turn():
            begin = clock.now
            await clock.sleep(0.5)
            assert clock.now == begin + 0.5
            done.append(number)

    await asyncio.gather(*map(render, range(4)))
    assert done == [0, 1, 2, 3]
    assert clock.now >= 1000.0 + 2 * 0.5 + 2 * 5.0 - 0.5


async def test_failed_work_counts(clock: Clock) -> None:
    pace = Pace(0.1, 0.5, clock, clock.sleep)
    with pytest.raises(ValueError, match="no page"):
        await fail(pace, clock)
    before = clock.now
    await pace.wait(0.0)
    assert clock.now > before


async def fail(pace: Pace, clock: Clock) -> None:
    async with pace.turn():
        await clock.sleep(1.0)
        raise ValueError("no page")
