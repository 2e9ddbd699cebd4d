"""The overview dashboard: traffic by outcome, unroutable messages, latency, saturation, audit log, processes."""

from __future__ import annotations

from deploy.grafana.dashboard import Dashboard, Row
from deploy.grafana.panels import RED, YELLOW, Bars, Lines, Number, Query
from deploy.grafana.selectors import (
    MARKS,
    VARIABLES,
    chosen,
    increase,
    per_second,
    per_sidecar,
    quantile,
    rate,
    summed,
    total,
)

_UNDELIVERED = 'outcome=~"unrouted|filtered|rejected"'
_PUBLISHES = "oxproxy_publishes_total"

_NOW = Row(
    "Summary",
    [
        Number("Publish rate", "Publishes per second.", [per_second(_PUBLISHES)], "cps"),
        Number(
            "Unroutable share",
            "Share of publishes that were unrouted, filtered or rejected.",
            [Query(f"{total(rate(_PUBLISHES, _UNDELIVERED))} / {total(rate(_PUBLISHES))}")],
            "percentunit",
            thresholds=((0.01, YELLOW), (0.05, RED)),
        ),
        Number(
            "Confirm latency p99",
            "Time from a publish to the broker's confirm, 99th percentile.",
            [Query(quantile(0.99, "oxproxy_confirm_seconds"))],
            "s",
            thresholds=((0.25, YELLOW), (1, RED)),
        ),
        Number(
            "Missing destinations",
            "Queues and exchanges that are named in the rules but do not exist.",
            [summed("oxproxy_topology_missing_destinations")],
            thresholds=((1, RED),),
        ),
        Number(
            "Producers",
            "Open producer connections.",
            [Query(total(chosen("oxproxy_connections", 'side="downstream"')))],
        ),
        Number(
            "Sidecars",
            "Sidecars that Prometheus scrapes.",
            [Query(f"count({chosen('oxproxy_build_info')})")],
        ),
    ],
)

_WHERE = Row(
    "Traffic",
    [
        Lines(
            "Publish rate by outcome",
            "The outcome `passed` means that no rule applied to the publish.",
            [per_second(_PUBLISHES, "outcome")],
            "cps",
            stacked=True,
        ),
        Lines(
            "Publish rate by exchange",
            "The series `other` contains all exchanges that are not in rules files.",
            [per_second(_PUBLISHES, "vhost", "exchange")],
            "cps",
            stacked=True,
        ),
        Bars(
            "Publish rate by destination",
            "The 15 queues and exchanges in the rules that receive the most messages.",
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
            "Body bytes by exchange",
            "Bytes of message bodies per second.",
            [per_second("oxproxy_publish_bytes_total", "exchange")],
            "Bps",
            width=12,
            stacked=True,
        ),
        Lines(
            "Publish rate by sidecar",
            "Shows how publishes are distributed among sidecars.",
            [per_second(_PUBLISHES, "instance")],
            "cps",
            width=12,
        ),
    ],
)

_NOBODY = Row(
    "Unroutable messages",
    [
        Lines(
            "Unroutable messages by exchange",
            "Unrouted: the rules selected no destination. Filtered: a filter dropped the message. Rejected: a filter "
            "closed the channel.",
            [per_second(_PUBLISHES, "exchange", "outcome", where=_UNDELIVERED)],
            "cps",
        ),
        Lines(
            "Returns and nacks",
            "Only mandatory messages are returned.",
            [
                per_second("oxproxy_returns_total", legend="returned"),
                per_second("oxproxy_confirms_total", where='result="nacked"', legend="nacked"),
            ],
            "cps",
        ),
        Lines(
            "Missing destinations",
            "Number of missing destinations per sidecar. /status contains their names and the reasons.",
            [per_sidecar("oxproxy_topology_missing_destinations")],
        ),
    ],
)

_SLOW = Row(
    "Latency and saturation",
    [
        Lines(
            "Confirm and decision latency",
            "Confirm: from a publish to the broker's confirm. Decision: evaluation of the rules after a cache miss.",
            [
                Query(quantile(0.5, "oxproxy_confirm_seconds"), "confirm p50"),
                Query(quantile(0.99, "oxproxy_confirm_seconds"), "confirm p99"),
                Query(quantile(0.99, "oxproxy_decision_seconds"), "decision p99"),
            ],
            "s",
            logarithmic=True,
        ),
        Lines(
            "CPU usage",
            "Share of one core. At 100 %, producers wait for the sidecar.",
            [Query(rate("process_cpu_seconds_total"), "{{instance}}")],
            "percentunit",
        ),
        Lines(
            "Back-pressure",
            "Blocked: connections from which RabbitMQ does not read. Paused: producers from which the sidecar does not "
            "read.",
            [
                summed("oxproxy_upstream_blocked", legend="blocked by the broker"),
                summed("oxproxy_paused_producers", legend="paused producers"),
            ],
        ),
    ],
)

_AUDIT = Row(
    "Audit log",
    [
        Number(
            "Dropped records",
            "Audit records dropped in the selected time range.",
            [Query(total(increase("oxproxy_audit_dropped_total")))],
            thresholds=((1, RED),),
            width=6,
            height=8,
        ),
        Lines(
            "Records written and dropped",
            "One record per publish, and additional records for the broker's responses.",
            [
                per_second("oxproxy_audit_lines_total", legend="written"),
                per_second("oxproxy_audit_dropped_total", legend="dropped"),
            ],
            "cps",
            width=6,
        ),
        Lines(
            "Disk errors",
            "1 while the disk refuses writes. Depending on `audit.mode`, producers wait or records are dropped.",
            [per_sidecar("oxproxy_audit_failing")],
            width=6,
        ),
        Lines(
            "Audit bytes written",
            "Bytes per second, before compression.",
            [per_second("oxproxy_audit_bytes_total", "instance")],
            "Bps",
            width=6,
        ),
    ],
)

_PROCESSES = Row(
    "Processes",
    [
        Lines(
            "Memory",
            "Resident memory of each sidecar.",
            [per_sidecar("process_resident_memory_bytes")],
            "bytes",
        ),
        Lines(
            "File descriptors",
            "Share of descriptors in use. Each producer uses two descriptors.",
            [Query(f"{chosen('process_open_fds')} / {chosen('process_max_fds')}", "{{instance}}")],
            "percentunit",
        ),
        Lines(
            "Uptime",
            "Time since the process started.",
            [Query(f"time() - {chosen('process_start_time_seconds')}", "{{instance}}")],
            "s",
        ),
    ],
)

OVERVIEW = Dashboard(
    "oxproxy-overview",
    "Sidecar: overview",
    "Traffic by outcome, unroutable messages, latency of broker and sidecar, audit log, processes.",
    VARIABLES,
    MARKS,
    [_NOW, _WHERE, _NOBODY, _SLOW, _AUDIT, _PROCESSES],
)
