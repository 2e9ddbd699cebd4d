"""The dashboard for the broker side: confirms, connections, other brokers, and RabbitMQ's own metrics.

The last row requires RabbitMQ's plugin rabbitmq_prometheus, and uses the metrics of RabbitMQ 3.10 and newer.
"""

from __future__ import annotations

from deploy.grafana.dashboard import Dashboard, Row, Variable
from deploy.grafana.panels import RED, Heatmap, Lines, Number, Query, States
from deploy.grafana.selectors import MARKS, VARIABLES, chosen, per_second, per_sidecar, quantile, rate, summed, total

_RABBITMQ = Variable("rabbitmq", "RabbitMQ", "label_values(rabbitmq_build_info, job)")


def _broker(metric: str) -> str:
    return f'{metric}{{job=~"$rabbitmq"}}'


def _held(metric: str, legend: str) -> Query:
    return Query(total(_broker(metric)), legend)


def _grown(metric: str, legend: str) -> Query:
    return Query(total(f"rate({_broker(metric)}[$__rate_interval])"), legend)


_CONFIRMS = Row(
    "Confirms",
    [
        Heatmap(
            "Confirm latency",
            "Time from a publish to the broker's confirm.",
            [Query(total(rate("oxproxy_confirm_seconds_bucket"), "le"), "{{le}}", heatmap=True)],
            "s",
        ),
        Lines(
            "Confirm latency percentiles",
            "Time from a publish to the broker's confirm.",
            [Query(quantile(share, "oxproxy_confirm_seconds"), f"p{share * 100:.0f}") for share in (0.5, 0.9, 0.99)],
            "s",
            logarithmic=True,
        ),
        Lines(
            "Confirms by result",
            "Nacked: a queue refused the message or failed.",
            [
                per_second("oxproxy_confirms_total", "result"),
                per_second("oxproxy_returns_total", legend="returned"),
            ],
            "cps",
        ),
    ],
)

_CONNECTIONS = Row(
    "Connections",
    [
        Lines(
            "Open connections",
            "Connections to the broker and from producers. Their numbers should be equal.",
            [
                summed("oxproxy_connections", "side"),
                summed("oxproxy_channels", legend="channels"),
                summed("oxproxy_connections_kept", legend="kept for another producer"),
            ],
            width=6,
        ),
        Lines(
            "Connection attempts",
            "Attempts by side and result.",
            [
                per_second("oxproxy_connections_total", "side", "result"),
                per_second("oxproxy_connections_reused_total", legend="upstream reused"),
            ],
            "cps",
            width=6,
        ),
        Lines(
            "Back-pressure",
            "Connections blocked by RabbitMQ, and producers whose sockets are not being read.",
            [
                per_sidecar("oxproxy_upstream_blocked", "blocked"),
                per_sidecar("oxproxy_paused_producers", "paused"),
                per_sidecar("oxproxy_throttled_producers", "rate limited"),
            ],
            width=6,
        ),
        Lines(
            "Protocol errors",
            "Channels and connections that the sidecar or RabbitMQ closed because of an error, by reply code.",
            [
                per_second("oxproxy_protocol_errors_total", "reply_code", legend="sidecar: {{reply_code}}"),
                per_second("oxproxy_broker_closes_total", "reply_code", legend="RabbitMQ: {{reply_code}}"),
            ],
            "cps",
            width=6,
        ),
        Lines(
            "Limit hits",
            "Limits that producers reached, and rejected connections.",
            [
                per_second("oxproxy_limit_hits_total", "limit"),
                per_second("oxproxy_connections_rejected_total", "reason", legend="rejected: {{reason}}"),
            ],
            "cps",
        ),
        Lines(
            "Control task failures",
            "Unexpected exceptions in tasks of the control plane.",
            [per_second("oxproxy_control_loop_failures_total", "task")],
            "cps",
        ),
        Lines(
            "Certificate expiry",
            "Remaining validity of the certificates presented to producers (downstream) and brokers (upstream).",
            [
                Query(
                    f"min by (side, file) ({chosen('oxproxy_certificate_expiry_timestamp_seconds')}) - time()",
                    "{{side}} {{file}}",
                )
            ],
            "s",
        ),
    ],
)

_REMOTES = Row(
    "Other brokers",
    [
        States(
            "Remote links",
            "State of the link to each broker: up or down.",
            [Query(f"min by (broker) ({chosen('oxproxy_remote_up')})", "{{broker}}")],
            width=12,
        ),
        Lines(
            "Publish rate by result",
            "Publishes to other brokers.",
            [
                per_second("oxproxy_remote_publishes_total", "broker", "result"),
                per_second("oxproxy_failed_translations_total", legend="failed translations"),
            ],
            "cps",
            width=12,
        ),
    ],
)

_OWN = Row(
    "RabbitMQ",
    [
        Lines(
            "Publish rate: sidecars and RabbitMQ",
            "RabbitMQ's value includes messages from producers that are connected directly to the broker.",
            [
                per_second("oxproxy_publishes_total", where='outcome!~"rejected|filtered"', legend="sent by sidecars"),
                _grown("rabbitmq_global_messages_received_total", "received by RabbitMQ"),
            ],
            "cps",
        ),
        Lines(
            "Unroutable messages on the broker",
            "Messages for which the broker had no queue.",
            [
                _grown("rabbitmq_global_messages_unroutable_dropped_total", "dropped"),
                _grown("rabbitmq_global_messages_unroutable_returned_total", "returned"),
            ],
            "cps",
        ),
        Lines(
            "Messages in queues",
            "Ready and unacknowledged messages.",
            [
                _held("rabbitmq_queue_messages_ready", "ready"),
                _held("rabbitmq_queue_messages_unacked", "unacked"),
            ],
        ),
        Number(
            "Alarms",
            "During a memory, disk or file descriptor alarm, RabbitMQ blocks publishers.",
            [
                Query(f"max({_broker('rabbitmq_alarms_memory_used_watermark')})", "memory"),
                Query(f"max({_broker('rabbitmq_alarms_free_disk_space_watermark')})", "disk"),
                Query(f"max({_broker('rabbitmq_alarms_file_descriptor_limit')})", "descriptors"),
            ],
            thresholds=((1, RED),),
            width=8,
            height=8,
        ),
        Lines(
            "Memory",
            "Resident memory and its limit.",
            [
                _held("rabbitmq_process_resident_memory_bytes", "in use"),
                _held("rabbitmq_resident_memory_limit_bytes", "limit"),
            ],
            "bytes",
        ),
        Lines(
            "Connections and channels",
            "Open connections and channels on the broker.",
            [
                _held("rabbitmq_connections", "connections"),
                _held("rabbitmq_channels", "channels"),
            ],
        ),
    ],
)

BROKER = Dashboard(
    "oxproxy-broker",
    "Sidecar: broker side",
    "Confirm latency, connections, other brokers, RabbitMQ's own metrics.",
    (*VARIABLES, _RABBITMQ),
    MARKS,
    [_CONFIRMS, _CONNECTIONS, _REMOTES, _OWN],
)
