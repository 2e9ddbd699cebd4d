"""Kinds of panels, and their conversion to Grafana's format.

This module depends on Grafana's JSON of panels, not on metrics of the sidecar; ``dashboard`` positions panels. Source:
Grafana's dashboard JSON model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

JSON: TypeAlias = dict[str, Any]  # JSON of any shape

#: The data source is chosen in the dashboard, so that the files work in every Grafana.
SOURCE: JSON = {"type": "prometheus", "uid": "${datasource}"}

GREEN, YELLOW, RED = "green", "yellow", "red"
#: Colours for outcomes in every panel, by the last word in the name of a series.
OUTCOME_COLORS = {
    "routed": "green",
    "unrouted": "orange",
    "filtered": "yellow",
    "rejected": "red",
    "passed": "blue",
    "translated": "purple",
    "nacked": "red",
    "returned": "orange",
}


@dataclass(frozen=True)
class Query:
    """One expression of a panel.

    Args:
        expression: PromQL; may contain Grafana's variables.
        legend: name of a series, with ``{{label}}`` for a label's value.
        instant: whether only the current value is queried, not a range.
        table: whether the result consists of rows with labels and a value instead of series.
        heatmap: whether the result consists of a histogram's buckets.
    """

    expression: str
    legend: str = ""
    instant: bool = False
    table: bool = False
    heatmap: bool = False

    def json(self, letter: str) -> JSON:
        """Return the query as a target with the reference ``letter``."""
        form = "table" if self.table else "heatmap" if self.heatmap else "time_series"
        return {
            "refId": letter,
            "datasource": SOURCE,
            "expr": self.expression,
            "legendFormat": self.legend,
            "instant": self.instant,
            "range": not self.instant,
            "format": form,
        }


@dataclass(frozen=True)
class Panel:
    """One panel.

    Args:
        title: displayed title.
        description: explanation of its content.
        queries: its expressions.
        unit: Grafana's name of a unit.
        width: width in columns, of 24.
        height: height in rows of Grafana's grid.
        thresholds: (lowest value, colour), ascending; values below the first threshold are green.
    """

    title: str
    description: str
    queries: Sequence[Query]
    unit: str = "short"
    width: int = 8
    height: int = 8
    thresholds: Sequence[tuple[float, str]] = ()

    kind = ""

    def options(self) -> JSON:
        """Return the options of this kind of panel."""
        return {}

    def custom(self) -> JSON:
        """Return how fields are drawn by this kind of panel."""
        return {}

    def transformations(self) -> list[JSON]:
        """Return transformations of the data before it is drawn."""
        return []

    def overrides(self) -> list[JSON]:
        """Return settings of individual series."""
        return []

    def json(self, number: int, x: int, y: int) -> JSON:
        """Return the panel with its number and position."""
        steps: list[JSON] = [{"color": GREEN, "value": None}]
        steps += [{"color": color, "value": value} for value, color in self.thresholds]
        defaults = {
            "unit": self.unit,
            "color": {"mode": "thresholds" if self.thresholds else "palette-classic"},
            "thresholds": {"mode": "absolute", "steps": steps},
            "custom": self.custom(),
        }
        panel: JSON = {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": SOURCE,
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "targets": [query.json(chr(ord("A") + index)) for index, query in enumerate(self.queries)],
            "fieldConfig": {"defaults": defaults, "overrides": self.overrides()},
            "options": self.options(),
        }
        if self.transformations():
            panel["transformations"] = self.transformations()
        return panel


@dataclass(frozen=True)
class Lines(Panel):
    """Values over time.

    Args:
        stacked: whether series are stacked.
        logarithmic: whether the scale is logarithmic.
    """

    stacked: bool = False
    logarithmic: bool = False
    kind = "timeseries"

    def overrides(self) -> list[JSON]:
        return [
            {
                "matcher": {"id": "byRegexp", "options": rf"/\b{outcome}$/"},
                "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}],
            }
            for outcome, color in OUTCOME_COLORS.items()
        ]

    def options(self) -> JSON:
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }

    def custom(self) -> JSON:
        scale: JSON = {"type": "log", "log": 10} if self.logarithmic else {"type": "linear"}
        return {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 30 if self.stacked else 5,
            "showPoints": "never",
            "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
            "scaleDistribution": scale,
        }


@dataclass(frozen=True)
class Number(Panel):
    """One number, coloured by thresholds."""

    width: int = 4
    height: int = 4
    kind = "stat"

    def options(self) -> JSON:
        return {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value",
            "graphMode": "area",
            "textMode": "auto",
            "justifyMode": "auto",
            "orientation": "auto",
            "wideLayout": True,
            "showPercentChange": False,
            "percentChangeColorMode": "standard",
        }


@dataclass(frozen=True)
class Bars(Panel):
    """The largest of many numbers, as bars."""

    kind = "bargauge"

    def options(self) -> JSON:
        return {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "orientation": "horizontal",
            "displayMode": "gradient",
            "showUnfilled": True,
            "minVizWidth": 0,
            "minVizHeight": 10,
            "maxVizHeight": 300,
            "valueMode": "color",
            "namePlacement": "auto",
            "sizing": "auto",
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
        }


@dataclass(frozen=True)
class Table(Panel):
    """Rows of labels with one value.

    Args:
        columns: labels and ``Value``, each with the heading of its column, in order.
        descending: whether the largest value is first.
    """

    columns: Sequence[tuple[str, str]] = ()
    descending: bool = True
    kind = "table"

    def options(self) -> JSON:
        head = dict(self.columns).get("Value", "Value")
        order = [{"displayName": head, "desc": self.descending}]
        return {"frameIndex": 0, "showHeader": True, "cellHeight": "sm", "sortBy": order}

    def custom(self) -> JSON:
        return {"align": "auto", "inspect": False}

    def transformations(self) -> list[JSON]:
        """Return a transformation that removes the time and names the columns."""
        places = {name: place for place, (name, _) in enumerate(self.columns)}
        renamed = dict(self.columns)
        organize = {"excludeByName": {"Time": True}, "indexByName": places, "renameByName": renamed}
        return [{"id": "organize", "options": organize}]


@dataclass(frozen=True)
class States(Panel):
    """States over time, with one band for each series."""

    kind = "state-timeline"

    def options(self) -> JSON:
        return {
            "mergeValues": True,
            "showValue": "never",
            "alignValue": "left",
            "rowHeight": 0.8,
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
            "tooltip": {"mode": "single", "sort": "none"},
        }

    def custom(self) -> JSON:
        return {"lineWidth": 0, "fillOpacity": 70}


@dataclass(frozen=True)
class Heatmap(Panel):
    """A histogram over time, whose query returns buckets by ``le``."""

    kind = "heatmap"

    def options(self) -> JSON:
        return {
            "calculate": False,
            "cellGap": 1,
            "color": {
                "mode": "scheme",
                "scheme": "Oranges",
                "exponent": 0.5,
                "steps": 64,
                "fill": "dark-orange",
                "reverse": False,
            },
            "exemplars": {"color": "rgba(255,0,255,0.7)"},
            "filterValues": {"le": 1e-9},
            "legend": {"show": True},
            "rowsFrame": {"layout": "auto"},
            "showValue": "never",
            "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": False},
            "yAxis": {"axisPlacement": "left", "reverse": False, "unit": self.unit},
        }

    def custom(self) -> JSON:
        return {"scaleDistribution": {"type": "linear"}, "hideFrom": {"legend": False, "tooltip": False, "viz": False}}
