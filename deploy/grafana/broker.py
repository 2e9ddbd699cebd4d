"""The dashboard for the side of the broker: confirms, connections, other brokers, and RabbitMQ's own numbers.

The last row needs RabbitMQ's plugin rabbitmq_prometheus; its metrics are those of RabbitMQ 3.10 and newer.
"""

from __future__ import annotations

from deploy.grafana.dashboard import Dashboard, Row, Variable
from deploy.grafana.panels import RED, Heatmap, Lines, Number, Query, States
from deploy.grafana.selectors import MARKS, VARIABLES, chosen, each, per_second, quantile, rate, summed, total

_RABBITMQ = Variable("rabbitmq", "RabbitMQ", "label_values(rabbitmq_build_info, job)")


def _broker(metric: str) -> str:
    return f'{metric}{{job=~"$rabbitmq"}}'


def _held(metric: str, legend: str) -> Query:
    return Query(total(_broker(metric)), legend)


def _grown(metric: str, legend: str) -> Query:
    return Query(total(f"rate({_broker(metric)}[$__rate_interval])"), legend)


_CONFIRMS = Row(
    "Is the broker slow?",
    [
        Heatmap(
            "Confirms",
            "How long from a publish to the broker's confirm?",
            [Query(total(rate("oxproxy_confirm_seconds_bucket"), "le"), "{{le}}", heatmap=True)],
            "s",
        ),
        Lines(
            "Slowest confirms",
            "How long do the middle one, the slowest tenth and the slowest hundredth take?",
            [Query(quantile(share, "oxproxy_confirm_seconds"), f"{share:.0%}") for share in (0.5, 0.9, 0.99)],
            "s",
            logarithmic=True,
        ),
        Lines(
            "Confirms by result",
            "Does the broker take what it gets? Nacked: a queue refused it or failed.",
            [
                per_second("oxproxy_confirms_total", "result"),
                per_second("oxproxy_returns_total", legend="returned"),
            ],
            "cps",
        ),
    ],
)

_CONNECTIONS = Row(
    "Do producers get through?",
    [
        Lines(
            "Open connections",
            "Are there as many to the broker as from producers?",
            [
                summed("oxproxy_connections", "side"),
                summed("oxproxy_channels", legend="channels"),
                summed("oxproxy_connections_kept", legend="kept for another producer"),
            ],
            width=6,
        ),
        Lines(
            "Attempts",
            "How do attempts to connect end, on either side?",
            [
                per_second("oxproxy_connections_total", "side", "result"),
                per_second("oxproxy_connections_reused_total", legend="upstream reused"),
            ],
            "cps",
            width=6,
        ),
        Lines(
            "Held back",
            "Which sidecars does RabbitMQ block, and where are producers not being read?",
            [
                each("oxproxy_upstream_blocked", "blocked"),
                each("oxproxy_paused_producers", "paused"),
                each("oxproxy_throttled_producers", "above their rate"),
            ],
            width=6,
        ),
        Lines(
            "Closed by the sidecar",
            "Which reply codes did it close channels and connections with?",
            [per_second("oxproxy_protocol_errors_total", "reply_code")],
            "cps",
            width=6,
        ),
        Lines(
            "Limits",
            "Which limits do producers run into, and which keep them out?",
            [
                per_second("oxproxy_limit_hits_total", "limit"),
                per_second("oxproxy_connections_turned_away_total", "reason", legend="kept out: {{reason}}"),
            ],
            "cps",
        ),
        Lines(
            "Workers",
            "How many answer, do they end by themselves, and does a task of the control plane fail?",
            [
                Query(f"count({chosen('oxproxy_workers')})", "workers that answer"),
                Query(rate("oxproxy_worker_restarts_total"), "{{instance}} started again, a second"),
                per_second(
                    "oxproxy_control_loop_failures_total", "task", legend="control task {{task}} failed, a second"
                ),
            ],
        ),
        Lines(
            "Certificates",
            "How long are the sidecars' own certificates good: to producers (downstream), to brokers (upstream)?",
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
    "Other brokers that address rules lead to",
    [
        States(
            "Links",
            "Which links stood when?",
            [Query(f"min by (broker) ({chosen('oxproxy_remote_up')})", "{{broker}}")],
            width=12,
        ),
        Lines(
            "Publishes",
            "What becomes of the publishes to them?",
            [
                per_second("oxproxy_remote_publishes_total", "broker", "result"),
                per_second("oxproxy_failed_translations_total", legend="sent nowhere by a rule"),
            ],
            "cps",
            width=12,
        ),
    ],
)

_OWN = Row(
    "RabbitMQ's own numbers",
    [
        Lines(
            "Counted here and there",
            "Does the broker get what the sidecars send? It also counts publishers that come without one.",
            [
                per_second("oxproxy_publishes_total", where='outcome!~"rejected|filtered"', legend="sent by sidecars"),
                _grown("rabbitmq_global_messages_received_total", "received by RabbitMQ"),
            ],
            "cps",
        ),
        Lines(
            "Unroutable",
            "What did the broker itself have no queue for?",
            [
                _grown("rabbitmq_global_messages_unroutable_dropped_total", "dropped"),
                _grown("rabbitmq_global_messages_unroutable_returned_total", "returned"),
            ],
            "cps",
        ),
        Lines(
            "Messages in queues",
            "Do queues grow?",
            [
                _held("rabbitmq_queue_messages_ready", "ready"),
                _held("rabbitmq_queue_messages_unacked", "unacked"),
            ],
        ),
        Number(
            "Alarms",
            "Is it short of memory, disk or file descriptors? Then it blocks publishers.",
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
            "How near is its limit?",
            [
                _held("rabbitmq_process_resident_memory_bytes", "in use"),
                _held("rabbitmq_resident_memory_limit_bytes", "limit"),
            ],
            "bytes",
        ),
        Lines(
            "Connections and channels",
            "How many does it hold?",
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
    "How fast the broker confirms, whether producers get through to it, other brokers, RabbitMQ's own numbers.",
    (*VARIABLES, _RABBITMQ),
    MARKS,
    [_CONFIRMS, _CONNECTIONS, _REMOTES, _OWN],
)
