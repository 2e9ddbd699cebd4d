"""Computes the actions that change the observed state of a virtual host to the desired state.

Changes made by other sidecars or operators, and objects that the broker has lost, need no special case: the next
observation shows them, and the returned actions restore the desired state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from oxproxy.broker.management_api import BindingInfo, ExchangeInfo
from oxproxy.broker.methods import DeclareQueue, unnameable
from oxproxy.broker.reconcile.checks import carrier_conflict, internal_conflicts
from oxproxy.broker.reconcile.desired import DesiredState
from oxproxy.broker.reconcile.observed import ObservedState
from oxproxy.relay.tokens import Tokens
from oxproxy.relay.vhost import OwnedExchange
from oxproxy.values import EXCHANGE, QUEUE, Destination, describe, shown


@dataclass(frozen=True, slots=True)
class DeclareCarrier:
    """Declares the carrier of an exchange."""

    exchange: OwnedExchange

    def __str__(self) -> str:
        return f"declare {self.exchange.carrier_type.value} exchange {shown(self.exchange.carrier)}"


class BindToken(NamedTuple):
    """Binds a destination with a token to the carrier of an exchange. This also verifies an existing binding."""

    exchange: OwnedExchange
    destination: Destination
    token: bytes

    def __str__(self) -> str:
        """Describe the action for operators, without the token, which is secret."""
        return f"bind {describe(self.destination)} to exchange {shown(self.exchange.carrier)}"


@dataclass(frozen=True, slots=True)
class RemoveBinding:
    """Removes a foreign binding on a carrier, regardless of its arguments."""

    carrier: bytes
    binding: BindingInfo

    def __str__(self) -> str:
        return f"remove binding of exchange {shown(self.carrier)} to {self.binding}"


Action: TypeAlias = DeclareQueue | DeclareCarrier | BindToken | RemoveBinding


class Observation(NamedTuple):
    """The observed state, in addition to the token tables of the exchanges.

    Args:
        tokens: the tokens of the virtual host.
        unverified: tokens to bind again, since they could not be listed.
        foreign: bindings to remove.
        conflicts: exchanges for which no actions are returned, since an exchange on the broker conflicts with their
            carrier, each with the description of the conflict.
    """

    names: ObservedState
    tokens: Tokens
    unverified: Sequence[BindToken] = ()
    foreign: Sequence[RemoveBinding] = ()
    conflicts: Mapping[bytes, str] = MappingProxyType({})


def diff(
    desired: DesiredState, queues: Sequence[DeclareQueue], observed: Observation, *, declare_all: bool = False
) -> list[Action]:
    """Return the actions that establish the desired state, in the order of execution.

    Args:
        declare_all: whether existing carriers are also declared, so that the broker reports differences.
    """
    names = observed.names
    queue_actions = [
        queue for queue in queues if not names.knows((QUEUE, queue.name)) and unnameable(queue.name) is None
    ]
    carriers = [
        DeclareCarrier(exchange)
        for exchange in desired.made
        if exchange.name not in observed.conflicts
        and (declare_all or not names.exchanges_complete or exchange.carrier not in names.exchanges)
    ]
    coming = {(QUEUE, action.name) for action in queue_actions}
    tokens = [
        first_token(desired, observed.tokens, exchange, destination)
        for exchange in desired.carriers
        if exchange.name not in observed.conflicts
        for destination in sorted(desired.tokens_of(exchange))
        if not is_bound(desired, observed.tokens, exchange, destination)
        and (destination in coming or names.unbindable(destination) is None)
    ]
    return [*queue_actions, *carriers, *tokens, *observed.unverified, *observed.foreign]


def first_token(desired: DesiredState, tokens: Tokens, exchange: OwnedExchange, destination: Destination) -> BindToken:
    """Return the action that binds a destination with its first candidate."""
    return BindToken(exchange, destination, exchange.candidates(destination, tokens, desired.router)[0])


def is_bound(desired: DesiredState, tokens: Tokens, exchange: OwnedExchange, destination: Destination) -> bool:
    """Return True if at least one candidate of a destination is bound."""
    return exchange.token(destination, tokens, desired.router) is not None


def find_conflicts(desired: DesiredState, exchanges: Mapping[bytes, ExchangeInfo]) -> dict[bytes, str]:
    """Find conflicts between the broker and the rules; return descriptions with advice, by exchange name."""
    conflicts = internal_conflicts(desired.published, exchanges)
    for exchange in desired.made:
        text = carrier_conflict(exchange, exchanges.get(exchange.carrier))
        if text is not None:
            conflicts[exchange.name] = text
    return conflicts


def undetermined(desired: DesiredState, names: ObservedState) -> list[Destination]:
    """Return destinations that must exist, but could not be listed and therefore must be queried individually."""
    complete = {QUEUE: names.queues_complete, EXCHANGE: names.exchanges_complete}
    return [
        destination
        for destination in desired.existing
        if not complete[destination[0]] and unnameable(destination[1]) is None
    ]


def missing_destinations(
    desired: DesiredState,
    observed: Observation,
    refused: Mapping[Action, str],
    lacking: Mapping[Destination, str],
) -> dict[Destination, str]:
    """Return the destinations that can't be reached, with the reasons.

    Args:
        lacking: queried destinations that could not be found, with the reasons.
    """
    names = observed.names
    undeclared = {
        (QUEUE, action.name): why
        for action, why in refused.items()
        if isinstance(action, DeclareQueue) and not names.knows((QUEUE, action.name))
    }
    unbound = {action.destination: why for action, why in refused.items() if isinstance(action, BindToken)}
    missing = dict(undeclared)
    for exchange in desired.carriers:
        for destination in desired.tokens_of(exchange):
            if not is_bound(desired, observed.tokens, exchange, destination):
                why = undeclared.get(destination) or names.unbindable(destination) or unbound.get(destination)
                why = why or observed.conflicts.get(exchange.name)
                if why is not None:  # otherwise, its queue was deleted and declared again while it was bound
                    missing.setdefault(destination, why)
    for destination, role in desired.existing.items():
        absent = undeclared.get(destination) or unnameable(destination[1]) or names.absence_reason(destination)
        if absent is not None:
            missing.setdefault(destination, f"{role}: {absent}" if role else absent)
    missing |= lacking
    # Destinations that the address table redirects need not exist, since no message is sent to them.
    for destination, translation in desired.translated.items():
        if not desired.existing.get(destination) and destination not in undeclared:
            missing.pop(destination, None)
        if translation.failure:
            missing[destination] = f"its translation by the address table fails: {translation.failure}"
    return missing


def believed_tokens(desired: DesiredState, listed: Collection[bytes], observed: Observation) -> list[BindToken]:
    """Return the tokens to bind again because they are assumed to be bound on carriers that could not be listed.

    Args:
        listed: names of the exchanges whose carriers were listed.
    """
    names = observed.names
    return [
        first_token(desired, observed.tokens, exchange, destination)
        for exchange in desired.carriers
        if exchange.name not in listed
        for destination in sorted(exchange.tokens.bound)
        if names.unbindable(destination) is None
    ]
