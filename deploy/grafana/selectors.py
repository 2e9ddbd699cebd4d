"""Which series do all dashboards look at, and how are rates written?

Every expression is limited to the jobs and instances that are chosen at the top of the dashboard.
"""

from __future__ import annotations

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
