"""How do numbers become a picture? Charts as SVG text, with axes that say what they measure.

Nothing is loaded from anywhere and nothing runs: a chart is text in the page. Colours are classes (`s0`, `s1`, ...)
that the page's style gives; each mark has a title, which browsers show where one points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from html import escape

WIDTH, HEIGHT = 960, 280
#: Room beside the plot: for the labels of the vertical axis, and for those below.
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 16, 14, 46
_PLOT = WIDTH - _LEFT - _RIGHT
_DEPTH = HEIGHT - _TOP - _BOTTOM
_MOST_MARKS = 10
#: Seconds between marks of a time axis.
_PACES = (60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000)
_DAY_SECONDS = 86400
#: A bar's height and what is between two; what of the width is for names and for values.
_BAR, _BAR_GAP, _NAME_SHARE, _VALUE_WIDTH = 18, 8, 0.32, 90
#: Width of an average character.
_CHARACTER = 7


@dataclass(frozen=True, slots=True)
class Span:
    """What a time axis shows.

    Args:
        begin: its left end.
        end: its right end.
    """

    begin: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        """How long it is; never 0."""
        return max(1.0, (self.end - self.begin).total_seconds())

    def at(self, time: datetime) -> float:
        """Give the place of a time on the plot."""
        return _LEFT + _PLOT * (time - self.begin).total_seconds() / self.seconds


@dataclass(frozen=True, slots=True)
class Series:
    """Values over time.

    Args:
        name: as the legend has it.
        values: by time; times without a value have none.
        colour: number of a class of the page's style.
    """

    name: str
    values: dict[datetime, float]
    colour: int


@dataclass(frozen=True, slots=True)
class Upright:
    """A vertical axis.

    Args:
        title: what it measures, with its unit.
        label: writes a value.
        most: the largest value.
        least: the smallest; above 0 the axis is logarithmic.
    """

    title: str
    label: Callable[[float], str]
    most: float
    least: float = 0.0
    marks: list[float] = field(init=False)

    def __post_init__(self) -> None:
        """Choose where the marks are."""
        chosen = decades(self.least, self.most) if self.least > 0 else rounds(self.most)
        object.__setattr__(self, "marks", chosen)

    def at(self, value: float) -> float:
        """Give the place of a value on the plot."""
        low, high = self.marks[0], self.marks[-1]
        if self.least > 0:
            part = math.log(max(value, low) / low) / math.log(high / low)
        else:
            part = value / high
        return _TOP + _DEPTH * (1 - part)


def rounds(most: float) -> list[float]:
    """Choose round marks from 0 to beyond a value."""
    if most <= 0:
        return [0.0, 1.0]
    rough = most / 5
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough)
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]


def decades(least: float, most: float) -> list[float]:
    """Choose powers of ten around two values, at least two of them."""
    low = math.floor(math.log10(least))
    high = max(low + 1, math.ceil(math.log10(most)))
    return [10.0**power for power in range(low, high + 1)]


def columns(span: Span, step: timedelta, stack: Sequence[Series], upright: Upright, title: str) -> str:
    """Draw columns over time, the series on top of each other."""
    width = max(1.0, _PLOT * step.total_seconds() / span.seconds - 1)
    parts = list(_frame(span, upright))
    heights: dict[datetime, float] = {}
    for series in stack:
        for time, value in sorted(series.values.items()):
            if value <= 0:
                continue
            bottom = heights.get(time, 0.0)
            heights[time] = bottom + value
            top, low = upright.at(bottom + value), upright.at(bottom)
            told = f"{time:%Y-%m-%d %H:%M} {series.name}: {upright.label(value)}"
            parts.append(
                f'<rect class="s{series.colour}" x="{span.at(time):.1f}" y="{top:.1f}" width="{width:.1f}" '
                f'height="{max(0.5, low - top):.1f}"><title>{escape(told)}</title></rect>'
            )
    return _svg(parts, WIDTH, HEIGHT, title) + _legend(stack)


def lines(span: Span, several: Sequence[Series], upright: Upright, title: str) -> str:
    """Draw a line for each series, with a dot at each value."""
    parts = list(_frame(span, upright))
    for series in several:
        points = [(span.at(time), upright.at(value), time, value) for time, value in sorted(series.values.items())]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in points)
        parts.append(f'<polyline class="l{series.colour}" points="{path}"/>')
        for x, y, time, value in points:
            told = f"{time:%Y-%m-%d %H:%M} {series.name}: {upright.label(value)}"
            dot = f'class="s{series.colour}" cx="{x:.1f}" cy="{y:.1f}" r="3"'
            parts.append(f"<circle {dot}><title>{escape(told)}</title></circle>")
    return _svg(parts, WIDTH, HEIGHT, title) + _legend(several)


def bars(
    items: Sequence[tuple[str, float]], label: Callable[[float], str], title: str, colour: int = 0, width: int = WIDTH
) -> str:
    """Draw a bar for each named value, one below the other."""
    most = max((value for _, value in items), default=0) or 1
    left = int(width * _NAME_SHARE)
    room = width - left - _VALUE_WIDTH
    parts = []
    for number, (name, value) in enumerate(items):
        y = number * (_BAR + _BAR_GAP) + _BAR_GAP
        middle = y + _BAR * 0.75
        length = max(1.0, room * value / most)
        parts.append(
            f"<g><title>{escape(f'{name}: {label(value)}')}</title>"
            f'<text class="name" x="{left - 8}" y="{middle:.1f}">{escape(cut(name, left // _CHARACTER))}</text>'
            f'<rect class="s{colour}" x="{left}" y="{y}" width="{length:.1f}" height="{_BAR}" rx="2"/>'
            f'<text class="value" x="{left + length + 6:.1f}" y="{middle:.1f}">{escape(label(value))}</text></g>'
        )
    return _svg(parts, width, len(items) * (_BAR + _BAR_GAP) + _BAR_GAP, title)


def cut(name: str, characters: int) -> str:
    """Cut a name that is too long for its place in the middle."""
    if len(name) <= characters:
        return name
    half = (characters - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def _frame(span: Span, upright: Upright) -> Iterator[str]:
    """Axes, their marks and titles."""
    bottom, right = _TOP + _DEPTH, WIDTH - _RIGHT
    for value in upright.marks:
        y = upright.at(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="y" x="{_LEFT - 8}" y="{y + 4:.1f}">{escape(upright.label(value))}</text>'
    for time, text in _times(span):
        x = span.at(time)
        yield f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 5}"/>'
        yield f'<text class="x" x="{x:.1f}" y="{bottom + 18}">{text}</text>'
    yield f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
    middle = _TOP + _DEPTH / 2
    yield f'<text class="title" x="{_LEFT + _PLOT / 2}" y="{HEIGHT - 6}">{_axis_title(span)}</text>'
    yield (
        f'<text class="title" transform="translate(14 {middle}) rotate(-90)" x="0" y="0">{escape(upright.title)}</text>'
    )


def _axis_title(span: Span) -> str:
    if span.begin.date() == (span.end - timedelta(microseconds=1)).date():
        return f"{span.begin:%Y-%m-%d}, UTC"
    return "UTC"


def _times(span: Span) -> Iterator[tuple[datetime, str]]:
    longest = _PACES[-1] * math.ceil(span.seconds / _PACES[-1] / _MOST_MARKS)
    pace = next((pace for pace in _PACES if span.seconds / pace <= _MOST_MARKS), longest)
    form = "%H:%M" if pace < _DAY_SECONDS and span.seconds <= 2 * _DAY_SECONDS else "%m-%d %H h"
    if pace >= _DAY_SECONDS:
        form = "%Y-%m-%d"
    midnight = int(span.begin.timestamp()) // _DAY_SECONDS * _DAY_SECONDS
    first = midnight - (midnight - int(span.begin.timestamp())) // pace * pace
    for second in range(first, int(span.end.timestamp()) + 1, pace):
        time = datetime.fromtimestamp(second, UTC)
        yield time, time.strftime(form)


def _legend(several: Iterable[Series]) -> str:
    entries = "".join(f'<li><i class="b{series.colour}"></i>{escape(series.name)}</li>' for series in several)
    return f'<ul class="legend">{entries}</ul>'


def _svg(parts: Iterable[str], width: int, height: int, title: str) -> str:
    return (
        f'<svg role="img" viewBox="0 0 {width} {height}" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )
