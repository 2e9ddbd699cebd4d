"""Computes the positions of values and columns in a chart. `templates/charts.html` draws them.

Positions on the time axis are percentages of the plot's width; heights are in pixels. A chart therefore fills the
available width, while the size of its text is fixed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from oxproxy.report.wording import day_range

#: Pixels from the top of a plot to its time axis.
DEPTH = 200
_MOST_TICKS = 8
#: Minimum number of columns, so that a small amount of data is not shown as large blocks.
_LEAST_COLUMNS = 30
#: Fraction of a step that a column fills.
_COLUMN_SHARE = 0.9
#: Possible intervals between the ticks of a time axis, in seconds.
_TICK_SECONDS = (60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000)
_DAY_SECONDS = 86400


class Span(NamedTuple):
    """The range of a time axis."""

    begin: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        """Length of the span; never 0."""
        return max(1.0, (self.end - self.begin).total_seconds())

    def at(self, time: datetime) -> float:
        """Return the position of a time on the plot, in percent."""
        return 100 * (time - self.begin).total_seconds() / self.seconds

    @property
    def title(self) -> str:
        """The days of the span, and the time zone."""
        last = self.end - timedelta(microseconds=1)
        return f"{day_range([self.begin.date(), last.date()])}, UTC"

    @property
    def times(self) -> list[tuple[float, str]]:
        """The ticks of the time axis: position and text."""
        longest = _TICK_SECONDS[-1] * math.ceil(self.seconds / _TICK_SECONDS[-1] / _MOST_TICKS)
        step = next((size for size in _TICK_SECONDS if self.seconds / size <= _MOST_TICKS), longest)
        form = "%H:%M" if step < _DAY_SECONDS and self.seconds <= 2 * _DAY_SECONDS else "%m-%d %H h"
        if step >= _DAY_SECONDS:
            form = "%Y-%m-%d"
        start = int(self.begin.timestamp())
        midnight = start // _DAY_SECONDS * _DAY_SECONDS
        first = midnight + math.ceil((start - midnight) / step) * step
        times = [datetime.fromtimestamp(second, UTC) for second in range(first, int(self.end.timestamp()) + 1, step)]
        return [(self.at(time), time.strftime(form)) for time in times]


class Series(NamedTuple):
    """Values in chronological order, and their name in the legend. `colour` is the number of a CSS class."""

    name: str
    values: dict[datetime, float]
    colour: int


class Upright(NamedTuple):
    """A vertical axis: its title, number format and range."""

    title: str
    label: Callable[[float], str]
    most: float
    least: float = 0.0  # if greater than 0, the axis is logarithmic

    @property
    def ticks(self) -> list[float]:
        """Round numbers that enclose the range. They start at 0 or, on a logarithmic axis, are powers of ten."""
        if self.least > 0:
            low = math.floor(math.log10(self.least))
            high = max(low + 1, math.ceil(math.log10(self.most)))
            return [10.0**power for power in range(low, high + 1)]
        if self.most <= 0:
            return [0.0, 1.0]
        rough = max(1.0, self.most / 5)
        size = 10.0 ** math.floor(math.log10(rough))
        steps = [size * factor for factor in (1, 2, 2.5, 5, 10)]
        step = next(step for step in steps if step >= rough and step.is_integer())
        return [step * number for number in range(math.ceil(self.most / step - 1e-9) + 1)]

    def at(self, value: float) -> float:
        """Return the position of a value on the plot, in pixels from its top."""
        low, *_, high = self.ticks
        part = math.log(max(value, low) / low) / math.log(high / low) if self.least > 0 else value / high
        return DEPTH * (1 - part)

    @property
    def levels(self) -> list[tuple[float, str]]:
        """The ticks of the axis: position and text."""
        return [(self.at(value), self.label(value)) for value in self.ticks]

    def tooltip(self, series: Series, time: datetime) -> str:
        return f"{time:%Y-%m-%d %H:%M} {series.name}: {self.label(series.values[time])}"


class Column(NamedTuple):
    """A column and its tooltip; x and width are in percent, y and height in pixels."""

    x: float
    y: float
    width: float
    height: float
    colour: int
    tooltip: str


class Chart(NamedTuple):
    """A chart with a title for screen readers. Without a list of columns, each series is drawn as a line."""

    title: str
    span: Span
    upright: Upright
    series: Sequence[Series]
    columns: Sequence[Column] | None = None


def covering(begin: datetime, end: datetime, step: timedelta) -> Span:
    """Return a span that covers `begin` to `end` and has at least the minimum number of columns."""
    least = step * _LEAST_COLUMNS
    if end - begin >= least:
        return Span(begin, end)
    seconds = least.total_seconds()
    start = datetime.fromtimestamp(begin.timestamp() // seconds * seconds, UTC)
    return Span(start, max(end, start + least))


def columns(span: Span, step: timedelta, stack: Sequence[Series], upright: Upright) -> list[Column]:
    """Return the columns of a chart in which the series are stacked."""
    width = 100 * _COLUMN_SHARE * step.total_seconds() / span.seconds
    drawn = []
    heights: dict[datetime, float] = defaultdict(float)
    for series in stack:
        for time, value in series.values.items():
            if value > 0:
                bottom = upright.at(heights[time])
                heights[time] += value
                top = upright.at(heights[time])
                size = width, max(0.5, bottom - top)
                drawn.append(Column(span.at(time), top, *size, series.colour, upright.tooltip(series, time)))
    return drawn
