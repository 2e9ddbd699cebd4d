"""Draws a dashboard from its JSON and real data, as a preview without Grafana.

Panels have the positions that they have in Grafana, but not Grafana's exact appearance.
"""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib as mpl
import matplotlib.ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

JSON: TypeAlias = dict[str, Any]  # JSON of any shape
#: Results of a panel's expressions: the series of each target, as Prometheus' API returns them.
Answers: TypeAlias = Sequence[list[JSON]]

#: Size in inches of a column and a row of Grafana's grid, and of the gap around a panel.
COLUMN, ROW, GAP = 0.56, 0.33, 0.09
DPI = 84
#: Number of colours. A palette reduces the file size to a third.
COLORS = 64
#: Key of the panel titles in the metadata of a picture.
TITLES = "Panels"
#: Largest number of names below a panel.
LEGENDS = 6
#: Margins of a panel in inches: at the top for the title, at the bottom for times and names, at the left for values.
HEAD, BELOW, BESIDE = 0.24, 0.62, 0.5
#: Margin of a panel without axes.
BARE = 0.1
SCALES: Mapping[str, tuple[tuple[float, str], ...]] = {
    "s": ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "bytes": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")),
    "Bps": ((1e6, "MB/s"), (1e3, "kB/s"), (1, "B/s")),
}


def shown(value: float, unit: str) -> str:
    """Return a value with its unit, in Grafana's notation."""
    if math.isnan(value):
        return "NaN"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    suffix = "/s" if unit == "cps" else ""
    for size, name in SCALES.get(unit, ((1e6, " M"), (1e3, " k"))):
        if abs(value) >= size:
            return f"{value / size:.3g} {name}{suffix}".replace("  ", " ")
    return f"{value:.3g}{suffix}"


def legend(target: JSON, series: JSON) -> str:
    """Return the name of a series."""
    text: str = target["legendFormat"]
    return re.sub(r"\{\{(\w+)\}\}", lambda label: series["metric"].get(label[1], ""), text)


def last(series: JSON) -> float:
    """Return the last value of a series, from an instant query or a range query."""
    pair = series["value"] if "value" in series else series["values"][-1]
    return float(pair[1])


def points(series: JSON) -> tuple[list[float], list[float]]:
    """Return the times and the values of a series."""
    return [float(time) for time, _ in series["values"]], [float(value) for _, value in series["values"]]


def named_series(panel: JSON, answers: Answers) -> list[tuple[str, JSON]]:
    """Return every series of a panel with its name."""
    results = zip(panel["targets"], answers, strict=True)
    return [(legend(target, series), series) for target, result in results for series in result]


def unit_of(panel: JSON) -> str:
    """Return the unit of a panel's values."""
    unit: str = panel["fieldConfig"]["defaults"]["unit"]
    return unit


def fixed_color(panel: JSON, name: str) -> str | None:
    """Return the colour of a series that the panel specifies, or None."""
    for override in panel["fieldConfig"]["overrides"]:
        if re.search(override["matcher"]["options"].strip("/"), name):
            color: str = override["properties"][0]["value"]["fixedColor"]
            return {"yellow": "gold", "blue": "tab:blue", "green": "tab:green", "red": "tab:red"}.get(color, color)
    return None


def lines(axes: Axes, panel: JSON, answers: Answers) -> None:
    """Draw values over time."""
    named = named_series(panel, answers)
    palette = itertools.cycle(["tab:blue", "tab:cyan", "tab:purple", "tab:brown", "tab:gray", "tab:olive", "tab:pink"])
    colors = [fixed_color(panel, name) or next(palette) for name, _ in named]
    custom = panel["fieldConfig"]["defaults"]["custom"]
    if custom["stacking"]["mode"] == "normal":
        times = sorted({time for _, series in named for time in points(series)[0]})
        values = [dict(zip(*points(series), strict=True)) for _, series in named]
        heights = [[series.get(time, 0.0) for time in times] for series in values]
        axes.stackplot(times, heights, labels=[name for name, _ in named], colors=colors, alpha=0.6)
    else:
        for (name, series), color in zip(named, colors, strict=True):
            axes.plot(*points(series), label=name, linewidth=0.9, color=color)
    if custom["scaleDistribution"]["type"] == "log":
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(mpl.ticker.NullFormatter())
    else:
        from_zero(axes, unit_of(panel), any(value for _, series in named for value in points(series)[1]))
    axes.yaxis.set_major_formatter(lambda value, _: shown(value, unit_of(panel)))
    clock(axes)
    handles, names = axes.get_legend_handles_labels()
    # The legend has room for only a few names: those of series that are not always 0.
    shown_places = [place for place, (_, series) in enumerate(named) if any(points(series)[1])][:LEGENDS]
    shown_places = shown_places or list(range(min(len(named), LEGENDS)))
    axes.legend(
        [handles[place] for place in shown_places],
        [names[place] for place in shown_places],
        fontsize=6.5,
        frameon=False,
        loc="upper center",
        bbox_to_anchor=(0.45, -0.1),
        ncols=3,
        handlelength=1,
        columnspacing=1,
    )


