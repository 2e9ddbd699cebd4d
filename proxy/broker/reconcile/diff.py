"""The difference between the desired and the observed state of one virtual host, as actions: pure functions.

Other sidecars, a broker that lost something and manual bindings need no special case here: whatever they did, the next
observation shows it, and the difference restores the desired state. `executor` carries the actions out; `desired` and
`observer` compute the two sides.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from proxy.broker.management_api import BindingInfo, ExchangeInfo
from proxy.broker.methods import ABSENT, unnameable
from proxy.broker.reconcile.checks import carrier_conflict, internal_conflicts
from proxy.broker.reconcile.desired import DesiredState, WantedQueue
from proxy.broker.reconcile.observed import ObservedState
from proxy.relay.vhost import CarrierType, Delivery, OwnedExchange, StoredBinding
from proxy.values import EXCHANGE, QUEUE, Destination, Table

#: A binding to make: destination, key, raw entries of its argument table.
KeptRow: TypeAlias = tuple[Destination, bytes, bytes]


@dataclass(frozen=True, slots=True)
class MakeQueue:
    """Declares a queue of the rules; an existing one is used as it is."""

    name: bytes
    arguments: Table = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"declare queue {_text(self.name)}"


@dataclass(frozen=True, slots=True)
class DeclareCarrier:
    """Declares the carrier of an exchange."""

    exchange: OwnedExchange

    def __str__(self) -> str:
        carrier_type = CarrierType.TOPIC if self.exchange.is_topic else CarrierType.DIRECT
        return f"declare {carrier_type.value} exchange {_text(self.exchange.carrier)}"


class BindToken(NamedTuple):
    """Binds a destination to the carrier of an exchange under its tokens; verifies existing bindings."""

    exchange: OwnedExchange
    destination: Destination

    def __str__(self) -> str:
        """Describe it for operators, without the token, which is secret."""
        kind, name = self.destination
        return f"bind {kind} {_text(name)} to exchange {_text(self.exchange.carrier)}"


@dataclass(frozen=True, slots=True)
class RemoveBinding:
    """Removes an unwanted binding of a carrier with any arguments.

    Args:
        why: log message; nothing is logged if it is empty.
        moves: places where the stored binding is bound first.
    """

    carrier: bytes
    binding: BindingInfo
    why: str = ""
    moves: tuple[KeptRow, ...] = ()

    def __str__(self) -> str:
        return f"remove binding of exchange {_text(self.carrier)} to {self.binding}"


class UnbindRows(NamedTuple):
    """Unbinds rows under the tokens of a destination.

    Args:
        rows: by what distinguishes them (`relay.token_table`).
        needless: whether nothing needs the destination, so that no publish may use its token any more.
        hands_over: whether the plain row goes as well, and a pin takes its place for other sidecars.
    """

    exchange: OwnedExchange
    destination: Destination
    rows: tuple[bytes, ...]
    needless: bool = False
    hands_over: bool = False


Action: TypeAlias = MakeQueue | DeclareCarrier | BindToken | RemoveBinding


class Observation(NamedTuple):
    """The observed state.

    Args:
        tokens: by exchange, the destinations of which every token is bound on its carrier; the assumed ones if the
            carrier could not be listed.
        conflicts: exchanges of ours whose carrier is in conflict with the broker: they are left alone.
    """

    names: ObservedState
    tokens: Mapping[bytes, Set[Destination]]
    unverified: Sequence[BindToken] = ()
    surplus: Sequence[RemoveBinding] = ()
    conflicts: Collection[bytes] = ()


def diff(
    desired: DesiredState, queues: Sequence[WantedQueue], observed: Observation, *, declare_all: bool = False
) -> list[Action]:
    """Return the actions that establish the desired state, in order.

    Args:
        declare_all: whether existing carriers are declared as well: the broker compares them with ours.
    """
    names = observed.names
    made = [
        MakeQueue(queue.name, queue.arguments)
        for queue in queues
        if not names.knows((QUEUE, queue.name)) and unnameable(queue.name) is None
    ]
    carriers = [
        DeclareCarrier(exchange)
        for exchange in desired.made
        if exchange.name not in observed.conflicts
        and (declare_all or not names.exchanges_complete or exchange.carrier not in names.exchanges)
    ]
    coming = {(QUEUE, action.name) for action in made}
    tokens = [
        BindToken(exchange, destination)
        for exchange in desired.carriers
        if exchange.name not in observed.conflicts
        for destination in sorted(desired.tokens_of(exchange) - observed.tokens.get(exchange.name, frozenset()))
        if destination in coming or names.unreachable(destination) is None
    ]
    return [*made, *carriers, *tokens, *observed.unverified, *observed.surplus]


def find_conflicts(desired: DesiredState, exchanges: Mapping[bytes, ExchangeInfo]) -> dict[bytes, str]:
    """Find what on the broker contradicts the rules: the exchange's name and what to do."""
    conflicts = internal_conflicts(desired.published, exchanges)
    for exchange in desired.made:
        text = carrier_conflict(exchange, exchanges.get(exchange.carrier))
        if text is not None:
            conflicts[exchange.name] = text
    return conflicts


