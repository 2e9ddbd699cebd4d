from __future__ import annotations

import asyncio

import pytest

from oxproxy.broker.reconcile.vhost_loop import RefreshSchedule


class FakeConnection:
    """A connection that a test can mark as lost, and that records how long it was waited for."""

    def __init__(self) -> None:
        self.waits: list[tuple[float, bool]] = []
        self.connected = True
        self.lost = False

    async def wait_lost(self, timeout_seconds: float, wake: asyncio.Event | None = None) -> bool:
        self.waits.append((timeout_seconds, wake is not None))
        return self.lost


@pytest.fixture
def connection() -> FakeConnection:
    return FakeConnection()


NOW = 1000.0


def paced(refresh_seconds: float) -> RefreshSchedule:
    return RefreshSchedule(refresh_seconds, lambda: NOW)


async def test_the_first_pass_covers_everything() -> None:
    assert paced(5).take() is None


@pytest.mark.parametrize(("took_seconds", "waits_seconds"), [(1, 3), (60, 180)], ids=["in time", "limited share"])
async def test_the_next_pass_ends_within_the_interval_unless_passes_would_take_most_of_the_time(
    connection: FakeConnection, took_seconds: float, waits_seconds: float
) -> None:
    schedule = paced(5)
    schedule.ended(NOW - took_seconds, everything=True)
    assert not await schedule.wait(connection)  # type: ignore[arg-type]
    assert connection.waits == [(waits_seconds, True)]


async def test_changed_exchanges_are_refreshed_alone_and_once() -> None:
    schedule = paced(5)
    schedule.ended(NOW, everything=True)
    schedule.request_refresh({b"a"})
    schedule.request_refresh({b"b"})
    assert schedule.take() == {b"a", b"b"}
    schedule.ended(NOW, everything=False)
    schedule.request_refresh({b"c"})
    assert schedule.take() == {b"c"}


async def test_a_request_for_everything_includes_single_exchanges() -> None:
    schedule = paced(5)
    schedule.ended(NOW, everything=True)
    schedule.request_refresh({b"a"})
    schedule.request_refresh()
    assert schedule.take() is None
    schedule.request_refresh({b"b"})
    assert schedule.take() == {b"b"}


@pytest.mark.parametrize("requests", [[1000], [60, 60]])
async def test_a_request_for_many_exchanges_is_one_for_everything(requests: list[int]) -> None:
    schedule = paced(5)
    schedule.ended(NOW, everything=True)
    for first, count in enumerate(requests):
        schedule.request_refresh({b"%d.%d" % (first, number) for number in range(count)})
    assert schedule.take() is None


async def test_requests_for_single_exchanges_do_not_delay_the_regular_pass() -> None:
    schedule = paced(0)
    schedule.ended(NOW, everything=True)
    schedule.request_refresh({b"a"})
    assert schedule.take() is None


async def test_requested_passes_take_a_limited_share_of_the_time(connection: FakeConnection) -> None:
    schedule = paced(3600)
    schedule.ended(NOW, everything=True)
    schedule.ended(NOW - 2, everything=False)
    schedule.request_refresh({b"a"})
    assert not await schedule.wait(connection)  # type: ignore[arg-type]
    assert connection.waits == [(3600, True), (18, False)]


async def test_a_lost_connection_ends_the_wait(connection: FakeConnection) -> None:
    schedule = paced(5)
    connection.lost = True
    assert await schedule.wait(connection)  # type: ignore[arg-type]
