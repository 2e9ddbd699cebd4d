"""Keeps the client declarations of one virtual host in sync with the declarations stored on the broker.

A listing shows the state at an unknown time between the request and the response. Changes made through this sidecar in
the meantime take precedence, so a listing is compared with the state at the time of the request. A listed item that is
unknown here may have been created and deleted in the meantime. Such an item is accepted only if nothing changed since
the request, or if the next listing also contains the item. This module sends no requests (see `reconcile.observer`).

A listing may contain tens of thousands of bindings. `BindingListings` therefore decodes only bindings that were not in
the previous listing, and regularly returns control to the event loop, so that relays can run. Raw bytes stored on the
broker (`relay.declare.storage`) may be damaged; the functions that convert them to exchanges and bindings then raise a
``ValueError`` with the reason.

Source: architecture, "The broker is the store".
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, TypeAlias

import structlog

from oxproxy.amqp.tables import decode_table
from oxproxy.broker.management_api import BindingInfo, ExchangeInfo
from oxproxy.errors import ProtocolError
from oxproxy.garbage import exclude_from_collection, without_collection
from oxproxy.relay.declare.storage import (
    ALTERNATE,
    CARRIER_TYPE,
    DELIVERY,
    StoredArguments,
    identity_key,
    open_exchange,
    signed_fields,
    unpack,
)
from oxproxy.relay.tokens import STORAGE_WORD, Secrets
from oxproxy.relay.vhost import (
    BindingCopy,
    CarrierType,
    ClientLayer,
    DeclaredExchange,
    OwnedExchange,
    StoredBinding,
    VhostState,
)
from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.filters import argument_faults
from oxproxy.values import Destination, Table, describe, shown

log = structlog.get_logger(__name__)


def exchange_from_listing(info: ExchangeInfo) -> tuple[OwnedExchange, Exchange]:
    """Create the open exchange that a client declared, from its carrier on the broker.

    Raises:
        ValueError: the stored data is damaged, or contradicts the exchange on the broker.
    """
    kept = unpack(info.kept.encode())
    declared = DeclaredExchange(info.durable, info.auto_delete, info.internal, kept.entries, kept.sequence)
    try:
        owned, exchange = open_exchange(info.name, declared)
    except ProtocolError as error:
        raise ValueError(str(error)) from error
    owned.carrier_type = CarrierType(info.type)
    # The broker has checked permissions only for the alternate exchange in the carrier's own arguments.
    permitted = info.arguments.get(ALTERNATE.decode())
    if (None if owned.alternate is None else shown(owned.alternate)) != permitted:
        raise ValueError(f"its stored alternate exchange differs from the one on the broker, {permitted!r}")
    return owned, exchange


def binding_from_listing(state: VhostState, exchange: bytes, carrier: bytes, info: BindingInfo) -> StoredBinding:
    """Create a client's binding from its stored form on the broker.

    Args:
        state: the virtual host, whose secrets verify the binding.
        carrier: name of the carrier; the signature covers this name.

    Raises:
        ValueError: the stored data is damaged, or belongs to another binding.
    """
    kept = unpack(info.kept.encode())
    secret = signing_secret(state.secrets, state.name, carrier, info, kept)
    # A sidecar has accepted the binding, so its operators are allowed whatever the setting `declared.extensions`.
    named = exchange, *info.destination, kept.routing_key, _table(kept.entries)
    binding = Binding(*named, sequence=kept.sequence, extensions=True)
    key = identity_key(binding.identity, one_word=info.routing_key.startswith(STORAGE_WORD))
    if key != info.routing_key:
        raise ValueError("it belongs to another binding")
    return StoredBinding(
        binding, key, (BindingCopy(kept.sequence, kept.client, kept.entries, info.signature.encode(), secret),)
    )


def signing_secret(
    secrets: Secrets, vhost: str, carrier: bytes, info: BindingInfo, kept: StoredArguments
) -> int | None:
    """Return the index of the secret with which a stored binding is signed; None if it is none of these secrets."""
    fields = signed_fields(vhost, carrier, info.destination, kept.client, kept.sequence, kept.routing_key, kept.entries)
    return secrets.verify(info.signature.encode(), *fields)


def _table(entries: bytes) -> Table:
    try:
        return decode_table(entries, 0, len(entries))
    except ProtocolError as error:
        raise ValueError(str(error)) from error


#: Number of bindings that are read or applied before control is returned to the event loop.
_STEP = 32
#: Maximum number of bindings in one log line.
_SHOWN = 20

#: Identity of a stored binding in a listing.
_Row: TypeAlias = tuple[Destination, bytes, str, str]


class BindingsBefore(NamedTuple):
    """The state of an exchange when a listing of its bindings was requested."""

    layer: ClientLayer
    clients: Mapping[Hashable, StoredBinding]
    changes: int


@dataclass(slots=True)
class _Decoded:
    """A stored binding in a listing; `listing` is the number of the last listing that contained it."""

    identity: Hashable
    stored: StoredBinding
    listing: int = 0


@dataclass(slots=True)
class _Listed:
    """State derived from the listings of one exchange's bindings.

    Args:
        decoded: the stored bindings in the last listing. The table is updated, not replaced, since freeing a table of
            100,000 rows and making another one would block the event loop.
        listing: number of listings so far.
        unverified: identities of the bindings that the next listing has to confirm.
        applied: the clients' bindings and their number of changes when the last listing was applied; None if anything
            else changed them between the request and the application of that listing.
        unsigned: descriptions of the bindings that are not signed with any of our secrets.
        previous: number of bindings that are signed, but not with the current secret.
    """

    decoded: dict[_Row, _Decoded] = field(default_factory=dict)
    listing: int = 0
    unverified: set[Hashable] = field(default_factory=set)
    applied: tuple[ClientLayer, int] | None = None
    unsigned: list[str] = field(default_factory=list)
    previous: int = 0


class BindingListings:
    """Processes listings of bindings in one virtual host."""

    def __init__(self, store: DeclarationStore) -> None:
        self._store = store
        self._state = store.state
        self._listed: dict[bytes, _Listed] = {}

    @property
    def has_unverified(self) -> bool:
        """True if a listed binding must be confirmed by the next listing."""
        return any(last.unverified for last in self._listed.values())

    @property
    def unsigned(self) -> dict[bytes, list[str]]:
        """Descriptions of bindings that are signed with none of our secrets, by exchange, as of the last listings."""
        return {name: last.unsigned for name, last in self._listed.items() if last.unsigned}

    @property
    def previous(self) -> dict[bytes, int]:
        """Number of bindings that are signed, but not with the current secret, by exchange, as of the last listings."""
        return {name: last.previous for name, last in self._listed.items() if last.previous}

    def forget(self, name: bytes) -> None:
        self._listed.pop(name, None)

    def forget_deleted(self) -> None:
        self._listed = {name: last for name, last in self._listed.items() if name in self._state.exchanges}

    def unchanged(self, owned: OwnedExchange) -> bool:
        """Return True if an exchange has not changed since the last listing of its bindings was applied."""
        last = self._listed.get(owned.name)
        if last is None or last.applied is None or not self._state.has(owned):
            return False
        layer, changes = last.applied
        return owned.clients is layer and layer.changes == changes

    def before(self, owned: OwnedExchange) -> BindingsBefore | None:
        """Return the input for `take`; None if the exchange is not in use. Must be called before the request."""
        layer = owned.clients
        return BindingsBefore(layer, dict(layer), layer.changes) if self._state.has(owned) else None

    async def read_ahead(self, owned: OwnedExchange, listed: Iterable[BindingInfo]) -> None:
        """Decode the stored bindings in a part of a listing, before `take` is called with the whole listing."""
        decoded = self._listed.setdefault(owned.name, _Listed()).decoded
        with without_collection():
            known = len(decoded)
            for number, info in enumerate(info for info in listed if info.stores):
                if number % _STEP == _STEP - 1:
                    await asyncio.sleep(0)
                row = _row(info)
                if row not in decoded and (result := self._decode(owned, info)) is not None:
                    decoded[row] = result
            exclude_from_collection(len(decoded) - known)

    async def take(self, owned: OwnedExchange, before: BindingsBefore | None, listed: Iterable[BindingInfo]) -> None:
        """Apply a listing of a carrier's bindings, including additions and removals made by other sidecars."""
        if before is None:
            return
        with without_collection():
            last = self._listed.setdefault(owned.name, _Listed())
            joined = await self._joined(owned, last, listed)
            believed, last.unverified = last.unverified, set()
            layer = before.layer
            expected_changes = before.changes
            for number, identity in enumerate(chain(joined, before.clients)):
                if number % _STEP == _STEP - 1:
                    await asyncio.sleep(0)
                if not self._is_same(owned, before):
                    return
                if number >= len(joined) and identity in joined:
                    continue
                is_disturbed = layer.changes != expected_changes
                changes = layer.changes
                then, now, stored = before.clients.get(identity), layer.get(identity), joined.get(identity)
                # If a relay has added, removed or replaced a binding since the request, the relay's change is kept.
                if now is None and then is None and stored is not None:
                    if is_disturbed and identity not in believed:
                        last.unverified.add(identity)
                    else:
                        self._store.add_binding(stored, identity)
                elif now is not None and now is then and (stored is None or now.copies != stored.copies):
                    self._store.remove_binding(now)
                    if stored is not None:
                        self._store.add_binding(stored, identity)
                expected_changes += layer.changes - changes
            is_applied = not last.unverified and layer.changes == expected_changes
            last.applied = (layer, layer.changes) if is_applied else None
            exclude_from_collection(len(joined) - len(before.clients))

    def found(self, owned: OwnedExchange, listed: Iterable[BindingInfo]) -> None:
        """Add the clients' bindings from an incomplete list of an exchange's bindings."""
        for info in listed:
            if info.stores and (decoded := self._decode(owned, info)) is not None:
                self._store.add_binding(decoded.stored, decoded.identity)

    def _is_same(self, owned: OwnedExchange, before: BindingsBefore) -> bool:
        """Return True if the exchange is still the same as when its bindings were requested."""
        return self._state.has(owned) and owned.clients is before.layer

    async def _joined(
        self, owned: OwnedExchange, last: _Listed, listed: Iterable[BindingInfo]
    ) -> dict[Hashable, StoredBinding]:
        """Read the stored bindings in a listing; return them by identity, with the copies of a binding merged."""
        last.listing += 1
        seen = 0
        joined: dict[Hashable, StoredBinding] = {}
        unsigned: list[str] = []
        previous: set[Hashable] = set()
        for number, info in enumerate(listed):
            if number % _STEP == _STEP - 1:
                await asyncio.sleep(0)
            if not info.stores:
                continue
            row = _row(info)
            decoded = last.decoded.get(row)
            if decoded is None:
                decoded = self._decode(owned, info)
                if decoded is None:
                    continue
                last.decoded[row] = decoded
            seen += decoded.listing != last.listing
            decoded.listing = last.listing
            identity, stored = decoded.identity, decoded.stored
            (copy,) = stored.copies
            if not copy.signed:
                unsigned.append(f"{info} (claimed user {copy.client!r}): {why_unsigned(info)}")
            elif copy.secret != 0:
                previous.add(identity)
            known = joined.get(identity)
            joined[identity] = stored if known is None else known.merged_with(stored)
        self._warn_of_unsigned(owned.name, unsigned, last.unsigned)
        last.unsigned = unsigned
        if seen < len(last.decoded):
            for row in [row for row, decoded in last.decoded.items() if decoded.listing != last.listing]:
                del last.decoded[row]
        # If its client binds again, such a binding gets a copy that is signed with the current secret.
        last.previous = sum(all(copy.secret != 0 for copy in joined[identity].copies) for identity in previous)
        return joined

    def _warn_of_unsigned(self, name: bytes, unsigned: list[str], known: list[str]) -> None:
        fresh = sorted(set(unsigned).difference(known))
        if fresh:
            log.warning(
                "bindings without a valid signature route only to their own destination",
                vhost=self._state.name,
                exchange=shown(name),
                count=len(unsigned),
                bindings=fresh[:_SHOWN],
            )

    def _decode(self, owned: OwnedExchange, info: BindingInfo) -> _Decoded | None:
        try:
            stored = binding_from_listing(self._state, owned.name, owned.carrier, info)
        except ValueError as error:
            self._store.log_fault(owned.name, f"the stored binding to {info} is damaged: {error}")
            return None
        return _Decoded(stored.binding.identity, stored)