def undetermined(desired: DesiredState, names: ObservedState) -> list[Destination]:
    """Return destinations that have to exist and are in no listing: the broker must be queried."""
    complete = {QUEUE: names.queues_complete, EXCHANGE: names.exchanges_complete}
    return [one for one in desired.existing if not complete[one[0]] and unnameable(one[1]) is None]


def missing_destinations(
    desired: DesiredState,
    observed: ObservedState,
    refused: Mapping[Action, str],
    lacking: Mapping[Destination, str],
) -> dict[Destination, str]:
    """Return the destinations that can't be reached, with the reason.

    Args:
        desired: what the rules need; bound tokens are in ``bound`` of its exchanges.
        lacking: queried destinations that the broker does not have.
    """
    undeclared = {
        (QUEUE, action.name): why
        for action, why in refused.items()
        if isinstance(action, MakeQueue) and not observed.knows((QUEUE, action.name))
    }
    unbound = {action.destination: why for action, why in refused.items() if isinstance(action, BindToken)}
    missing = dict(undeclared)
    for destination, holders in desired.holders.items():
        if any(destination not in exchange.bound for exchange in holders):
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
    desired: DesiredState, listed: Collection[bytes], names: ObservedState
) -> tuple[list[BindToken], list[BindToken]]:
    """Judge the tokens on carriers that could not be listed.

    Args:
        listed: names of the exchanges whose carriers were listed.

    Returns:
        Tokens that may be bound and have to be verified, and tokens that can't be bound any more.
    """
    believed: list[BindToken] = []
    gone: list[BindToken] = []
    for exchange in desired.carriers:
        if exchange.name in listed:
            continue
        for destination in sorted(exchange.bound):
            token = BindToken(exchange, destination)
            if names.absence_reason(destination) is not None:
                gone.append(token)
            elif not names.exclusive(destination) and may_bind(desired, token):
                believed.append(token)
    return believed, gone


def may_bind(desired: DesiredState, token: BindToken) -> bool:
    """Return True if the control user may bind a token again: not one bound with a client's permissions only."""
    exchange, destination = token
    return (exchange.declared is None and not exchange.clients) or destination in desired.tokens_of(exchange)


def lost_bindings(
    before: Collection[StoredBinding], listed: Collection[bytes], missing: Mapping[Destination, str]
) -> list[StoredBinding]:
    """Find clients' bindings whose destination does not exist, if no listing of bindings shows their deletion.

    Args:
        listed: exchanges whose bindings were listed.
    """
    return [
        stored
        for stored in before
        if stored.binding.exchange not in listed and missing.get(stored.destination) == ABSENT
    ]


def retired_tokens(old: DesiredState, new: DesiredState) -> tuple[BindToken, ...]:
    """Find the tokens to remove after a swap of rules: needed before, and not any more."""
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
    """Share token tables with the old exchanges that have the same carrier."""
    current = _by_carrier(old)
    for exchange in exchanges.values():
        if exchange.delivery is Delivery.CARRIER and exchange.carrier in current:
            exchange.tokens = current[exchange.carrier].tokens
            exchange.form = current[exchange.carrier].form
            exchange.leftover = current[exchange.carrier].leftover


def _by_carrier(desired: DesiredState) -> dict[bytes, OwnedExchange]:
    return {exchange.carrier: exchange for exchange in desired.carriers}


def _text(name: bytes) -> str:
    return name.decode(errors="replace")
