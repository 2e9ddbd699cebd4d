"""Finds exchanges, queues and bindings on the broker that contradict the rules or change their effect.

Conflicts, which the operator must resolve, prevent the rules from being loaded; warnings do not. Conflicts and warnings
are returned as text for the operator. All functions are pure. Source: architecture, "The control plane".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

from proxy.broker.management_api import CARRIER_TYPES, BindingInfo, ExchangeInfo, QueueInfo
from proxy.broker.methods import unnameable
from proxy.relay.declare.storage import unpack
from proxy.relay.token_table import Row
from proxy.relay.tokens import GRANTS, TokenForm, Tokens, is_eight_words, is_grant, token
from proxy.relay.vhost import OwnedExchange
from proxy.routing.bindings.operators import Topic
from proxy.values import RESERVED_PREFIX, Destination, describe, shown

_WAYS_OUT = "give the carrier another name (carrier: NAME) or use delivery: queue"
_UNKEYED = Tokens()
#: Prefixes of tokens. The prefix depends on the kind of token and the type of the destination.
_TOKEN_PREFIXES = tuple(prefix + letter for prefix in (RESERVED_PREFIX, GRANTS) for letter in (b"q.", b"e."))
_HASH = re.compile(rb"[0-9a-f]{16}")


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
        return f"{_shown(exchange)} exists on the broker with different properties: {_WAYS_OUT} (broker: {text})"
    if code == 403:
        more = "configure permission on it"
        if exchange.alternate is not None:
            alternate = shown(exchange.alternate)
            more += f", read permission on it and write permission on its alternate exchange {alternate}"
        return f"{_shown(exchange)}: to declare it, user {username!r} needs {more} (broker: {text})"
    return f"{_shown(exchange)} can't be declared: {code} {text}"


def internal_conflicts(published: Mapping[bytes, bytes], exchanges: Mapping[bytes, ExchangeInfo]) -> dict[bytes, str]:
    """Find internal exchanges to which `delivery: queue` would publish. Clients can't publish to internal exchanges."""
    return {
        owner: f"exchange {shown(name)} is internal, so with delivery: queue, messages of "
        f"exchange {shown(owner)} can't be published to it; use delivery: carrier"
        for name, owner in sorted(published.items())
        if name in exchanges and exchanges[name].internal
    }


def foreign_bindings(bindings: Iterable[BindingInfo], tokens: Tokens = _UNKEYED) -> list[BindingInfo]:
    """Find bindings on a carrier that are not tokens, grants or stored client bindings.

    A stored client binding with the token of another destination is also foreign. Any user that is permitted to bind
    can create such a binding, since a signature does not cover the binding's routing key on the carrier.
    """
    if tokens.form is TokenForm.ONE_WORD:
        tokens = tokens.in_form(TokenForm.CHANGING)  # another sidecar may already have changed the form
    listed = list(bindings)
    owners = {
        key: destination
        for destination in {binding.destination for binding in listed}
        for key in (*tokens.of(*destination), *tokens.former(*destination))
    }
    return [
        binding
        for binding in listed
        if owners.get(binding.routing_key, binding.destination) != binding.destination
        or not (binding.routing_key in owners or binding.stores or is_grant(binding.routing_key))
    ]


class CarrierTokens(NamedTuple):
    """The tokens bound on a carrier.

    Args:
        rows: rows with the tokens that publishes carry, by destination.
        incomplete: destinations in `rows` for which at least one of these tokens is not bound.
        former: bindings with former tokens that no destination needs.
        unkeyed: number of bindings with unkeyed tokens.
        previous: number of bindings with tokens of previous secrets.
    """

    rows: Mapping[Destination, frozenset[Row]] = MappingProxyType({})
    incomplete: frozenset[Destination] = frozenset()
    former: tuple[BindingInfo, ...] = ()
    unkeyed: int = 0
    previous: int = 0

    @property
    def bound(self) -> Set[Destination]:
        """Destinations with at least one bound token that publishes carry."""
        return self.rows.keys()


def carrier_tokens(
    bindings: Iterable[BindingInfo], tokens: Tokens, leftover: Set[Destination] = frozenset()
) -> CarrierTokens:
    """Return which tokens are bound on a carrier.

    Args:
        tokens: computes tokens in the form that the carrier uses.
        leftover: destinations that can't be bound again. Publishes also carry the former tokens of these destinations.
    """
    bound_keys: dict[Destination, set[bytes]] = {}
    rows: dict[Destination, set[Row]] = {}
    former: list[BindingInfo] = []
    unkeyed = previous = 0
    for binding in bindings:
        if not binding.under_token:
            continue
        destination, key = binding.destination, binding.routing_key
        current, *others = tokens.of(*destination)
        if key == current or key in others:
            bound_keys.setdefault(destination, set()).add(key)
            rows.setdefault(destination, set()).add(_row(binding))
        elif key in tokens.former(*destination):
            if destination in leftover:
                rows.setdefault(destination, set()).add(_row(binding))
            else:
                former.append(binding)
        if key == token(*destination):
            unkeyed += 1
        elif key != current and (key in others or former[-1:] == [binding]):
            previous += 1
    return CarrierTokens(
        {destination: frozenset(bound_rows) for destination, bound_rows in rows.items()},
        frozenset(destination for destination, keys in bound_keys.items() if len(keys) < tokens.count),
        tuple(binding for binding in former if _may_go(binding, tokens, bound_keys)),
        unkeyed,
        previous,
    )


def _row(binding: BindingInfo) -> Row:
    """Return the identity of a binding among the bindings with the same token."""
    if binding.kept:
        with suppress(ValueError):
            return unpack(binding.kept.encode()).sequence
    return binding.pin.encode()


def _may_go(binding: BindingInfo, tokens: Tokens, bound_keys: Mapping[Destination, Set[bytes]]) -> bool:
    """Return True if a former token is no longer needed to reach a destination."""
    destination = binding.destination
    if (
        tokens.form is TokenForm.EIGHT_WORDS
        and not is_eight_words(binding.routing_key)
        and destination not in bound_keys
    ):
        return True  # no longer needed: a destination that is still needed would have the current token
    return tokens.of(*destination)[0] in bound_keys.get(destination, ())


def grants_bound(bindings: Iterable[BindingInfo]) -> dict[bytes, Destination]:
    """Find the bindings that record grants; return their destinations by key."""
    return {binding.routing_key: binding.destination for binding in bindings if is_grant(binding.routing_key)}


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
    return any(topic.matches(prefix + some_hash) for prefix in _TOKEN_PREFIXES)


def _shown(exchange: OwnedExchange) -> str:
    name, carrier = shown(exchange.name), shown(exchange.carrier)
    return f"exchange {name}" if name == carrier else f"carrier {carrier} of exchange {name}"
