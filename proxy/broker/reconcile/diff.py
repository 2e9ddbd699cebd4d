"""The difference between what is desired and what was observed in one virtual host, as actions: pure functions.

Other sidecars, a broker that lost something and bindings made by hand need no case of their own here: whatever they
did, the next observation shows it, and the difference leads back to what is desired. `executor` carries the actions
out; `desired` and `observer` compute the two sides.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from proxy.broker.management_api import BindingInfo
from proxy.broker.methods import ABSENT, unnameable
from proxy.broker.reconcile.desired import DesiredState, WantedQueue
from proxy.broker.reconcile.observed import ObservedState
from proxy.relay.vhost import Delivery, OwnedExchange, StoredBinding
from proxy.values import EXCHANGE, QUEUE, Destination, Table

#: A binding to make: destination, key, raw entries of its argument table.
KeptRow: TypeAlias = tuple[Destination, bytes, bytes]


@dataclass(frozen=True, slots=True)
class MakeQueue:
    """Declares a queue of the rules; one that exists is taken as it is."""

    name: bytes
    arguments: Table = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"declare queue {_text(self.name)}"


@dataclass(frozen=True, slots=True)
class DeclareCarrier:
    """Declares the exchange on the broker that carries an exchange's messages."""

    exchange: OwnedExchange

    def __str__(self) -> str:
        return f"declare exchange {_text(self.exchange.carrier)}"


class BindToken(NamedTuple):
    """Binds a destination to the carrier of an exchange under its tokens; where they are bound already, verifies it."""

    exchange: OwnedExchange
    destination: Destination

    def __str__(self) -> str:
        """For operators; it does not contain the token, which is secret."""
        kind, name = self.destination
        return f"bind {kind} {_text(name)} to exchange {_text(self.exchange.carrier)}"


@dataclass(frozen=True, slots=True)
class RemoveBinding:
    """Removes a binding of a carrier that is not to be there, whatever its arguments are.

    Args:
        why: written to the log; nothing is where it is empty.
        moves: what the binding keeps is bound in these places first.
    """

    carrier: bytes
    binding: BindingInfo
    why: str = ""
    moves: tuple[KeptRow, ...] = ()

    def __str__(self) -> str:
        return f"remove binding of exchange {_text(self.carrier)} to {self.binding}"


Action: TypeAlias = MakeQueue | DeclareCarrier | BindToken | RemoveBinding


class Observation(NamedTuple):
    """What was observed.

    Args:
        tokens: by exchange, the destinations of which every token is bound on its carrier; of a carrier that could not
            be listed, what is believed.
        conflicts: exchanges of ours whose carrier is something else on the broker: nothing is done about them.
    """

    names: ObservedState
    tokens: Mapping[bytes, Set[Destination]]
    unverified: Sequence[BindToken] = ()
    surplus: Sequence[RemoveBinding] = ()
    conflicts: Collection[bytes] = ()


def diff(
    desired: DesiredState, queues: Sequence[WantedQueue], observed: Observation, *, declare_all: bool = False
) -> list[Action]:
    """Return what makes a virtual host as it should be, in the order in which it must be done.

    Args:
        declare_all: whether carriers that exist are declared as well: the broker compares them with ours.
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


def undetermined(desired: DesiredState, names: ObservedState) -> list[Destination]:
    """Return what has to exist and is in no listing: the broker must be asked for it."""
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
        desired: what the rules need; tokens that stand are in ``bound`` of its exchanges.
        lacking: what the broker does not have, of what it was asked for.
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
    # What no message goes to, since the address table sends it elsewhere, need not exist.
    for destination, translation in desired.translated.items():
        if not desired.existing.get(destination) and destination not in undeclared:
            missing.pop(destination, None)
        if translation.failure:
            missing[destination] = f"its translation by the address table leads nowhere: {translation.failure}"
    return missing


def believed_tokens(
    desired: DesiredState, listed: Collection[bytes], names: ObservedState
) -> tuple[list[BindToken], list[BindToken]]:
    """Judge the tokens on carriers that could not be listed.

    Args:
        listed: names of the exchanges whose carriers were listed.

    Returns:
        Tokens that can stand and are to be verified, and tokens that can't stand any more.
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
    """Return whether the control user may bind a token again: not one that was bound with a client's rights alone."""
    exchange, destination = token
    return (exchange.declared is None and not exchange.clients) or destination in desired.tokens_of(exchange)


def lost_bindings(
    before: Collection[StoredBinding], listed: Collection[bytes], missing: Mapping[Destination, str]
) -> list[StoredBinding]:
    """Find clients' bindings whose destination does not exist, where no listing of bindings says that they are gone.

    Args:
        listed: exchanges whose bindings were listed.
    """
    return [
        stored
        for stored in before
        if stored.binding.exchange not in listed and missing.get(stored.destination) == ABSENT
    ]


def retired_tokens(old: DesiredState, new: DesiredState) -> tuple[BindToken, ...]:
    """Find the tokens that go after a swap of rules: needed before, and not any more."""
    coming = _by_carrier(new)
    return tuple(
        BindToken(exchange, destination)
        for exchange in old.carriers
        for destination in sorted(old.tokens_of(exchange))
        if exchange.carrier not in coming or destination not in new.tokens_of(coming[exchange.carrier])
    )


def needed_again(desired: DesiredState, token: BindToken) -> bool:
    """Return whether the rules of now need a token that was to go."""
    now = _by_carrier(desired).get(token.exchange.carrier)
    return now is not None and token.destination in desired.tokens_of(now)


def share_tables(old: DesiredState, exchanges: Mapping[bytes, OwnedExchange]) -> None:
    """Give new exchanges the table of tokens of the carriers that they share with old ones."""
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