def from_zero(axes: Axes, unit: str, anything: bool) -> None:
    """Let the axis begin at 0, with tick marks at round numbers of the unit."""
    top = axes.get_ylim()[1] if anything else 1.0
    size = next((size for size, _ in SCALES.get(unit, ()) if top >= size), 1.0)
    round_numbers = mpl.ticker.MaxNLocator(5, steps=[1, 2, 2.5, 5, 10])
    axes.set_yticks([size * tick for tick in round_numbers.tick_values(0, top / size)])
    axes.set_ylim(-0.02 * top, 1.04 * top)


def clock(axes: Axes) -> None:
    """Label the axis with times of day."""
    axes.xaxis.set_major_formatter(lambda value, _: datetime.fromtimestamp(value, UTC).strftime("%H:%M:%S"))
    axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
    axes.grid(linewidth=0.2)


def number(axes: Axes, panel: JSON, answers: Answers) -> None:
    """Draw one number, or a few with their names."""
    axes.axis("off")
    named = [(name, last(series)) for name, series in named_series(panel, answers)]
    for place, (name, value) in enumerate(named):
        text = shown(value, unit_of(panel)) if len(named) == 1 else f"{name} {shown(value, unit_of(panel))}"
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        color = [step["color"] for step in steps if step["value"] is None or value >= step["value"]][-1]
        height = 1 - (place + 0.5) / len(named)
        color = {"yellow": "goldenrod"}.get(color, color)
        axes.text(0.5, height, text, ha="center", va="center", fontsize=15 if len(named) == 1 else 10, color=color)


def bars(axes: Axes, panel: JSON, answers: Answers) -> None:
    """Draw the last values as bars, the largest at the top."""
    named = [(name, last(series)) for name, series in named_series(panel, answers)]
    named.sort(key=lambda pair: pair[1])
    axes.barh([name for name, _ in named], [value for _, value in named], color="darkorange", alpha=0.6)
    for place, (name, value) in enumerate(named):
        axes.text(0, place, f" {name}: {shown(value, unit_of(panel))}", va="center", fontsize=7)
    axes.set_xticks([])
    axes.set_yticks([])


def table(axes: Axes, panel: JSON, answers: Answers) -> None:
    """Draw a table with the labels and the value of each sample."""
    axes.axis("off")
    organize = panel["transformations"][0]["options"]
    names = sorted(organize["indexByName"], key=organize["indexByName"].get)
    samples = sorted(answers[0], key=last, reverse=True)
    rows = [
        [shown(last(sample), unit_of(panel)) if name == "Value" else sample["metric"][name][:32] for name in names]
        for sample in samples
    ]
    heads = [organize["renameByName"][name] for name in names]
    rows = rows[:10] or [["-"] * len(names)]
    widths = [max(map(len, column)) + 3 for column in zip(heads, *rows, strict=True)]
    drawn = axes.table(
        rows,
        colLabels=heads,
        colWidths=[width / sum(widths) for width in widths],
        loc="upper center",
        cellLoc="left",
        edges="horizontal",
    )
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(6)


def states(axes: Axes, panel: JSON, answers: Answers) -> None:
    """Draw states over time, with one band for each series."""
    named = named_series(panel, answers)
    for place, (name, series) in enumerate(named):
        times, values = points(series)
        for time, value in zip(times, values, strict=True):
            axes.barh(place, 1.5, left=time, color="tab:green" if value else "tab:red", height=0.7)
        axes.text(times[0], place, " " + name, va="center", fontsize=6, color="white")
    axes.set_yticks([])
    axes.set_ylim(-0.8, max(len(named), 3) - 0.2)
    clock(axes)


