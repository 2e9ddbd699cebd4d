"""Converts panels to a dashboard in Grafana's file format.

This module depends on Grafana's JSON (schema version 39: Grafana 10 and newer), not on metrics of the sidecar. Panels
are laid out from left to right in the order given, on Grafana's grid of 24 columns. Source: Grafana's dashboard JSON
model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deploy.grafana.panels import JSON, SOURCE, Panel, Query

COLUMNS = 24
SCHEMA_VERSION = 39

#: Tag of all dashboards, used for the links between them.
TAG = "oxproxy"


@dataclass(frozen=True)
class Row:
    """A row of panels with a title."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Variable:
    """A variable at the top of a dashboard, whose values are the values of a label.

    Args:
        name: name without the dollar sign.
        label: displayed name.
        query: Grafana's ``label_values(...)``.
    """

    name: str
    label: str
    query: str

    def json(self) -> JSON:
        """Return the variable, for which several values and "All" can be selected."""
        return {
            "type": "query",
            "name": self.name,
            "label": self.label,
            "datasource": SOURCE,
            "definition": self.query,
            "query": self.query,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
            "refresh": 2,
            "sort": 1,
            "options": [],
        }


@dataclass(frozen=True)
class Mark:
    """The times at which an expression begins to have a value. They are marked in every panel."""

    name: str
    query: Query
    color: str

    def json(self) -> JSON:
        return {
            "name": self.name,
            "datasource": SOURCE,
            "enable": True,
            "iconColor": self.color,
            "expr": self.query.expression,
            "titleFormat": self.query.legend,
            "step": "60s",
        }


@dataclass(frozen=True)
class Dashboard:
    """A whole dashboard.

    Args:
        uid: name of the dashboard in URLs, and of its file.
        title: displayed title.
        description: summary of its content.
        variables: variables at the top.
        marks: times marked in every panel.
        rows: its panels.
    """

    uid: str
    title: str
    description: str
    variables: Sequence[Variable]
    marks: Sequence[Mark]
    rows: Sequence[Row]

    def json(self) -> JSON:
        source = {
            "type": "datasource",
            "name": "datasource",
            "label": "Data source",
            "query": "prometheus",
            "current": {"text": "default", "value": "default"},
            "refresh": 1,
            "options": [],
        }
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": [TAG],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "time": {"from": "now-3h", "to": "now"},
            "refresh": "30s",
            "timezone": "browser",
            "templating": {"list": [source, *(variable.json() for variable in self.variables)]},
            "annotations": {"list": [mark.json() for mark in self.marks]},
            "links": [_LINK],
            "panels": list(self._placed()),
        }

    def _placed(self) -> Iterator[JSON]:
        number, y = 1, 0
        for row in self.rows:
            yield {
                "id": number,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y},
                "panels": [],
            }
            number, y, x, height = number + 1, y + 1, 0, 0
            for panel in row.panels:
                if x + panel.width > COLUMNS:
                    y, x, height = y + height, 0, 0
                yield panel.json(number, x, y)
                number, x, height = number + 1, x + panel.width, max(height, panel.height)
            y += height


#: A menu with the other dashboards, which preserves the time range and the variables.
_LINK: JSON = {
    "type": "dashboards",
    "title": "More about the sidecar",
    "tags": [TAG],
    "asDropdown": True,
    "includeVars": True,
    "keepTime": True,
    "targetBlank": False,
    "icon": "external link",
    "tooltip": "",
    "url": "",
}
