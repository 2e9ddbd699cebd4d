"""How a listing of an exchange's bindings comes into the state: read, joined with what passed through us, applied.

Ten thousand bindings may stand; only those that came since the last listing are decoded, and relays run between two
steps. What clients bind and unbind meanwhile counts more than the listing (see `store`). Source: delivery notes, "The
store".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import NamedTuple, Protocol, TypeAlias

import structlog

from proxy.broker.declared.restoring import binding_of
from proxy.broker.listed import BindingInfo
from proxy.relay.vhost import OwnedExchange, StoredBinding, VhostState
from proxy.routing.exchange import Exchange

#: Bindings read or applied between two pauses in which others may run.
_STEP = 128
#: Bindings that one log line shows at most.
_SHOWN = 20

log = structlog.get_logger(__name__)

#: What makes a stored binding itself in a listing.
_Row: TypeAlias = tuple[str, bytes, bytes, str, str]
_Change: TypeAlias = Callable[[Hashable, StoredBinding], None]


class BindingsBefore(NamedTuple):
    """What was known when the bindings of an exchange were asked for."""

    exchange: Exchange
    clients: Mapping[Hashable, StoredBinding]
    changes: int


class DeclarationStore(Protocol):
    """Where declared state is kept; `Store` is one."""

    state: VhostState

    def add_binding(self, stored: StoredBinding) -> bool:
        """Add a client's binding."""

    def remove_binding(self, stored: StoredBinding) -> None:
        """Forget a client's binding."""

    def say(self, name: bytes, what: str) -> None:
        """Write a fault once."""


class BindingListings:
    """Takes listings of bindings in one virtual host.

    Args:
        store: what clients declared.
    """

    def __init__(self, store: DeclarationStore) -> None:
        """Have taken none yet."""
        self._store = store
        self._state = store.state
        self._doubtful: dict[bytes, set[Hashable]] = {}
        self._decoded: dict[bytes, dict[_Row, tuple[Hashable, StoredBinding]]] = {}
        self._applied: dict[bytes, tuple[Exchange, int]] = {}
        self._unsigned: dict[bytes, list[str]] = {}
        self._previous: dict[bytes, int] = {}

    @property
    def unsettled(self) -> bool:
        """Whether something was seen that only the next listing can decide about."""
        return any(name in self._state.exchanges for name in self._doubtful)

    @property
    def unsigned(self) -> dict[bytes, list[str]]:
        """Bindings of the last listings that none of our secrets signed, by exchange."""
        return {name: texts for name, texts in self._unsigned.items() if texts and name in self._state.exchanges}

    @property
    def previous(self) -> dict[bytes, int]:
        """How many bindings of the last listings a previous secret signed, by exchange."""
        return {name: count for name, count in self._previous.items() if count and name in self._state.exchanges}

    def forget(self, name: bytes) -> None:
        """An exchange is gone."""
        for memory in (self._doubtful, self._decoded, self._applied, self._unsigned, self._previous):
            memory.pop(name, None)

    def settled(self, owned: OwnedExchange) -> bool:
        """Say whether the state holds what the last listing of an exchange's bindings said, and nothing else."""
        applied = self._applied.get(owned.name)
        if applied is None or self._state.exchanges.get(owned.name) is not owned:
            return False
        exchange, changes = applied
        return self._state.router.exchanges.get(owned.name) is exchange and exchange.changes == changes

    def before(self, owned: OwnedExchange) -> BindingsBefore | None:
        """Give what `take` wants to know: call it before asking. None: the exchange is not in use."""
        if self._state.exchanges.get(owned.name) is not owned:
            return None
        exchange = self._state.router.exchanges[owned.name]
        return BindingsBefore(exchange, dict(owned.clients), exchange.changes)

    async def take(
        self, owned: OwnedExchange, before: BindingsBefore | None, listed: Iterable[BindingInfo]
    ) -> list[BindingInfo]:
        """Take a listing of the bindings of an exchange's carrier: those that clients made and unmade beside us.

        Returns:
            Copies of other bindings that are to be removed: whoever unbinds would not find them, since what is kept
            in them differs in more than the sequence (two sidecars got the same arguments in another order).
        """
        if before is None:
            return []
        joined, superfluous = await self._joined(owned, listed)
        join = _Join(self._store, owned, before, self._doubtful.pop(owned.name, set()))
        for number, (change, identity, stored) in enumerate(join.changes(joined)):
            if number % _STEP == _STEP - 1:
                await asyncio.sleep(0)
            if not join.current:
                return []
            join.make(change, identity, stored)
        if join.doubtful:
            self._doubtful[owned.name] = join.doubtful
        if join.doubtful or join.disturbed:
            self._applied.pop(owned.name, None)
        else:
            self._applied[owned.name] = (before.exchange, before.exchange.changes)
        return superfluous

    async def _joined(
        self, owned: OwnedExchange, listed: Iterable[BindingInfo]
    ) -> tuple[dict[Hashable, StoredBinding], list[BindingInfo]]:
        """Read the stored bindings of a listing; copies of one count as one, the lowest sequence wins."""
        name = owned.name
        last, fresh = self._decoded.get(name, {}), dict[_Row, tuple[Hashable, StoredBinding]]()
        joined: dict[Hashable, StoredBinding] = {}
        winners: dict[Hashable, BindingInfo] = {}
        superfluous: list[BindingInfo] = []
        unsigned: list[str] = []
        previous = 0
        for number, info in enumerate(listed):
            if number % _STEP == _STEP - 1:
                await asyncio.sleep(0)
            if not info.stores:
                continue
            row = (info.destination_type, info.destination, info.routing_key, info.kept, info.signature)
            decoded = last.get(row) or self._decode(owned, info)
            if decoded is None:
                continue
            fresh[row] = decoded
            identity, stored = decoded
            (copy,) = stored.copies
            if not copy.signed:
                unsigned.append(f"{info}, which says user {copy.client!r}: {why_unsigned(info)}")
            previous += bool(copy.secret)
            known = joined.get(identity)
            if known is not None and known.entries != stored.entries:
                later = _weight(known) > _weight(stored)
                loser, winner = (stored, known) if later else (known, stored)
                # Messages find the destination by a mark: it is never the one to go.
                if not loser.is_mark or loser.copies[0].key == winner.copies[0].key:
                    superfluous.append(info if later else winners[identity])
                if later:
                    continue
            elif known is not None:
                stored = known.together(stored)
            joined[identity] = stored
            winners[identity] = info
        self._decoded[name], self._previous[name] = fresh, previous
        self._note_unsigned(name, unsigned)
        return joined, superfluous

    def _note_unsigned(self, name: bytes, unsigned: list[str]) -> None:
        last = self._unsigned.get(name, [])
        self._unsigned[name] = unsigned
        fresh = sorted(set(unsigned).difference(last))
        if fresh:
            log.warning(
                "bindings that no sidecar signed: they reach their own destination alone",
                vhost=self._state.name,
                exchange=name.decode(errors="replace"),
                count=len(unsigned),
                bindings=fresh[:_SHOWN],
            )

    def _decode(self, owned: OwnedExchange, info: BindingInfo) -> tuple[Hashable, StoredBinding] | None:
        try:
            stored = binding_of(self._state, owned.name, owned.carrier, info)
        except ValueError as error:
            self._store.say(owned.name, f"what the broker keeps of the binding to {info} was damaged: {error}")
            return None
        return stored.binding.identity, stored


