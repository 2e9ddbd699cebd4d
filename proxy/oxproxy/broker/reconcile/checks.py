"""Finds exchanges, queues and bindings on the broker that contradict the rules or change their effect.

Conflicts, which the operator must resolve, prevent the rules from being loaded; warnings do not. Conflicts and warnings
are returned as text for the operator. All functions are pure. Source: architecture, "The control plane".
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

from oxproxy.broker.management_api import CARRIER_TYPES, BindingInfo, ExchangeInfo, QueueInfo
from oxproxy.broker.methods import unnameable
from oxproxy.relay.tokens import TOKEN_PREFIXES, Tokens, is_storage_key, is_token
from oxproxy.relay.vhost import CarrierType, OwnedExchange
from oxproxy.routing.bindings.operators import Topic
from oxproxy.values import Destination, describe, shown, shown_user

_WAYS_OUT = "give the carrier another name (carrier: NAME) or use delivery: queue"
_HASH = re.compile(rb"[0-9a-f]{16}")
#: Number of bindings that are classified in one step.
_STEP = 1024


def carrier_conflict(exchange: OwnedExchange, info: ExchangeInfo | None) -> str | None:
    """Return why the exchange on the broker can't be the carrier; None if it can, or if there is no exchange."""
    unusable = unnameable(exchange.carrier)
    if unusable is not None:
        return f"{_shown(exchange)}: the carrier can't be declared: {unusable}"
    if info is None:
        return None
    if info.type not in CARRIER_TYPES:
        return f"{_shown(exchange)} exists on the broker with type {info.type}: {_WAYS_OUT}"
    if not info.marked:
        return f"{_shown(exchange)} exists on the broker as a {info.type} exchange that no sidecar created: {_WAYS_OUT}"
    return None


def carrier_difference(exchange: OwnedExchange, info: ExchangeInfo | None) -> str | None:
    """Return why the broker would refuse a declare of the carrier with reply code 406; None if it would not."""
    if info is None:
        return None
    alternate = None if exchange.alternate is None else shown(exchange.alternate)
    listed_alternate = info.arguments.get("alternate-exchange")
    differs = [name for name, yes in (("durable", not info.durable), ("auto_delete", info.auto_delete)) if yes]
    differs += ["internal"] if info.internal else []
    differs += ["alternate-exchange"] if listed_alternate != alternate else []
    if not differs:
        return None
    return f"{_shown(exchange)} exists on the broker with different properties ({', '.join(differs)}): {_WAYS_OUT}"


def declare_conflict(exchange: OwnedExchange, code: int, text: str, username: str) -> str:
    """Describe the broker's refusal to declare a carrier."""
    if code == 406:
        why = f"{_shown(exchange)} exists on the broker with different properties: {_WAYS_OUT} (broker: {text})"
        if exchange.wanted_type is CarrierType.AUTO and "current is 'topic'" in text:
            # Only the management API shows the type of an exchange, and whether a sidecar created it.
            why += "; if a sidecar created it, set carrier_type: topic, or use upstream.management"
        return why
    if code == 403:
        more = "configure permission on it"
        if exchange.alternate is not None:
            alternate = shown(exchange.alternate)
            more += f", read permission on it and write permission on its alternate exchange {alternate}"
        return f"{_shown(exchange)}: to declare it, user {shown_user(username)!r} needs {more} (broker: {text})"
    return f"{_shown(exchange)} can't be declared: {code} {text}"


def internal_conflicts(published: Mapping[bytes, bytes], exchanges: Mapping[bytes, ExchangeInfo]) -> dict[bytes, str]:
    """Find internal exchanges to which `delivery: queue` would publish. Clients can't publish to internal exchanges."""
    return {
        owner: f"exchange {shown(name)} is internal, so with delivery: queue, messages of "
        f"exchange {shown(owner)} can't be published to it; use delivery: carrier"
        for name, owner in sorted(published.items())
        if name in exchanges and exchanges[name].internal
    }


class CarrierRows(NamedTuple):
    """The bindings of a carrier, by kind.

    Args:
        tokens: the bound tokens of each destination, in any form and made with any of the listed secrets.
        foreign: bindings that no sidecar created, and which bypass the rules.
        stale: bindings that have the form of a token made with a secret that is not listed. No publish carries such a
            token.
    """

    tokens: Mapping[Destination, frozenset[bytes]] = MappingProxyType({})
    foreign: tuple[BindingInfo, ...] = ()
    stale: tuple[BindingInfo, ...] = ()


def carrier_rows(bindings: Iterable[BindingInfo], tokens: Tokens) -> CarrierRows:
    """Return the bindings of a carrier by kind; see `carrier_rows_in_steps`."""
    steps = carrier_rows_in_steps(list(bindings), tokens)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            rows: CarrierRows = end.value
            return rows