def _row(info: BindingInfo) -> _Row:
    return info.destination, info.routing_key, info.kept, info.signature


def why_unsigned(info: BindingInfo) -> str:
    return "signature matches no configured secret" if info.signature else "no signature"


#: Maximum number of logged errors. It is limited because any user that is permitted to bind can cause such errors.
_LOGGED_FAULTS = 1000


class ExchangesBefore(NamedTuple):
    """The state when a listing was requested.

    Args:
        exchanges: the client exchanges that have a carrier, each with its value of `declares` at that time.
        epoch: the epoch of the virtual host at that time.
    """

    exchanges: Mapping[bytes, tuple[OwnedExchange, int]]
    epoch: int

    def has(self, owned: OwnedExchange | None) -> bool:
        """Return True if an exchange was known when the listing was requested and has not been declared again since."""
        return owned is not None and self.exchanges.get(owned.name) == (owned, owned.declares)


class DeclarationStore:
    """The declared exchanges and bindings of one virtual host."""

    def __init__(self, state: VhostState) -> None:
        self.state = state
        self.listings = BindingListings(self)
        self._kept: dict[bytes, str] = {}
        self._unverified: set[bytes] = set()
        self._logged_faults: set[tuple[bytes, str]] = set()

    @property
    def has_unverified(self) -> bool:
        """True if a listed exchange or binding must be confirmed by the next pass, which should run soon."""
        return bool(self._unverified) or self.listings.has_unverified

    # -- exchanges ---------------------------------------------------------------------------------------------

    def exchanges_before(self) -> ExchangesBefore:
        """Return the input for `exchanges_listed`. Must be called before the listing is requested."""
        known = {
            name: (owned, owned.declares) for name, owned in self.state.exchanges.items() if owned.declared is not None
        }
        return ExchangesBefore(known, self.state.epoch)

    def exchanges_listed(self, before: ExchangesBefore, listed: Mapping[bytes, ExchangeInfo]) -> None:
        """Apply a listing of all exchanges, some of which may have been created, deleted or replaced elsewhere."""
        self.state.broker_exchanges = {b"", *(name for name, info in listed.items() if not info.kept)}
        unverified, self._unverified = self._unverified, set()
        believed = self.state.epoch == before.epoch
        for name, info in listed.items():
            if info.kept:
                self._found(before, info, believed=believed or name in unverified)
        for name in before.exchanges:
            info_now = listed.get(name)
            if before.has(self.state.exchanges.get(name)) and (info_now is None or not info_now.kept):
                self._exchange_gone(name)

    def exchange_found(self, before: ExchangesBefore, name: bytes, info: ExchangeInfo | None) -> None:
        if info is not None and info.kept:
            self._found(before, info, believed=True)
        elif before.has(self.state.exchanges.get(name)):
            self._exchange_gone(name)
        known = self.state.broker_exchanges
        if known is not None and info is not None and name not in self.state.exchanges:
            known.add(name)

    def _exchange_gone(self, name: bytes) -> None:
        """Forget a deleted client exchange and its bindings."""
        self._forget(name)
        log.info("declared exchange was deleted", vhost=self.state.name, exchange=shown(name))

    def _found(self, before: ExchangesBefore, info: ExchangeInfo, *, believed: bool) -> None:
        """Add an exchange, or replace the known exchange if the exchange on the broker differs."""
        name = info.name
        now = self.state.exchanges.get(name)
        if now is None:
            if name in before.exchanges or name in self.state.carriers:
                return  # it was deleted in the meantime, or is the carrier of another exchange
            if not believed:
                self._unverified.add(name)
                return
        elif now.declared is None:
            return  # it is defined in a rules file
        elif not before.has(now) or self._kept.get(name) == info.kept:
            return
        try:
            owned, exchange = exchange_from_listing(info)
        except ValueError as error:
            self.log_fault(name, f"its stored data is damaged: {error}")
            return
        is_known = now is not None and owned.declared == now.declared
        if not is_known:
            if now is not None:
                self._forget(name)
            self.add_exchange(owned, exchange)
        self._kept[name] = info.kept
        self._warn_of_arguments(owned)
        if not is_known:
            log.info("declared exchange found", vhost=self.state.name, exchange=shown(name))

    def _forget(self, name: bytes) -> None:
        self._kept.pop(name, None)
        self.listings.forget(name)
        self.state.remove_exchange(name)

    def _warn_of_arguments(self, owned: OwnedExchange) -> None:
        """Log arguments that have no effect.

        Refusing them would break applications that work with the open-exchange plugin.
        """
        for fault in argument_faults(owned.arguments, (DELIVERY, CARRIER_TYPE)):
            if not fault.stray:
                names = {"vhost": self.state.name, "exchange": shown(owned.name), "argument": shown(fault.name)}
                log.warning("an argument of a declared exchange has no effect", **names, reason=fault.message)

    def add_exchange(self, owned: OwnedExchange, exchange: Exchange) -> None:
        self.state.add_exchange(owned, exchange)

    def forget_deleted(self) -> None:
        """Discard data on exchanges that no longer exist, such as those that relays have removed for their clients."""
        self._kept = {name: kept for name, kept in self._kept.items() if name in self.state.exchanges}
        self.listings.forget_deleted()

    # -- bindings ----------------------------------------------------------------------------------------------

    def add_binding(self, stored: StoredBinding, identity: Hashable = None) -> None:
        """Add a client's binding if it is valid; `identity` is computed if not given."""
        binding = stored.binding
        # Only signed bindings count: unsigned bindings are not trusted, and exchanges have no order.
        signed = [copy.sequence for copy in stored.copies if copy.signed]
        self.state.last_sequence = max(self.state.last_sequence, *signed, 0)
        try:
            self.state.add_binding(stored, identity=identity)
        except ProtocolError as error:
            self.log_fault(binding.exchange, f"the binding to {describe(stored.destination)} is not valid: {error}")

    def remove_binding(self, stored: StoredBinding) -> None:
        self.state.remove_binding(stored)

    def log_fault(self, name: bytes, text: str) -> None:
        if (name, text) not in self._logged_faults and len(self._logged_faults) < _LOGGED_FAULTS:
            self._logged_faults.add((name, text))
            log.error("a client declaration can't be used", vhost=self.state.name, exchange=shown(name), what=text)
