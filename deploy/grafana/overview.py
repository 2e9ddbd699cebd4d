"""The first dashboard to open: where do messages go, what reaches nobody, who is slow, is it written down?"""

from __future__ import annotations

from deploy.grafana.dashboard import Dashboard, Row
from deploy.grafana.panels import RED, YELLOW, Bars, Lines, Number, Query
from deploy.grafana.selectors import MARKS, VARIABLES, chosen, each, increase, per_second, quantile, rate, summed, total

_UNDELIVERED = 'outcome=~"unrouted|filtered|rejected"'
_PUBLISHES = "oxproxy_publishes_total"

_NOW = Row(
    "Now",
    [
        Number("Publishes", "How much goes through?", [per_second(_PUBLISHES)], "cps"),
        Number(
            "Reach nobody",
            "What share of the publishes was unrouted, filtered or rejected?",
            [Query(f"{total(rate(_PUBLISHES, _UNDELIVERED))} / {total(rate(_PUBLISHES))}")],
            "percentunit",
            thresholds=((0.01, YELLOW), (0.05, RED)),
        ),
        Number(
            "Confirm, 99 %",
            "How long does the slowest hundredth of the confirms take?",
            [Query(quantile(0.99, "oxproxy_confirm_seconds"))],
            "s",
            thresholds=((0.25, YELLOW), (1, RED)),
        ),
        Number(
            "Missing destinations",
            "How many queues and exchanges that rules name are not there?",
            [summed("oxproxy_topology_missing_destinations")],
            thresholds=((1, RED),),
        ),
        Number(
            "Producers",
            "How many connections of producers are open?",
            [Query(total(chosen("oxproxy_connections", 'side="downstream"')))],
        ),
        Number(
            "Sidecars",
            "How many sidecars answer?",
            [Query(f"count({chosen('oxproxy_build_info')})")],
        ),
    ],
)

_WHERE = Row(
    "Where do messages go?",
    [
        Lines(
            "By outcome",
            "What becomes of publishes? Passed: to exchanges that no rule names.",
            [per_second(_PUBLISHES, "outcome")],
            "cps",
            stacked=True,
        ),
        Lines(
            "By exchange",
            "Which exchanges do they go to? Other: all that no rule names.",
            [per_second(_PUBLISHES, "vhost", "exchange")],
            "cps",
            stacked=True,
        ),
        Bars(
            "By destination",
            "Which of the queues and exchanges that rules name get most?",
            [
                Query(
                    f"topk(15, {total(rate('oxproxy_destination_publishes_total'), 'vhost', 'destination')})",
                    "{{vhost}} {{destination}}",
                    instant=True,
                )
            ],
            "cps",
        ),
        Lines(
            "Bytes of bodies",
            "How much is in them?",
            [per_second("oxproxy_publish_bytes_total", "exchange")],
            "Bps",
            width=12,
            stacked=True,
        ),
        Lines(
            "By sidecar",
            "Do producers spread over the sidecars, and over the workers of each?",
            [per_second(_PUBLISHES, "instance")],
            "cps",
            width=12,
        ),
    ],
)

_NOBODY = Row(
    "What reaches nobody, and what is refused?",
    [
        Lines(
            "Reach nobody, by exchange",
            "Unrouted: no binding was true. Filtered: dropped by a silent filter. Rejected: refused by a loud one.",
            [per_second(_PUBLISHES, "exchange", "outcome", where=_UNDELIVERED)],
            "cps",
        ),
        Lines(
            "Returned and nacked",
            "What did producers hear of it? Only mandatory messages are returned.",
            [
                per_second("oxproxy_returns_total", legend="returned"),
                per_second("oxproxy_confirms_total", where='result="nacked"', legend="nacked"),
            ],
            "cps",
        ),
        Lines(
            "Missing destinations",
            "Which sidecar misses queues or exchanges? Its /status has their names and why.",
            [each("oxproxy_topology_missing_destinations")],
        ),
    ],
)

_SLOW = Row(
    "Is the broker slow, or the sidecar?",
    [
        Lines(
            "Confirms and decisions",
            "Confirm: from publish to the broker's answer. Decision: our own part of it, where it had to be made.",
            [
                Query(quantile(0.5, "oxproxy_confirm_seconds"), "confirm, 50 %"),
                Query(quantile(0.99, "oxproxy_confirm_seconds"), "confirm, 99 %"),
                Query(quantile(0.99, "oxproxy_decision_seconds"), "decision, 99 %"),
            ],
            "s",
            logarithmic=True,
        ),
        Lines(
            "Processor",
            "How much of its core does each sidecar use? At 1 producers wait for it.",
            [Query(rate("process_cpu_seconds_total"), "{{instance}}")],
            "percentunit",
        ),
        Lines(
            "Held back",
            "Blocked: connections that RabbitMQ takes nothing from. Paused: producers that are not being read.",
            [
                summed("oxproxy_upstream_blocked", legend="blocked by the broker"),
                summed("oxproxy_paused_producers", legend="paused producers"),
            ],
        ),
    ],
)

_AUDIT = Row(
    "What did the audit log lose?",
    [
        Number(
            "Lines lost",
            "How many lines were given up in the time shown?",
            [Query(total(increase("oxproxy_audit_dropped_total")))],
            thresholds=((1, RED),),
            width=6,
            height=8,
        ),
        Lines(
            "Lines written and lost",
            "Does the log keep up? One line for each publish, and some for what the broker said later.",
            [
                per_second("oxproxy_audit_lines_total", legend="written"),
                per_second("oxproxy_audit_dropped_total", legend="lost"),
            ],
            "cps",
            width=6,
        ),
        Lines(
            "Disk refuses",
            "Does the disk take no lines? 1 meanwhile: by `audit.mode` producers wait, or lines are lost.",
            [each("oxproxy_audit_failing")],
            width=6,
        ),
        Lines(
            "Audit text",
            "How much does the disk take, before compression?",
            [per_second("oxproxy_audit_bytes_total", "instance")],
            "Bps",
            width=6,
        ),
    ],
)

_PROCESSES = Row(
    "Sidecars",
    [
        Lines(
            "Memory",
            "Does one of them grow?",
            [each("process_resident_memory_bytes")],
            "bytes",
        ),
        Lines(
            "File descriptors",
            "What share is in use? Each producer takes two.",
            [Query(f"{chosen('process_open_fds')} / {chosen('process_max_fds')}", "{{instance}}")],
            "percentunit",
        ),
        Lines(
            "Running since",
            "Was one of them started again?",
            [Query(f"time() - {chosen('process_start_time_seconds')}", "{{instance}}")],
            "s",
        ),
    ],
)

OVERVIEW = Dashboard(
    "oxproxy-overview",
    "Sidecar: overview",
    "Where messages go, what reaches nobody, whether broker or sidecar is slow, what the audit log lost.",
    VARIABLES,
    MARKS,
    [_NOW, _WHERE, _NOBODY, _SLOW, _AUDIT, _PROCESSES],
)
