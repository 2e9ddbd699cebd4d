"""Computes the publishes that would be sent for one message. They are the last part of an explanation.

This module calls the functions of the publish path, which return the exchange and key of each outgoing publish, the BCC
keys, their destinations, and the added headers. Tokens are not shown, only their destinations: with a token, a
client could bypass the rules. Without a broker, every chosen destination is assumed to exist and to
be bound. With the state of a running sidecar, missing destinations are listed with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from oxproxy.addressing.targets import AddressBook, FailedTranslation, Publication, Target
from oxproxy.amqp.tables import decode_table, encode_table
from oxproxy.relay.counters import Traffic
from oxproxy.relay.plan.outgoing import (
    Copy,
    Outgoing,
    PublishSource,
    outgoing,
    table_entries,
)
from oxproxy.relay.token_table import TokenTable
from oxproxy.relay.tokens import Tokens
from oxproxy.relay.vhost import CarrierType, Delivery, OwnedExchange, VhostState
from oxproxy.routing.decision import Decision
from oxproxy.routing.destination_translation import translate_destinations
from oxproxy.routing.router import Router
from oxproxy.rules.message import DescribedMessage, destination_text, json_value, quoted
from oxproxy.rules.ruleset import ExchangeRule, VhostRules
from oxproxy.values import Destination, Table, reserved_prefix, text

#: Name of our own broker.
UPSTREAM = "upstream"
#: Reason under `missing` for a destination that is not missing.
UNBOUND = "not bound yet: the publish waits until the destination is bound or known to be missing"
_Names: TypeAlias = dict[bytes, Destination]


#: Stands for the tokens on the broker, which are made with a secret.
_WITHOUT_SECRET = Tokens()


@dataclass(frozen=True, slots=True)
class WirePublish:
    """One outgoing publish.

    Args:
        to: name of our own broker (`UPSTREAM`) or of another broker.
        bcc: routing keys in the BCC header, without tokens.
        reaches: destinations whose tokens are in the BCC header.
        headers: headers added by the sidecar, without BCC.
        untouched: whether the message is sent unchanged, byte for byte.
    """

    to: str
    exchange: bytes
    routing_key: bytes
    bcc: tuple[bytes, ...] = ()
    reaches: tuple[Destination, ...] = ()
    headers: Table = ()
    untouched: bool = False


@dataclass(frozen=True, slots=True)
class Wire:
    """Everything that is sent for one message.

    Args:
        publishes: outgoing publishes; empty if the message is rejected or unroutable.
        missing: chosen destinations that can't be reached, with the reason; known only for running sidecars.
    """

    publishes: tuple[WirePublish, ...] = ()
    missing: tuple[tuple[Destination, str], ...] = ()


def publish_state(
    vhost: VhostRules, router: Router, book: AddressBook | None, live: VhostState | None = None
) -> VhostState:
    """Return the state that the publish path would use; `live` is the state of a running sidecar."""
    if live is not None:
        # The tables are replaced, since the tokens on the broker must not be shown.
        exchanges = {name: replace(owned, tokens=_shown_table(live, owned)) for name, owned in live.exchanges.items()}
        state = VhostState(vhost.vhost, router, exchanges, live.queues, addresses=book)
        state.missing_remote = dict(live.missing_remote)
        return state
    return VhostState(vhost.vhost, router, owned_exchanges(vhost), addresses=book)


def _shown_table(live: VhostState, owned: OwnedExchange) -> TokenTable:
    table = _bound(
        name for name in owned.tokens.bound if owned.delivery is Delivery.QUEUE or live.token_of(owned, name)
    )
    for destination, missing in owned.tokens.missing.items():
        table.refused(destination, *missing)
    return table


def _bound(destinations: Iterable[Destination]) -> TokenTable:
    """Return a table in which destinations are bound with every token made without the secret."""
    return TokenTable({name: frozenset(_WITHOUT_SECRET.candidates(name, one_word=True)) for name in destinations})


def owned_exchanges(vhost: VhostRules) -> dict[bytes, OwnedExchange]:
    """Return the exchanges of the rules in the form that relays and the control plane use."""
    return {rule.name: owned_exchange(rule) for rule in vhost.exchanges}


def owned_exchange(rule: ExchangeRule) -> OwnedExchange:
    """Convert an exchange from the rules to the type that the publish path uses."""
    return OwnedExchange(
        rule.name,
        rule.type,
        Delivery(rule.delivery),
        rule.carrier,
        rule.unmatched_pass,
        rule.alternate,
        rule.arguments,
        wanted_type=CarrierType(rule.carrier_type),
    )


def evaluated(
    state: VhostState, message: DescribedMessage, decision: Decision, source: DescribedMessage | None, is_live: bool
) -> Wire:
    """Return what is sent for a message to an exchange that the sidecar evaluates.

    Args:
        state: see `publish_state`.
        message: the message as received by the exchange.
        source: the original message, if the address table redirected it.
        is_live: whether the state is that of a running sidecar; otherwise, every chosen destination is bound.
    """
    owned = state.exchanges.get(message.exchange)
    if owned is None:  # the exchange was deleted in the meantime
        return Wire()
    chosen = _chosen(decision)
    if source is None and state.addresses is not None:
        translated = translate_destinations(
            state.addresses,
            decision.queues,
            decision.exchanges,
            message.facts.routing_key,
            state.exchanges.keys() | state.carriers,
        )
        chosen = [("queue", name) for name in translated.queues] + [("exchange", name) for name in translated.exchanges]
    if not is_live:
        owned.tokens = _bound(chosen)
    publish_source = None if source is None else PublishSource(_address(source), 0)
    out = outgoing(decision, owned, state, Traffic(), routing_key=message.facts.routing_key, source=publish_source)
    missing = owned.tokens.missing
    unreached = [(destination, missing[destination].reason) for destination in chosen if destination in missing]
    unreached += [(destination, UNBOUND) for destination in out.unbound]
    for target in () if out.remote_targets is None else out.remote_targets.targets:
        unreached += _missing_elsewhere(state, target)
    # These tokens only identify the destinations. They may differ from the tokens on the broker.
    names = {
        key: destination for destination in chosen for key in _WITHOUT_SECRET.candidates(destination, one_word=True)
    }
    return Wire(tuple(_publishes(source or message, out, names)), tuple(unreached))


def _missing_elsewhere(state: VhostState, target: Target) -> list[tuple[Destination, str]]:
    """If a target on another broker is known to be missing, return its destination and the reason."""
    if target.remote is None:
        return []
    exchange, key = target.publication
    kind, name = ("exchange", exchange) if exchange else ("queue", key)
    label = target.remote.label
    reason = state.missing_remote.get((label, (kind, name)))
    return [] if reason is None else [((kind, name + b" on broker " + label.encode()), reason)]


def translated(message: DescribedMessage, book: AddressBook | None = None) -> Wire:
    """Return what is sent for a message to an exchange that the sidecar does not evaluate."""
    target = None if book is None else book.look_up(*_address(message))
    if target is None:
        return Wire((WirePublish(UPSTREAM, *_address(message), untouched=True),))
    if isinstance(target, FailedTranslation):
        return Wire()
    if target.remote is not None:
        return Wire((_elsewhere(message, target),))
    copy = Copy(*target.publication, (), moved=True, by_broker=True)
    return Wire((_leaving(message, copy, {}),))


def _address(message: DescribedMessage) -> Publication:
    return Publication(message.exchange, message.facts.routing_key)


def _publishes(message: DescribedMessage, out: Outgoing, names: _Names) -> Iterator[WirePublish]:
    if out.untouched:
        yield WirePublish(UPSTREAM, *_address(message), untouched=True)
    for copy in out.copies:
        yield _leaving(message, copy, names)
    for target in () if out.remote_targets is None else out.remote_targets.targets:
        yield _elsewhere(message, target)


def _leaving(message: DescribedMessage, copy: Copy, names: _Names) -> WirePublish:
    original = _address(message)
    key = copy.key(original.routing_key)
    reaches = tuple(dict.fromkeys(names[bcc_key] for bcc_key in copy.bcc if bcc_key in names))
    bcc = tuple(bcc_key for bcc_key in copy.bcc if not reserved_prefix(bcc_key))
    return WirePublish(UPSTREAM, copy.exchange, key, bcc, reaches, _ours(message, copy))


def _elsewhere(message: DescribedMessage, target: Target) -> WirePublish:
    label = "" if target.remote is None else target.remote.label
    copy = Copy(*target.publication, (), moved=True, by_broker=True)
    headers = () if tuple(target.publication) == tuple(_address(message)) else _ours(message, copy)
    return WirePublish(label, *target.publication, headers=headers)


def _ours(message: DescribedMessage, copy: Copy) -> Table:
    """Return the headers added by the sidecar, without BCC."""
    entries = encode_table(message.facts.headers)
    sent = table_entries(entries, copy, _address(message))
    received = frozenset(message.facts.headers)
    return tuple(entry for entry in decode_table(sent, 0, len(sent)) if entry not in received and entry[0] != b"BCC")


def _chosen(decision: Decision) -> list[Destination]:
    return [("queue", name) for name in decision.queues] + [("exchange", name) for name in decision.exchanges]


def as_data(wire: Wire) -> list[dict[str, object]]:
    return [
        {
            "to": leaving.to,
            "exchange": text(leaving.exchange),
            "routing_key": text(leaving.routing_key),
            "bcc": [text(key) for key in leaving.bcc],
            "reaches": [destination_text(destination) for destination in leaving.reaches],
            "headers": {text(name): json_value(value) for name, value in leaving.headers},
            "untouched": leaving.untouched,
        }
        for leaving in wire.publishes
    ]


def as_lines(wire: Wire) -> Iterator[str]:
    """Format the publishes and the missing destinations for a terminal."""
    for leaving in wire.publishes:
        to = "" if leaving.to == UPSTREAM else f" of {leaving.to}"
        how = ", unchanged" if leaving.untouched else ""
        yield f"wire      publish to exchange {quoted(leaving.exchange)}{to}, key {quoted(leaving.routing_key)}{how}"
        for destination in leaving.reaches:
            yield f"          BCC the token of {destination_text(destination)}"
        for key in leaving.bcc:
            yield f"          BCC {text(key)}"
        for name, value in leaving.headers:
            yield f"          header {text(name)}: {quoted(value)}"
    for destination, reason in wire.missing:
        yield f"missing   {destination_text(destination)}: {reason}"
