"""Selectors and rates used in all dashboards.

All expressions are limited to the jobs and instances selected at the top of the dashboard.
"""

from __future__ import annotations

from collections.abc import Sequence

from deploy.grafana.dashboard import Mark, Variable
from deploy.grafana.panels import Query

#: Variables at the top of each dashboard.
VARIABLES = (
    Variable("job", "Job", "label_values(oxproxy_build_info, job)"),
    Variable("instance", "Sidecar", 'label_values(oxproxy_build_info{job=~"$job"}, instance)'),
)

_CHOSEN = 'job=~"$job", instance=~"$instance"'


def chosen(metric: str, *matchers: str) -> str:
    """Return a selector for a metric of the selected sidecars."""
    return f"{metric}{{{', '.join((_CHOSEN, *matchers))}}}"


def rate(metric: str, *matchers: str) -> str:
    """Return the expression for the increase of a counter per second."""
    return f"rate({chosen(metric, *matchers)}[$__rate_interval])"


def increase(metric: str, *matchers: str) -> str:
    """Return the expression for the increase of a counter over the displayed time range."""
    return f"increase({chosen(metric, *matchers)}[$__range])"


def total(expression: str, *labels: str) -> str:
    """Return a sum, by ``labels`` if there are any."""
    return f"sum by ({', '.join(labels)}) ({expression})" if labels else f"sum({expression})"


def per_second(metric: str, *labels: str, where: str = "", legend: str = "") -> Query:
    """Return a query for the increase of counters per second, by ``labels``.

    Args:
        metric: name of the counters.
        labels: labels that the result has.
        where: further matcher; empty if there is none.
        legend: name of a series; empty for the values of its labels.
    """
    matchers = (where,) if where else ()
    return Query(total(rate(metric, *matchers), *labels), legend or _values(labels))


def summed(metric: str, *labels: str, legend: str = "") -> Query:
    """Return a query for the sum of gauges, by ``labels``; see `per_second`."""
    return Query(total(chosen(metric), *labels), legend or _values(labels))


def per_sidecar(metric: str, suffix: str = "") -> Query:
    """Return a query for a gauge of each sidecar; ``suffix`` follows the sidecar's address in the legend."""
    return Query(chosen(metric), f"{{{{instance}}}} {suffix}".rstrip())


def _values(labels: Sequence[str]) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in labels)


def quantile(share: float, histogram: str) -> str:
    """Return the expression for a quantile; ``share`` is 0.5 for the median."""
    return f"histogram_quantile({share}, {total(rate(f'{histogram}_bucket'), 'le')})"


#: A vertical line when a rules version becomes active that was not active a minute earlier.
NEW_RULES = Mark(
    "New rules",
    Query(
        f"count by (version) ({chosen('oxproxy_rules_info')})"
        f" unless count by (version) ({chosen('oxproxy_rules_info')} offset 1m)",
        "rules {{version}}",
    ),
    "blue",
)

#: A vertical line when a sidecar has been started.
STARTED = Mark(
    "Sidecar started",
    Query(f"changes({chosen('process_start_time_seconds')}[1m]) > 0", "{{instance}} started"),
    "orange",
)

MARKS = (NEW_RULES, STARTED)
