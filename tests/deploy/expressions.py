"""Every PromQL expression in rules, dashboards, runbooks and operations.md, in a form that always returns data.

Grafana's variables are replaced by values. Comparisons return 0 or 1 instead of nothing, so that the expressions of
alerts also return data for a healthy sidecar.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from deploy.grafana.build import DASHBOARDS
from tests.deploy.prometheus import ROOT, rules

#: Values of Grafana's variables: selections, and ranges that depend on scrape interval and displayed time.
CHOICES = {"job": "oxproxy.*", "instance": ".*", "rabbitmq": "rabbitmq", "__rate_interval": "10s", "__range": "1m"}


class Expression(NamedTuple):
    """An expression and its source."""

    where: str
    text: str


def with_choices(text: str, choices: Mapping[str, str] = CHOICES) -> str:
    """Return an expression of a dashboard with values in place of Grafana's variables."""
    for name, value in choices.items():
        text = re.sub(rf"\${name}\b", value, text)
    return text


def always_answered(text: str) -> str:
    """Return the expression without ``absent``, and with comparisons changed so that they return 0 or 1."""
    text = re.sub(r"^absent\((.*)\)$", r"\1", text)
    return re.sub(r"(?<=\s)(==|!=|>=|<=|>|<)(?=\s)", r"\1 bool", text)


def of_rules() -> Iterator[Expression]:
    """Yield the expressions of alerts and recording rules."""
    for rule in rules():
        yield Expression(rule.get("alert") or rule["record"], rule["expr"])


def of_dashboards() -> Iterator[Expression]:
    """Yield the expressions of panels and annotations."""
    for dashboard in DASHBOARDS:
        model: dict[str, Any] = dashboard.json()
        for panel in model["panels"]:
            for target in panel.get("targets", ()):
                yield Expression(f"{dashboard.uid}, {panel['title']}, {target['refId']}", target["expr"])
        for mark in model["annotations"]["list"]:
            yield Expression(f"{dashboard.uid}, mark {mark['name']}", mark["expr"])


def of_variables() -> Iterator[Expression]:
    """Yield an expression for each variable at the top of a dashboard."""
    for dashboard in DASHBOARDS:
        for variable in dashboard.variables:
            query = re.fullmatch(r"label_values\((.*), (\w+)\)", variable.query)
            assert query, variable.query
            metric, label = query.groups()
            yield Expression(f"{dashboard.uid}, variable {variable.name}", f"group by ({label}) ({metric})")


def of_runbooks() -> Iterator[Expression]:
    """Yield the expressions in runbooks and operations.md."""
    for page in (ROOT / "docs" / "how-to" / "operations.md", *sorted((ROOT / "docs" / "runbooks").glob("*.md"))):
        for number, text in enumerate(re.findall(r"```promql\n(.*?)```", page.read_text(), re.DOTALL), 1):
            yield Expression(f"{page.name}, {number}", text)


def every_expression() -> list[Expression]:
    return [*of_rules(), *of_dashboards(), *of_variables(), *of_runbooks()]