def carrier_rows_in_steps(bindings: Sequence[BindingInfo], tokens: Tokens) -> Generator[None, None, CarrierRows]:
    """Return the bindings of a carrier by kind, in steps, since there may be 100,000 of them.

    A binding with the token of another destination is foreign: any user that may bind on the carrier can create such a
    binding, and messages to the other destination would be routed by it.
    """
    owners: dict[bytes, Destination] = {}
    destinations: set[Destination] = set()
    for number, binding in enumerate(bindings, 1):
        if binding.destination not in destinations:
            destinations.add(binding.destination)
            owners.update(dict.fromkeys(tokens.candidates(binding.destination, one_word=True), binding.destination))
        if not number % _STEP:
            yield
    rows: dict[Destination, set[bytes]] = {}
    foreign: list[BindingInfo] = []
    stale: list[BindingInfo] = []
    for number, binding in enumerate(bindings, 1):
        if not number % _STEP:
            yield
        owner = owners.get(binding.routing_key)
        if owner == binding.destination:
            rows.setdefault(owner, set()).add(binding.routing_key)
        elif owner is not None or not is_ours(binding.routing_key):
            foreign.append(binding)
        elif is_token(binding.routing_key):
            stale.append(binding)
    tokens_by_destination = {destination: frozenset(its_tokens) for destination, its_tokens in rows.items()}
    return CarrierRows(tokens_by_destination, tuple(foreign), tuple(stale))


def is_ours(routing_key: bytes) -> bool:
    """Return True if a routing key has the form of a token or of a storage key."""
    return is_token(routing_key) or is_storage_key(routing_key)


def dead_letter_warnings(queues: Iterable[QueueInfo]) -> list[str]:
    """For exchanges with `delivery: queue`, find destinations whose dead letters would be routed to another queue."""
    return [
        f"queue {shown(queue.name)} dead-letters to the default exchange without "
        "x-dead-letter-routing-key; with delivery: queue, a dead letter is sent to the first queue "
        "to which its message was routed"
        for queue in queues
        if queue.arguments.get("x-dead-letter-exchange") == "" and "x-dead-letter-routing-key" not in queue.arguments
    ]


def bypasses(
    carriers: Set[bytes], leading: Set[bytes], exchanges: Iterable[ExchangeInfo], queues: Iterable[QueueInfo]
) -> list[str]:
    """Find alternate and dead-letter exchanges that route messages to a carrier without evaluating its rules.

    Args:
        leading: exchanges to which carriers are bound, directly or through other exchanges.
    """
    alternates = {
        info.name: info.arguments.get("alternate-exchange") for info in exchanges if info.name not in carriers
    }
    reached = set(carriers | leading)
    leading_names: dict[bytes, str] = {}
    size = -1
    while len(leading_names) > size:
        size = len(leading_names)
        for name, alternate in alternates.items():
            if name not in leading_names and isinstance(alternate, str) and alternate.encode() in reached:
                leading_names[name] = f"exchange {shown(name)}: its alternate exchange {alternate}"
                reached.add(name)
    lines = [f"{text} routes to a carrier" for _, text in sorted(leading_names.items())]
    for queue in queues:
        target = queue.arguments.get("x-dead-letter-exchange")
        if isinstance(target, str) and target.encode() in reached:
            lines.append(f"queue {shown(queue.name)}: its dead-letter exchange {target} routes to a carrier")
    return lines


def topic_warnings(exchange: bytes, bindings: Iterable[BindingInfo]) -> list[str]:
    """On a topic exchange downstream of a carrier, find and describe bindings whose patterns match tokens."""
    return [
        f"topic exchange {shown(exchange)} binds {describe(binding.destination)} "
        f"with a pattern that matches destination tokens: {shown(binding.routing_key)}"
        for binding in bindings
        if matches_tokens(binding.routing_key)
    ]


def matches_tokens(pattern: bytes) -> bool:
    """Return True if a topic pattern matches tokens but not every key.

    A pattern that consists only of ``#`` also matches the message's own key, so tokens make no difference.
    """
    words = pattern.split(b".")
    if all(word == b"#" for word in words):
        return False
    topic = Topic(pattern)
    some_hash = next(filter(_HASH.fullmatch, words), b"0" * 16)
    return any(topic.matches(prefix + some_hash) for prefix in TOKEN_PREFIXES)


def _shown(exchange: OwnedExchange) -> str:
    name, carrier = shown(exchange.name), shown(exchange.carrier)
    return f"exchange {name}" if name == carrier else f"carrier {carrier} of exchange {name}"
