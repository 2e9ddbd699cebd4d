"""What kinds of panels are there, and how is each written for Grafana?

It knows Grafana's JSON of panels and no metric of ours; where a panel stands is decided in ``dashboard``. Source:
Grafana's dashboard JSON model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

JSON: TypeAlias = dict[str, Any]  # JSON of any shape

#: The data source is chosen in the dashboard itself, so that a file fits every Grafana.
SOURCE: JSON = {"type": "prometheus", "uid": "${datasource}"}

GREEN, YELLOW, RED = "green", "yellow", "red"
#: Colours of outcomes, in every panel: by the end of a series' name.
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
        expression: PromQL; may hold Grafana's variables.
        legend: what a series is called, with ``{{label}}`` for a label's value.
        instant: asks for the present only, not for a range.
        table: gives rows of labels and value instead of series.
        heatmap: gives buckets of a histogram.
    """

    expression: str
    legend: str = ""
    instant: bool = False
    table: bool = False
    heatmap: bool = False

    def json(self, letter: str) -> JSON:
        """Return the target with the reference ``letter``."""
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
        title: what it shows, short.
        description: the question that it answers.
        queries: its expressions.
        unit: Grafana's name of a unit.
        width: columns of 24.
        height: rows of Grafana's grid.
        thresholds: (from which value, colour), ascending; below the first it is green.
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
        """Return what only this kind of panel has."""
        return {}

    def custom(self) -> JSON:
        """Return how fields are drawn by this kind of panel."""
        return {}

    def transformations(self) -> list[JSON]:
        """Return what happens to the data before it is drawn."""
        return []

    def overrides(self) -> list[JSON]:
        """Return what single series have of their own."""
        return []

    def json(self, number: int, x: int, y: int) -> JSON:
        """Return the panel with its number and place."""
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
        stacked: draws series upon one another.
        logarithmic: draws equal factors as equal heights.
    """

    stacked: bool = False
    logarithmic: bool = False
    kind = "timeseries"

    def overrides(self) -> list[JSON]:
        """Return the fixed colours of outcomes."""
        return [
            {
                "matcher": {"id": "byRegexp", "options": rf"/\b{outcome}$/"},
                "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}],
            }
            for outcome, color in OUTCOME_COLORS.items()
        ]

    def options(self) -> JSON:
        """Return a legend below, and a tooltip with every series."""
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }

    def custom(self) -> JSON:
        """Return how lines are drawn."""
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
        """Return the last value, large."""
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
        """Return one bar for each series."""
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
        columns: labels and ``Value``, each with the head of its column, in order.
        descending: largest value first.
    """

    columns: Sequence[tuple[str, str]] = ()
    descending: bool = True
    kind = "table"

    def options(self) -> JSON:
        """Return the order of the rows."""
        head = dict(self.columns).get("Value", "Value")
        order = [{"displayName": head, "desc": self.descending}]
        return {"frameIndex": 0, "showHeader": True, "cellHeight": "sm", "sortBy": order}

    def custom(self) -> JSON:
        """Return how cells are drawn."""
        return {"align": "auto", "inspect": False}

    def transformations(self) -> list[JSON]:
        """Leave out the time, and name the columns."""
        places = {name: place for place, (name, _) in enumerate(self.columns)}
        renamed = dict(self.columns)
        organize = {"excludeByName": {"Time": True}, "indexByName": places, "renameByName": renamed}
        return [{"id": "organize", "options": organize}]


@dataclass(frozen=True)
class States(Panel):
    """What was in force when: one band for each series."""

    kind = "state-timeline"

    def options(self) -> JSON:
        """Return bands without numbers in them."""
        return {
            "mergeValues": True,
            "showValue": "never",
            "alignValue": "left",
            "rowHeight": 0.8,
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
            "tooltip": {"mode": "single", "sort": "none"},
        }

    def custom(self) -> JSON:
        """Return how bands are drawn."""
        return {"lineWidth": 0, "fillOpacity": 70}


@dataclass(frozen=True)
class Heatmap(Panel):
    """A histogram over time; its query gives buckets by ``le``."""

    kind = "heatmap"

    def options(self) -> JSON:
        """Return cells coloured by how much lies in them."""
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
        """Return the scale of the buckets."""
        return {"scaleDistribution": {"type": "linear"}, "hideFrom": {"legend": False, "tooltip": False, "viz": False}}