def why_unsigned(info: BindingInfo) -> str:
    """Say what is wrong with the signature of a binding that none of our secrets signed."""
    return "its signature is none of our secrets'" if info.signature else "no signature"


def _weight(stored: StoredBinding) -> tuple[bool, bool, int]:
    """Of two that differ in more than the sequence the greater counts."""
    return stored.signed, stored.is_mark, -stored.copies[0].sequence


class _Join:
    """One listing of bindings on its way into the state; relays may change it between two steps."""

    def __init__(
        self, store: DeclarationStore, owned: OwnedExchange, before: BindingsBefore, doubtful: set[Hashable]
    ) -> None:
        self._store = store
        self._owned = owned
        self._before = before
        self._believed = doubtful
        #: Changes of the exchange that are this listing's.
        self._own = 0
        self.doubtful: set[Hashable] = set()

    @property
    def current(self) -> bool:
        """Whether the exchange is still the one that was asked about."""
        state, name = self._store.state, self._owned.name
        return state.exchanges.get(name) is self._owned and state.router.exchanges.get(name) is self._before.exchange

    @property
    def disturbed(self) -> bool:
        """Whether somebody else changed the exchange since the listing was asked for."""
        return self._before.exchange.changes != self._before.changes + self._own

    def changes(self, listed: Mapping[Hashable, StoredBinding]) -> list[tuple[_Change, Hashable, StoredBinding]]:
        """Give what is to be looked at, for `make`."""
        there: list[tuple[_Change, Hashable, StoredBinding]] = [(self._take, *item) for item in listed.items()]
        return there + [(self._lose, *item) for item in self._before.clients.items() if item[0] not in listed]

    def make(self, change: _Change, identity: Hashable, stored: StoredBinding) -> None:
        """Make a change, if it still is one."""
        exchange = self._before.exchange
        changes = exchange.changes
        change(identity, stored)
        self._own += exchange.changes - changes

    def _take(self, identity: Hashable, stored: StoredBinding) -> None:
        known = self._owned.clients.get(identity)
        if known is None:
            if identity in self._before.clients:
                return  # unbound meanwhile
            if self.disturbed and identity not in self._believed:
                self.doubtful.add(identity)
            else:
                self._store.add_binding(stored)
        elif known is self._before.clients.get(identity) and known.copies != stored.copies:
            self._store.remove_binding(known)
            self._store.add_binding(stored)

    def _lose(self, identity: Hashable, stored: StoredBinding) -> None:
        if self._owned.clients.get(identity) is stored:
            self._store.remove_binding(stored)
