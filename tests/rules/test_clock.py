from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from proxy.rules.field_values import SystemZone, instant, zone

#: 2026-07-01 12:00:00 and 2026-12-01 12:00:00 in universal time
SUMMER, WINTER = 1782907200, 1796126400


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(("seconds", "hour", "name"), [(SUMMER, 14, "CEST"), (WINTER, 13, "CET")])
def test_the_system_zone_follows_summer_and_winter(seconds: int, hour: int, name: str) -> None:
    local = datetime.fromtimestamp(seconds, SystemZone())
    assert (local.hour, local.tzname(), local.utcoffset()) == (hour, name, timedelta(hours=hour - 12))


@pytest.mark.usefixtures("berlin")
def test_a_moment_of_the_system_zone_leads_back_to_its_instant() -> None:
    assert datetime.fromtimestamp(SUMMER, SystemZone()).astimezone(UTC).timestamp() == SUMMER


def test_a_zone_is_found_by_its_name() -> None:
    found = zone("Europe/Berlin")
    assert found is not None
    assert datetime.fromtimestamp(SUMMER, found).hour == 14


@pytest.mark.parametrize("name", ["Nowhere/City", "", "../etc/passwd", "/etc/localtime", "a\0b", "Europe"])
def test_what_is_no_zone_gives_none(name: str) -> None:
    assert zone(name) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:00Z", 0.0),
        ("2026-07-01T12:00:00Z", float(SUMMER)),
        ("2026-07-01T14:00:00+02:00", float(SUMMER)),
        ("2026-07-01T12:00:00.25Z", SUMMER + 0.25),
        ("1969-12-31T23:59:59Z", -1.0),
    ],
)
def test_an_instant_is_seconds_since_the_epoch(text: str, seconds: float) -> None:
    assert instant(text) == seconds


@pytest.mark.parametrize("text", ["2026-07-01T12:00:00", "2026-07-01", "noon", "", "1782907200"])
def test_a_time_without_zone_is_no_instant(text: str) -> None:
    assert instant(text) is None
