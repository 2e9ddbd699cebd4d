"""Computes the actions that change the observed state of a virtual host to the desired state.

Changes made by other sidecars or operators, and objects that the broker has lost, need no special case: the next
observation shows them, and the returned actions restore the desired state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from proxy.broker.management_api import BindingInfo, ExchangeInfo
from proxy.broker.methods import ABSENT, DeclareQueue, unnameable
from proxy.broker.reconcile.checks import carrier_conflict, internal_conflicts
from proxy.broker.reconcile.desired import DesiredState
from proxy.broker.reconcile.observed import ObservedState
from proxy.relay.vhost import Delivery, OwnedExchange, StoredBinding
from proxy.values import EXCHANGE, QUEUE, Destination, describe, shown

#: A binding to create: destination, key, and raw entries of the argument table.
KeptRow: TypeAlias = tuple[Destination, bytes, bytes]


@dataclass(frozen=True, slots=True)
class DeclareCarrier:
    """Declares the carrier of an exchange."""

    exchange: OwnedExchange

    def __str__(self) -> str:
        return f"declare {self.exchange.carrier_type.value} exchange {shown(self.exchange.carrier)}"


class BindToken(NamedTuple):
    """Binds a destination with its tokens to the carrier of an exchange. This also verifies existing bindings."""

    exchange: OwnedExchange
    destination: Destination

    def __str__(self) -> str:
        """Describe the action for operators, without the token, which is secret."""
        return f"bind {describe(self.destination)} to exchange {shown(self.exchange.carrier)}"


@dataclass(frozen=True, slots=True)
class RemoveBinding:
    """Removes an unwanted binding on a carrier, regardless of its arguments.

    Args:
        why: log message; if it is empty, nothing is logged.
        moves: bindings to create first, so that a client's binding stored in the removed binding is not lost.
    """

    carrier: bytes
    binding: BindingInfo
    why: str = ""
    moves: tuple[KeptRow, ...] = ()

    def __str__(self) -> str:
        return f"remove binding of exchange {shown(self.carrier)} to {self.binding}"


class UnbindRows(NamedTuple):
    """Unbinds rows whose keys are a destination's tokens.

    Args:
        rows: identities of the rows (`relay.token_table`).
        needless: whether the destination is no longer needed. Publishes must then stop using its token.
        hands_over: whether the plain row is also unbound, and replaced with a pin for other sidecars.
    """

    exchange: OwnedExchange
    destination: Destination
    rows: tuple[bytes, ...]
    needless: bool = False
    hands_over: bool = False


Action: TypeAlias = DeclareQueue | DeclareCarrier | BindToken | RemoveBinding


class Observation(NamedTuple):
    """The observed state.

    Args:
        tokens: destinations whose tokens are all bound on the carrier, by exchange. If a carrier could not be listed,
            tokens that were bound earlier are assumed to be still bound.
        unverified: tokens to bind again.
        surplus: bindings to remove.
        conflicts: exchanges for which no actions are returned, since an exchange on the broker conflicts with their
            carrier.
    """

    names: ObservedState
    tokens: Mapping[bytes, Set[Destination]]
    unverified: Sequence[BindToken] = ()
    surplus: Sequence[RemoveBinding] = ()
    conflicts: Collection[bytes] = ()


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
        BindToken(exchange, destination)
        for exchange in desired.carriers
        if exchange.name not in observed.conflicts
        for destination in sorted(desired.tokens_of(exchange) - observed.tokens.get(exchange.name, frozenset()))
        if destination in coming or names.unreachable(destination) is None
    ]
    return [*queue_actions, *carriers, *tokens, *observed.unverified, *observed.surplus]


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
    observed: ObservedState,
    refused: Mapping[Action, str],
    lacking: Mapping[Destination, str],
) -> dict[Destination, str]:
    """Return the destinations that can't be reached, with the reasons.

    Args:
        desired: the desired state; bound tokens are in the ``bound`` attribute of its exchanges.
        lacking: queried destinations that could not be found, with the reasons.
    """
    undeclared = {
        (QUEUE, action.name): why
        for action, why in refused.items()
        if isinstance(action, DeclareQueue) and not observed.knows((QUEUE, action.name))
    }
    unbound = {action.destination: why for action, why in refused.items() if isinstance(action, BindToken)}
    missing = dict(undeclared)
    for exchange in desired.carriers:
        for destination in desired.tokens_of(exchange) - exchange.bound:
            why = observed.unreachable(destination) or unbound.get(destination) or "not bound yet"
            missing.setdefault(destination, why)
    for destination, role in desired.existing.items():
        absent = unnameable(destination[1]) or observed.absence_reason(destination)
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


def believed_tokens(
    desired: DesiredState, listed: Collection[bytes], names: ObservedState, *, thorough: bool = False
) -> tuple[list[BindToken], list[BindToken]]:
    """Assess the tokens that are assumed to be bound on carriers that could not be listed.

    Args:
        listed: names of the exchanges whose carriers were listed.
        thorough: whether tokens that can't be verified are discarded. Relays request these tokens again.

    Returns:
        Tokens to verify by binding them again, and tokens that are no longer assumed to be bound.
    """
    believed: list[BindToken] = []
    gone: list[BindToken] = []
    for exchange in desired.carriers:
        if exchange.name in listed:
            continue
        # Other tokens may have been bound for clients' routes, which must not use the control user's permissions.
        rules_only = exchange.declared is None and not exchange.clients
        for destination in sorted(exchange.bound):
            may_bind = rules_only or destination in desired.tokens_of(exchange)
            if names.absence_reason(destination) is not None or (thorough and not may_bind):
                gone.append(BindToken(exchange, destination))
            elif may_bind and not names.exclusive(destination):
                believed.append(BindToken(exchange, destination))
    return believed, gone


def lost_bindings(
    before: Collection[StoredBinding], listed: Collection[bytes], missing: Mapping[Destination, str]
) -> list[StoredBinding]:
    """Find clients' bindings whose destination does not exist.

    Args:
        listed: exchanges to skip, since the list of their bindings has already shown which bindings no longer exist.
    """
    return [
        stored
        for stored in before
        if stored.binding.exchange not in listed and missing.get(stored.destination) == ABSENT
    ]


def retired_tokens(old: DesiredState, new: DesiredState) -> tuple[BindToken, ...]:
    """Find the tokens that only the old rules need. They are removed after the rules have been swapped."""
    coming = _by_carrier(new)
    return tuple(
        BindToken(exchange, destination)
        for exchange in old.carriers
        for destination in sorted(old.tokens_of(exchange))
        if exchange.carrier not in coming or destination not in new.tokens_of(coming[exchange.carrier])
    )


def needed_again(desired: DesiredState, token: BindToken) -> bool:
    """Return True if the current rules need a token that was to be removed."""
    now = _by_carrier(desired).get(token.exchange.carrier)
    return now is not None and token.destination in desired.tokens_of(now)


def share_tables(old: DesiredState, exchanges: Mapping[bytes, OwnedExchange]) -> None:
    """Let new exchanges share the token tables of old exchanges with the same carrier."""
    current = _by_carrier(old)
    for exchange in exchanges.values():
        if exchange.delivery is Delivery.CARRIER and exchange.carrier in current:
            exchange.tokens = current[exchange.carrier].tokens
            exchange.form = current[exchange.carrier].form
            exchange.leftover = current[exchange.carrier].leftover


def _by_carrier(desired: DesiredState) -> dict[bytes, OwnedExchange]:
    return {exchange.carrier: exchange for exchange in desired.carriers}
