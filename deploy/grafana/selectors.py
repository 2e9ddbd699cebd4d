"""Which series do all dashboards look at, and how are rates written?

Every expression is limited to the jobs and instances that are chosen at the top of the dashboard.
"""

from __future__ import annotations

from collections.abc import Sequence

from deploy.grafana.dashboard import Mark, Variable
from deploy.grafana.panels import Query

#: Chosen at the top of each dashboard.
VARIABLES = (
    Variable("job", "Job", "label_values(oxproxy_build_info, job)"),
    Variable("instance", "Sidecar", 'label_values(oxproxy_build_info{job=~"$job"}, instance)'),
)

_CHOSEN = 'job=~"$job", instance=~"$instance"'


def chosen(metric: str, *matchers: str) -> str:
    """Return a selector of the chosen sidecars."""
    return f"{metric}{{{', '.join((_CHOSEN, *matchers))}}}"


def rate(metric: str, *matchers: str) -> str:
    """Return how much a counter grows in a second."""
    return f"rate({chosen(metric, *matchers)}[$__rate_interval])"


def increase(metric: str, *matchers: str) -> str:
    """Return how much a counter has grown over the whole time shown."""
    return f"increase({chosen(metric, *matchers)}[$__range])"


def total(expression: str, *labels: str) -> str:
    """Return a sum, by ``labels`` where there are any."""
    return f"sum by ({', '.join(labels)}) ({expression})" if labels else f"sum({expression})"


def per_second(metric: str, *labels: str, where: str = "", legend: str = "") -> Query:
    """Ask how much counters grow in a second, by ``labels``.

    Args:
        metric: name of the counters.
        labels: what they are told apart by.
        where: which of the chosen ones, all where it is empty.
        legend: what a line is called; else the values of its labels.
    """
    matchers = (where,) if where else ()
    return Query(total(rate(metric, *matchers), *labels), legend or _values(labels))


def summed(metric: str, *labels: str, legend: str = "") -> Query:
    """Ask what gauges come to, by ``labels``; see `per_second`."""
    return Query(total(chosen(metric), *labels), legend or _values(labels))


def each(metric: str, what: str = "") -> Query:
    """Ask for a gauge of each sidecar, with ``what`` it is next to the sidecar's address."""
    return Query(chosen(metric), f"{{{{instance}}}} {what}".rstrip())


def _values(labels: Sequence[str]) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in labels)


def quantile(share: float, histogram: str) -> str:
    """Return the value below which ``share`` of the observations lie."""
    return f"histogram_quantile({share}, {total(rate(f'{histogram}_bucket'), 'le')})"


#: A vertical line where a version of the rules comes into force that was not there a minute before.
NEW_RULES = Mark(
    "New rules",
    Query(
        f"count by (version) ({chosen('oxproxy_rules_info')})"
        f" unless count by (version) ({chosen('oxproxy_rules_info')} offset 1m)",
        "rules {{version}}",
    ),
    "blue",
)

#: A vertical line where a sidecar has been started.
STARTED = Mark(
    "Sidecar started",
    Query(f"changes({chosen('process_start_time_seconds')}[1m]) > 0", "{{instance}} started"),
    "orange",
)

MARKS = (NEW_RULES, STARTED)