def heatmap(axes: Axes, panel: JSON, answers: Answers) -> None:
    """Draw a histogram over time. A cell is the difference of two consecutive cumulative buckets."""
    buckets = sorted(answers[0], key=lambda bucket: float(bucket["metric"]["le"]))
    times = sorted({time for bucket in buckets for time in points(bucket)[0]})
    columns = [dict(zip(*points(bucket), strict=True)) for bucket in buckets]
    cells = [[bucket.get(time, 0.0) for time in times] for bucket in columns]
    inside = [cells[0]] + [[b - a for a, b in zip(low, high, strict=True)] for low, high in pairwise(cells)]
    axes.pcolormesh(times, range(len(buckets)), inside, cmap="Oranges", shading="nearest")
    bounds = [float(bucket["metric"]["le"]) for bucket in buckets]
    names = [shown(bound, "s") if math.isfinite(bound) else "more" for bound in bounds]
    axes.set_yticks(range(len(buckets)), names, fontsize=5)
    clock(axes)


#: Kinds of panels with a time axis.
OVER_TIME = frozenset(("timeseries", "state-timeline", "heatmap"))
KINDS: Mapping[str, Callable[[Axes, JSON, Answers], None]] = {
    "timeseries": lines,
    "stat": number,
    "bargauge": bars,
    "table": table,
    "state-timeline": states,
    "heatmap": heatmap,
}


def draw(dashboard: JSON, ask: Callable[[JSON], list[JSON]], span: tuple[float, float], path: Path) -> None:
    """Draw a dashboard to a PNG file.

    Args:
        dashboard: the dashboard in Grafana's JSON.
        ask: returns the result of one target.
        span: first and last second of the time range, since 1970.
        path: the file.
    """
    panels = dashboard["panels"]
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    with mpl.rc_context({"font.size": 7, "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.5}):
        figure = Figure(figsize=(24 * COLUMN, rows * ROW), dpi=DPI, facecolor="white")
        for panel in panels:
            if panel["type"] == "row":
                headline(figure, panel, 0.7 * ROW, weight="bold", fontsize=10)
            else:
                headline(figure, panel, GAP + 0.1, fontsize=7.5, color="dimgrey")
                axes = axes_of(figure, panel)
                KINDS[panel["type"]](axes, panel, [ask(target) for target in panel["targets"]])
                if panel["type"] in OVER_TIME:
                    axes.set_xlim(*span)
        memory = io.BytesIO()
        figure.savefig(memory, format="png")
    about = PngInfo()
    about.add_itxt(TITLES, titles(dashboard))
    Image.open(memory).convert("RGB").quantize(COLORS).save(path, optimize=True, pnginfo=about)


def titles(dashboard: JSON) -> str:
    """Return the titles of all panels. A test compares them with those in the picture, to detect outdated pictures."""
    return "\n".join(panel["title"] for panel in dashboard["panels"])


def headline(figure: Figure, panel: JSON, below_top: float, **looks: Any) -> None:  # Any: as matplotlib accepts it
    """Write the title of a panel."""
    width, height = figure.get_size_inches()
    left, top = panel["gridPos"]["x"] * COLUMN, panel["gridPos"]["y"] * ROW
    figure.text((left + GAP) / width, 1 - (top + below_top) / height, panel["title"], **looks)


def axes_of(figure: Figure, panel: JSON) -> Axes:
    """Return the axes for the data of a panel."""
    width, height = figure.get_size_inches()
    place = panel["gridPos"]
    below, beside = (BARE, BARE) if panel["type"] in {"stat", "table"} else (BELOW, BESIDE)
    left, bottom = place["x"] * COLUMN + GAP + beside, (place["y"] + place["h"]) * ROW - GAP - below + 0.1
    inner_width, inner_height = place["w"] * COLUMN - 2 * GAP - beside, place["h"] * ROW - 2 * GAP - HEAD - below
    return figure.add_axes((left / width, 1 - bottom / height, inner_width / width, inner_height / height))
