"""How panels become a dashboard as Grafana reads it from a file.

It knows Grafana's JSON (schema version 39: Grafana 10 and newer) and no metric of ours. Panels are laid out from left
to right in the order given, on Grafana's grid of 24 columns. Source: Grafana's dashboard JSON model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deploy.grafana.panels import JSON, SOURCE, Panel, Query

COLUMNS = 24
SCHEMA_VERSION = 39

#: By this tag a dashboard finds the others.
TAG = "oxproxy"


@dataclass(frozen=True)
class Row:
    """Panels under one question."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Variable:
    """A choice at the top of a dashboard: the values of a label.

    Args:
        name: without the dollar sign.
        label: what people read.
        query: Grafana's ``label_values(...)``.
    """

    name: str
    label: str
    query: str

    def json(self) -> JSON:
        """Return the variable, several values and "All" allowed."""
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
    """Moments that are marked in every panel: where the expression begins to have a value."""

    name: str
    query: Query
    color: str

    def json(self) -> JSON:
        """Return the annotation."""
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
        uid: its name in addresses, and that of its file.
        title: what people read.
        description: the questions that it answers.
        variables: choices at the top.
        marks: moments marked in every panel.
        rows: its panels.
    """

    uid: str
    title: str
    description: str
    variables: Sequence[Variable]
    marks: Sequence[Mark]
    rows: Sequence[Row]

    def json(self) -> JSON:
        """Return the dashboard as Grafana reads it."""
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


#: A menu with the other dashboards, which keeps time and choices.
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
