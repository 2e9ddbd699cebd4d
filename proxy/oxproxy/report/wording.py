"""Formats numbers, times and names for display."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

#: Formats a count, such as 2,000,000.
whole = "{:,.0f}".format
#: Formats a time to the second.
moment = "{:%Y-%m-%d %H:%M:%S}".format


def several(number: int, singular: str, plural: str = "") -> str:
    """Format a count with its noun, such as 1 segment or 2,000 segments."""
    return f"{whole(number)} {singular if number == 1 else plural or f'{singular}s'}"


def short(number: float, unit: str = "") -> str:
    """Format a number with up to three digits, such as 1.25 M or, with a unit, 1.25 MB."""
    return _scaled(number, [f"{prefix}{unit}" for prefix in ("", "k", "M", "G", "T", "P")])


def micros(microseconds: float) -> str:
    """Format a duration, such as 12.3 µs or 4.56 ms."""
    return _scaled(microseconds, ("µs", "ms", "s"))


def _scaled(number: float, units: Sequence[str]) -> str:
    """Format a number in the largest suitable unit. Each unit is a thousand times the previous unit."""
    place = 0
    while abs(number) >= 999.5 * 1000**place and place < len(units) - 1:  # 999.5 would be rounded to 1000
        place += 1
    scaled = number / 1000**place
    text = f"{scaled:.{max(0, 3 - len(str(int(abs(scaled)))))}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {units[place]}".rstrip()


def hour(time: datetime) -> str:
    """Format an hour, such as 2026-11-20 07-08 h."""
    return f"{time:%Y-%m-%d %H}-{(time + timedelta(hours=1)):%H} h"


def day_range(days: Sequence[object]) -> str:
    """Format a range of days, such as 2026-11-20 to 2026-11-22."""
    return " to ".join(dict.fromkeys(map(str, (*days[:1], *days[-1:])))) or "no day"


def minutes(count: int) -> str:
    """Format the length of a step, such as minute, 10 minutes, hour, 2 hours or day."""
    sizes = (("week", 10080), ("day", 1440), ("hour", 60), ("minute", 1))
    name, size = next((name, size) for name, size in sizes if count % size == 0)
    return name if count == size else f"{count // size} {name}s"


def share(part: float, all_of_it: float) -> str:
    """Format a share, such as 12.3 % or < 0.1 %."""
    if not all_of_it:
        return "0 %"
    percent = 100 * part / all_of_it
    return f"{percent:.1f} %" if percent >= 0.1 or not part else "< 0.1 %"


def exchange(name: str) -> str:
    """Format the name of an exchange, which may be empty."""
    return name or "(default)"
