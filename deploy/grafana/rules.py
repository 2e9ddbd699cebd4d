"""The dashboard for authors of rules: versions, binding matches, unroutable messages, decision latency."""

from __future__ import annotations

from deploy.grafana.dashboard import Dashboard, Row
from deploy.grafana.panels import RED, Heatmap, Lines, Number, Query, States, Table
from deploy.grafana.selectors import MARKS, VARIABLES, chosen, increase, per_second, quantile, rate, summed, total

_PUBLISHES = "oxproxy_publishes_total"
_MATCHES = "oxproxy_binding_matches_total"
_NAMED = 'binding!="other"'
_BINDING = (("vhost", "Virtual host"), ("exchange", "Exchange"), ("binding", "Binding"))


def _share(outcome: str) -> Query:
    of_exchange = total(rate(_PUBLISHES, 'exchange!="other"'), "exchange")
    had_outcome = total(rate(_PUBLISHES, 'exchange!="other"', f'outcome="{outcome}"'), "exchange")
    return Query(f"{had_outcome} / {of_exchange}", f"{{{{exchange}}}} {outcome}")


_CHANGES = Row(
    "Active rules",
    [
        States(
            "Rules versions over time",
            "If several versions stay active for a long time, sidecars have different rules.",
            [Query(f"count by (instance, version) ({chosen('oxproxy_rules_info')})", "{{instance}} {{version}}")],
            width=8,
        ),
        Number(
            "Last reload",
            "Time since the active rules were loaded.",
            [Query(f"time() - max({chosen('oxproxy_rules_last_reload_success_timestamp_seconds')})")],
            "s",
            height=8,
        ),
        Number(
            "Reload failures",
            "Failures in the selected time range. The log and /status contain every error.",
            [Query(total(increase("oxproxy_rules_reload_total", 'result="error"')))],
            thresholds=((1, RED),),
            height=8,
        ),
        Number(
            "Outdated virtual hosts",
            "Virtual hosts whose previous rules are active, because the last reload failed for them.",
            [Query(f"sum(max by (vhost) ({chosen('oxproxy_rules_outdated')}))")],
            thresholds=((1, RED),),
            height=8,
        ),
        Number(
            "Rules versions",
            "Number of different rules versions that are active.",
            [Query(f"count(count by (version) ({chosen('oxproxy_rules_info')}))")],
            thresholds=((2, RED),),
            height=8,
        ),
    ],
)

_BINDINGS = Row(
    "Binding matches",
    [
        Lines(
            "Match rate by binding",
            "The 15 bindings that match most often.",
            [
                Query(
                    f"topk(15, {total(rate(_MATCHES), 'vhost', 'exchange', 'binding')})",
                    "{{vhost}} {{exchange}}: {{binding}}",
                )
            ],
            "cps",
            width=12,
        ),
        Table(
            "Matches in the time range",
            "The row `other` contains the bindings that exceed the limit `metrics.bindings`.",
            [Query(total(increase(_MATCHES), "vhost", "exchange", "binding"), instant=True, table=True)],
            width=6,
            columns=(*_BINDING, ("Value", "Matches")),
        ),
        Table(
            "Bindings without a match",
            "Bindings without a match in the selected time range. The audit log report covers longer periods.",
            [
                Query(
                    f"{total(increase(_MATCHES, _NAMED), 'vhost', 'exchange', 'binding')} == 0",
                    instant=True,
                    table=True,
                )
            ],
            width=6,
            columns=(*_BINDING, ("Value", "Matches")),
        ),
        Lines(
            "Publish rate by destination",
            "The 15 queues and exchanges in the rules that receive the most messages.",
            [
                Query(
                    f"topk(15, {total(rate('oxproxy_destination_publishes_total'), 'vhost', 'destination')})",
                    "{{vhost}} {{destination}}",
                )
            ],
            "cps",
            width=12,
        ),
        Table(
            "Destinations without messages",
            "Destinations that received no message in the selected time range.",
            [
                Query(
                    f"{total(increase('oxproxy_destination_publishes_total'), 'vhost', 'destination')} == 0",
                    instant=True,
                    table=True,
                )
            ],
            width=12,
            columns=(("vhost", "Virtual host"), ("destination", "Destination"), ("Value", "Publishes")),
        ),
    ],
)

_WHY = Row(
    "Unroutable messages",
    [
        Lines(
            "Unrouted share by exchange",
            "Publishes for which the rules selected no destination. `oxproxy explain` shows the reason.",
            [_share("unrouted")],
            "percentunit",
        ),
        Lines(
            "Filtered and rejected share by exchange",
            "Filtered: a filter dropped the message. Rejected: a filter closed the channel.",
            [_share("filtered"), _share("rejected")],
            "percentunit",
        ),
        Lines(
            "Contract violations",
            "Publishes that violate the contract of an exchange (require), or a filter that is only observed.",
            [per_second("oxproxy_contract_violations_total", "vhost", "exchange")],
            "cps",
        ),
        Lines(
            "Topology and regular expression problems",
            "Missing destinations, foreign bindings on carriers, unsigned bindings, searches that reached a limit.",
            [
                summed("oxproxy_topology_missing_destinations", legend="missing destinations"),
                summed("oxproxy_topology_foreign_bindings", legend="foreign bindings"),
                Query(total(chosen("oxproxy_carrier_bindings", 'fits="no"')), "bindings on unsuitable carriers"),
                summed("oxproxy_topology_unsigned_bindings", legend="unsigned bindings"),
                summed("oxproxy_topology_carrier_bypasses", legend="carrier bypasses"),
                per_second("oxproxy_regex_limit_hits_total", legend="searches per second that reached the limit"),
                per_second("oxproxy_regex_budget_spent_total", legend="regex budgets exceeded per second"),
            ],
        ),
    ],
)

_COST = Row(
    "Decision latency",
    [
        Heatmap(
            "Decision latency",
            "Duration of decisions on a cache miss. The event loop is blocked during a decision.",
            [Query(total(rate("oxproxy_decision_seconds_bucket"), "le"), "{{le}}", heatmap=True)],
            "s",
        ),
        Lines(
            "Decision latency p50 and p99",
            "Duration of decisions on a cache miss.",
            [
                Query(quantile(0.5, "oxproxy_decision_seconds"), "p50"),
                Query(quantile(0.99, "oxproxy_decision_seconds"), "p99"),
            ],
            "s",
            logarithmic=True,
        ),
        Lines(
            "Decision cache",
            "Cache hits and misses. Bypassed: decisions that were not cached.",
            [per_second("oxproxy_decision_cache_total", "result")],
            "cps",
            stacked=True,
        ),
    ],
)

RULES = Dashboard(
    "oxproxy-rules",
    "Sidecar: rules",
    "Rules versions, binding matches, unroutable messages, decision latency.",
    VARIABLES,
    MARKS,
    [_CHANGES, _BINDINGS, _WHY, _COST],
)
