"""Returns all exchanges with their bindings and destinations as plain data, for ``oxproxy routes``.

No broker is queried. If the rules are those of a running sidecar, client declarations are included.
"""

from __future__ import annotations

from oxproxy.routing.bindings.arguments import ROUTE_KEYS, X_MATCH
from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.bindings.compiled import CompiledBinding
from oxproxy.routing.bindings.exchange_types import OPEN
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.router import Router
from oxproxy.rules.loader import LoadedRules
from oxproxy.rules.message import json_value
from oxproxy.rules.ruleset import ExchangeRule, VhostRules
from oxproxy.rules.spelling.lines import WHEN, lines_of
from oxproxy.values import EXCHANGE, text


def overview(loaded: LoadedRules) -> dict[str, object]:
    """Return all rules as data for JSON, without passwords."""
    vhosts = [_vhost(vhost, loaded.routers[name]) for name, vhost in loaded.rules.vhosts.items()]
    return {"rules": loaded.rules.version, "vhosts": vhosts}


def _vhost(rules: VhostRules, router: Router) -> dict[str, object]:
    return {
        "vhost": rules.vhost,
        "queues": [text(queue.name) for queue in rules.queues],
        "exchanges": [_exchange(rule, router.exchanges[rule.name], router) for rule in rules.exchanges],
        "addresses": [
            {"name": rule.name or None, "pattern": text(rule.shown_pattern), "translation": text(rule.shown)}
            for rule in rules.addresses
        ],
        "brokers": [
            {"name": text(broker.name), "address": f"{broker.settings.address.host}:{broker.settings.address.port}"}
            for broker in rules.brokers
        ],
    }


def _exchange(rule: ExchangeRule, exchange: Exchange, router: Router) -> dict[str, object]:
    return {
        "exchange": text(rule.name),
        "type": rule.type,
        "delivery": rule.delivery,
        "carrier": text(rule.carrier) if rule.delivery == "carrier" else None,
        "unmatched": "pass" if rule.unmatched_pass else None,
        "alternate": None if rule.alternate is None else text(rule.alternate),
        "bindings": [_binding(compiled, rule.type, router) for compiled in exchange.entries],
    }


def _parts(binding: Binding, is_open: bool) -> tuple[dict[str, object], dict[str, object]]:
    """Return the conditions and the effects of a binding, in the spelling in which it is written."""
    conditions: dict[str, object] = {}
    effects: dict[str, object] = {}
    lines = lines_of(binding.arguments) if binding.readable else None
    if lines is not None:
        for line in lines:
            if line.key != "match" or line.section:
                (conditions if line.section == WHEN else effects)[line.text] = json_value(line.value)
        return conditions, effects
    for key, value in binding.arguments:
        if key != X_MATCH:
            (effects if is_open and key in ROUTE_KEYS else conditions)[text(key)] = json_value(value)
    return conditions, effects


def _binding(compiled: CompiledBinding, exchange_type: str, router: Router) -> dict[str, object]:
    binding = compiled.binding
    is_open = exchange_type == OPEN
    conditions, effects = _parts(binding, is_open)
    return {
        "binding": binding.id,
        "destination": {"type": binding.destination_type, "name": text(binding.destination)},
        "evaluated_here": binding.destination_type == EXCHANGE and binding.destination in router.exchanges,
        "order": compiled.order,
        "match": compiled.match_type,
        "routing_key": None if is_open else text(binding.routing_key),
        "conditions": conditions,
        "effects": effects,
        "user": binding.owner,
    }
