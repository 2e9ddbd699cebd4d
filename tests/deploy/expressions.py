"""Every PromQL expression that we deliver, in the form in which a test can ask a Prometheus for data.

Grafana's variables get values, as Grafana would give them. Comparisons, which give nothing where all is well, give 0 or
1 instead, so that a healthy sidecar answers them too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from deploy.grafana.build import DASHBOARDS
from tests.deploy.prometheus import ROOT, rules

#: What people would have chosen, and the ranges that Grafana makes of scrape interval and time shown.
CHOICES = {"job": "oxproxy.*", "instance": ".*", "rabbitmq": "rabbitmq", "__rate_interval": "10s", "__range": "1m"}


class Expression(NamedTuple):
    """One expression and where it stands."""

    where: str
    text: str


def with_choices(text: str, choices: Mapping[str, str] = CHOICES) -> str:
    """Return an expression of a dashboard with values for Grafana's variables."""
    for name, value in choices.items():
        text = re.sub(rf"\${name}\b", value, text)
    return text


def always_answered(text: str) -> str:
    """Return the expression with comparisons that give 0 or 1, and without ``absent``."""
    text = re.sub(r"^absent\((.*)\)$", r"\1", text)
    return re.sub(r"(?<=\s)(==|!=|>=|<=|>|<)(?=\s)", r"\1 bool", text)


def of_rules() -> Iterator[Expression]:
    """Yield the expressions of alerts and recording rules."""
    for rule in rules():
        yield Expression(rule.get("alert") or rule["record"], rule["expr"])


def of_dashboards() -> Iterator[Expression]:
    """Yield the expressions of panels and marks."""
    for dashboard in DASHBOARDS:
        model: dict[str, Any] = dashboard.json()
        for panel in model["panels"]:
            for target in panel.get("targets", ()):
                yield Expression(f"{dashboard.uid}, {panel['title']}, {target['refId']}", target["expr"])
        for mark in model["annotations"]["list"]:
            yield Expression(f"{dashboard.uid}, mark {mark['name']}", mark["expr"])


def of_variables() -> Iterator[Expression]:
    """Yield an expression for each choice at the top of a dashboard."""
    for dashboard in DASHBOARDS:
        for variable in dashboard.variables:
            found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable.query)
            assert found, variable.query
            metric, label = found.groups()
            yield Expression(f"{dashboard.uid}, variable {variable.name}", f"group by ({label}) ({metric})")


def of_runbooks() -> Iterator[Expression]:
    """Yield the expressions that runbooks and operations tell people to ask for."""
    for page in (ROOT / "docs" / "how-to" / "operations.md", *sorted((ROOT / "docs" / "runbooks").glob("*.md"))):
        for number, text in enumerate(re.findall(r"```promql\n(.*?)```", page.read_text(), re.DOTALL), 1):
            yield Expression(f"{page.name}, {number}", text)


def every_expression() -> list[Expression]:
    """Return all of them."""
    return [*of_rules(), *of_dashboards(), *of_variables(), *of_runbooks()]
