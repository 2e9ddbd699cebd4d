"""The dashboard for whoever writes rules: which rule changed, which bindings match, why does something reach nobody?"""

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
    "Which rules are in force, and since when?",
    [
        States(
            "Versions in force",
            "Which version of the rules decided when? More than one at a time for long: sidecars that disagree.",
            [Query(f"count by (instance, version) ({chosen('oxproxy_rules_info')})", "{{instance}} {{version}}")],
            width=12,
        ),
        Number(
            "Last change",
            "How long ago were the rules that decide now loaded?",
            [Query(f"time() - max({chosen('oxproxy_rules_last_reload_success_timestamp_seconds')})")],
            "s",
            height=8,
        ),
        Number(
            "Failed reloads",
            "How many changes were refused in the time shown? The log and /status name every fault.",
            [Query(total(increase("oxproxy_rules_reload_total", 'result="error"')))],
            thresholds=((1, RED),),
            height=8,
        ),
        Number(
            "Versions",
            "How many versions are in force at once?",
            [Query(f"count(count by (version) ({chosen('oxproxy_rules_info')}))")],
            thresholds=((2, RED),),
            height=8,
        ),
    ],
)

_BINDINGS = Row(
    "Which bindings match?",
    [
        Lines(
            "Matches",
            "Which bindings match most, and which changed when the rules did?",
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
            "Matches in the time shown",
            "How often was each binding true? Other: bindings beyond metrics.bindings.",
            [Query(total(increase(_MATCHES), "vhost", "exchange", "binding"), instant=True, table=True)],
            width=6,
            columns=(*_BINDING, ("Value", "Matches")),
        ),
        Table(
            "Never true in the time shown",
            "Which bindings may be dead? Choose a long time; the report on the audit log looks further back.",
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
            "Destinations",
            "What do the queues and exchanges that rules name get?",
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
            "Destinations without a message in the time shown",
            "Which of them get nothing?",
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
    "Why does something reach nobody?",
    [
        Lines(
            "Unrouted",
            "What share of an exchange's publishes did no binding take? `oxproxy explain` says why for one message.",
            [_share("unrouted")],
            "percentunit",
        ),
        Lines(
            "Dropped or refused by filters",
            "What share did a silent filter drop, or a loud one refuse?",
            [_share("filtered"), _share("rejected")],
            "percentunit",
        ),
        Lines(
            "Beside the rules",
            "Is a queue not there, did others bind to a carrier, did a regular expression run into its limit? "
            "Which clients' bindings has no sidecar signed?",
            [
                summed("oxproxy_topology_missing_destinations", legend="missing destinations"),
                summed("oxproxy_topology_foreign_bindings", legend="bindings that others made"),
                summed("oxproxy_topology_unsigned_bindings", legend="unsigned bindings"),
                summed("oxproxy_topology_unkeyed_tokens", legend="tokens of version 0.1"),
                summed("oxproxy_topology_carrier_bypasses", legend="ways to a carrier without its rules"),
                per_second("oxproxy_regex_limit_hits_total", legend="patterns given up, a second"),
                per_second("oxproxy_regex_budget_spent_total", legend="regex budgets spent, a second"),
            ],
        ),
    ],
)

_COST = Row(
    "What does deciding cost?",
    [
        Heatmap(
            "Decisions",
            "How long do decisions take that had to be made? While one is made, that sidecar does nothing else.",
            [Query(total(rate("oxproxy_decision_seconds_bucket"), "le"), "{{le}}", heatmap=True)],
            "s",
        ),
        Lines(
            "Slowest decisions",
            "How long do the middle one and the slowest hundredth take?",
            [
                Query(quantile(0.5, "oxproxy_decision_seconds"), "50 %"),
                Query(quantile(0.99, "oxproxy_decision_seconds"), "99 %"),
            ],
            "s",
            logarithmic=True,
        ),
        Lines(
            "Cache",
            "How many publishes found their decision ready? Bypassed: decisions that may not be kept.",
            [per_second("oxproxy_decision_cache_total", "result")],
            "cps",
            stacked=True,
        ),
    ],
)

RULES = Dashboard(
    "oxproxy-rules",
    "Sidecar: rules",
    "Which rules are in force, which bindings match or never do, why messages reach nobody, what deciding costs.",
    VARIABLES,
    MARKS,
    [_CHANGES, _BINDINGS, _WHY, _COST],
)
