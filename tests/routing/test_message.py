from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta, timezone

import pytest

from oxproxy.routing.message import Message
from tests.routing.building import facts, no_draw, queue_names


@pytest.mark.parametrize(
    ("now", "hours", "text"),
    [
        (1_795_248_000.0, 0, b"20261121 080000 6 47"),
        (1_795_248_000.9, 2, b"20261121 100000 6 47"),
        # ISO weeks: 2021-01-01 is a Friday of week 53, 2024-12-30 a Monday of week 1.
        (1_609_459_200.0, 0, b"20210101 000000 5 53"),
        (1_735_516_800.0, 0, b"20241230 000000 1 01"),
        (1_709_164_800.0, 0, b"20240229 000000 4 09"),
        (1_609_459_200.0, -1, b"20201231 230000 4 53"),
    ],
)
def test_clock_text_has_date_time_weekday_and_week(now: float, hours: int, text: bytes) -> None:
    seen = Message(facts(), now, queue_names(), no_draw)
    zone = timezone(timedelta(hours=hours))
    assert seen.clock(zone) == text
    assert len(text) == 20


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("now", "text"),
    [(1_782_907_200.0, b"20260701 140000 3 27"), (1_796_126_400.9, b"20261201 130000 2 49")],
)
def test_the_systems_time_zone_follows_summer_and_winter(now: float, text: bytes) -> None:
    assert Message(facts(), now, queue_names(), no_draw).clock(None) == text
