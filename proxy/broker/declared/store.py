"""What clients declared in one virtual host: read back from the broker and kept in step with it.

A listing tells what was there at some moment between its request and its answer; what passed through the sidecar
meanwhile counts more. So a listing is joined with the state as it was at the request, and what nobody here knows is
believed only if nothing changed meanwhile, or if the next listing says it again: it may have come and gone. It must
not ask the broker itself (see `survey`). Source: delivery notes, "The store".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, tzinfo
from typing import NamedTuple

import structlog

from proxy.broker.declared.binding_listings import BindingListings
from proxy.broker.declared.restoring import declared_exchange, exchange_of, stored_binding, verified, with_copies
from proxy.broker.declared.snapshot import BindingRecord, ExchangeRecord, SnapshotRecords
from proxy.broker.listed import ExchangeInfo
from proxy.errors import ProtocolError
from proxy.relay.declare.stored import DELIVERY
from proxy.relay.tokens import token
from proxy.relay.vhost import Delivery, Destination, OwnedExchange, StoredBinding, VhostState
from proxy.routing.exchange import Exchange
from proxy.routing.filters import argument_faults

#: Bindings of a snapshot taken in between two pauses in which others may run.
_STEP = 128
#: Faults that are written at most: whoever may bind can make more of them.
_SAID_LIMIT = 1000

log = structlog.get_logger(__name__)


class ExchangesBefore(NamedTuple):
    """What was known when exchanges were asked for: carriers that clients declared, and the state's epoch."""

    exchanges: Mapping[bytes, OwnedExchange]
    epoch: int


class Store:
    """The declared exchanges and bindings of one virtual host.

    Args:
        state: what the relays see; written here.
        local_time: time zone of ``dtl`` operators.
    """

    def __init__(self, state: VhostState, local_time: tzinfo = UTC) -> None:
        """Know what the state knows."""
        self.state = state
        #: Where listings of bindings go.
        self.listings = BindingListings(self)
        #: Grows with every change that a look brought.
        self.changes = 0
        self._local_time = local_time
        self._kept: dict[bytes, str] = {}
        self._doubtful: set[bytes] = set()
        self._said: set[tuple[bytes, str]] = set()

    @property
    def unsettled(self) -> bool:
        """Whether something was seen that only the next look can decide about; it should come soon."""
        return bool(self._doubtful) or self.listings.unsettled

    # -- exchanges ---------------------------------------------------------------------------------------------

    def exchanges_before(self) -> ExchangesBefore:
        """Give what `exchanges_listed` wants to know: call it before asking."""
        known = {
            name: owned
            for name, owned in self.state.exchanges.items()
            if owned.declared is not None and owned.delivery is Delivery.CARRIER
        }
        return ExchangesBefore(known, self.state.epoch)

    def exchanges_listed(self, before: ExchangesBefore, listed: Mapping[bytes, ExchangeInfo]) -> None:
        """Take a listing of all exchanges: those that came, went or were replaced beside us."""
        doubtful, self._doubtful = self._doubtful, set()
        believed = self.state.epoch == before.epoch
        for name, info in listed.items():
            if info.kept:
                self._found(before, info, believed=believed or name in doubtful)
        for name, owned in before.exchanges.items():
            info_now = listed.get(name)
            if self.state.exchanges.get(name) is owned and (info_now is None or not info_now.kept):
                self.exchange_gone(name)

    def exchange_found(self, before: ExchangesBefore, name: bytes, info: ExchangeInfo | None) -> None:
        """Take the answer about one exchange."""
        if info is not None and info.kept:
            self._found(before, info, believed=True)
        elif name in before.exchanges and self.state.exchanges.get(name) is before.exchanges[name]:
            self.exchange_gone(name)

    def exchange_gone(self, name: bytes) -> None:
        """Forget an exchange that a client declared; its bindings went with it."""
        self._forget(name)
        self.state.remove_exchange(name)
        self.changes += 1
        log.info("declared exchange is gone", vhost=self.state.name, exchange=_text(name))

    def _found(self, before: ExchangesBefore, info: ExchangeInfo, *, believed: bool) -> None:
        name = info.name
        now = self.state.exchanges.get(name)
        if now is None:
            if name in before.exchanges or name in self.state.carriers:
                return  # deleted meanwhile, or the carrier of another exchange
            if believed:
                self._add(info)
            else:
                self._doubtful.add(name)
        elif now.declared is None:
            return  # the file owns it
        elif now.delivery is Delivery.QUEUE:
            self.say(name, "an exchange with delivery: queue was declared with a carrier through another sidecar")
        elif now is before.exchanges.get(name) and self._kept.get(name) != info.kept:
            self._compare(now, info)

    def _compare(self, now: OwnedExchange, info: ExchangeInfo) -> None:
        """Look whether the exchange on the broker is another one than that known here."""
        try:
            owned, _ = exchange_of(info, self._local_time)
        except ValueError as error:
            self.say(info.name, f"what the broker keeps of it was damaged: {error}")
            return
        if owned.declared == now.declared:
            self._kept[info.name] = info.kept
            self._warn_of_arguments(owned)
            return
        self._forget(info.name)
        self.state.remove_exchange(info.name)
        self._add(info)

    def _add(self, info: ExchangeInfo) -> None:
        try:
            owned, exchange = exchange_of(info, self._local_time)
        except ValueError as error:
            self.say(info.name, f"what the broker keeps of it was damaged: {error}")
            return
        self._kept[info.name] = info.kept
        self.add_exchange(owned, exchange)
        self._warn_of_arguments(owned)
        log.info("declared exchange found", vhost=self.state.name, exchange=_text(info.name))

    def _warn_of_arguments(self, owned: OwnedExchange) -> None:
        """Log arguments without effect: refusing them would break applications that the plugin accepts."""
        for fault in argument_faults(owned.arguments, (DELIVERY,)):
            if not fault.stray:
                where = {"vhost": self.state.name, "exchange": _text(owned.name), "argument": _text(fault.name)}
                log.warning("an argument of a declared exchange has no effect", **where, reason=fault.message)

    def add_exchange(self, owned: OwnedExchange, exchange: Exchange) -> None:
        """Evaluate one more exchange that a client declared."""
        self.state.add_exchange(owned, exchange)
        self.changes += 1

    def _forget(self, name: bytes) -> None:
        self._kept.pop(name, None)
        self.listings.forget(name)

    # -- bindings ----------------------------------------------------------------------------------------------

    def add_binding(self, stored: StoredBinding) -> bool:
        """Add a client's binding; answer whether it could be."""
        binding = stored.binding
        if self.state.router.exchanges[binding.exchange].has(binding):
            return False  # the file has it, and comes first
        # An unsigned binding can say any sequence; those of exchanges order nothing.
        signed = [copy.sequence for copy in stored.copies if copy.signed]
        self.state.last_sequence = max(self.state.last_sequence, *signed, 0)
        try:
            self.state.add_binding(stored)
        except ProtocolError as error:
            shown = f"{binding.destination_type} {_text(binding.destination)}"
            self.say(binding.exchange, f"the binding to {shown} is not valid here: {error}")
            return False
        self.changes += 1
        return True

    def remove_binding(self, stored: StoredBinding) -> None:
        """Forget a client's binding."""
        self.state.remove_binding(stored)
        self.changes += 1

    async def remember(self, records: SnapshotRecords, *, carriers: bool) -> None:
        """Take in what a snapshot has of this virtual host; what is known already counts more.

        Args:
            records: the snapshot.
            carriers: whether exchanges with a carrier are meant too, since nobody can read them from the broker.
        """
        for exchange in records.exchanges:
            if exchange.vhost == self.state.name and exchange.name not in self.state.exchanges:
                if carriers or exchange.delivery is Delivery.QUEUE:
                    self._remember(exchange)
        for grant in records.grants:
            owned = self.state.exchanges.get(grant.exchange) if grant.vhost == self.state.name else None
            if owned is not None:
                owned.grant(grant.key, (grant.destination_type, grant.destination))
        for number, binding in enumerate(records.bindings):
            if number % _STEP == _STEP - 1:
                await asyncio.sleep(0)
            owned = self.state.exchanges.get(binding.exchange) if binding.vhost == self.state.name else None
            if owned is not None and (carriers or owned.delivery is Delivery.QUEUE):
                try:
                    self.add_binding(self._remembered(owned, binding))
                except ValueError as error:
                    self.say(binding.exchange, f"a binding of the snapshot was damaged: {error}")

    def _remember(self, record: ExchangeRecord) -> None:
        try:
            self.add_exchange(*declared_exchange(record.name, record.declared, record.delivery, self._local_time))
        except ValueError as error:
            self.say(record.name, f"its snapshot was damaged: {error}")

    def _remembered(self, owned: OwnedExchange, record: BindingRecord) -> StoredBinding:
        """Make a binding of a snapshot; of what is kept on the broker the signature counts as always."""
        key = record.routing_key
        names = record.exchange, record.destination_type, record.destination
        stored = stored_binding(*names, key, record.entries, [])
        copies = record.copies(token(*stored.destination), stored.key)
        if owned.delivery is Delivery.CARRIER:
            copies = [verified(self.state, owned.carrier, stored, copy) for copy in copies]
        return with_copies(stored, copies)

    def bindings(self) -> list[StoredBinding]:
        """Give the bindings that are here now; what is bound later can't be judged by a look that has begun."""
        return [stored for owned in self.state.exchanges.values() for stored in owned.clients.values()]

    def binding_gone(self, stored: StoredBinding) -> bool:
        """Forget a client's binding if it is still that one; answer whether it was."""
        binding = stored.binding
        owned = self.state.exchanges.get(binding.exchange)
        if owned is None or owned.clients.get(binding.identity) is not stored:
            return False
        self.remove_binding(stored)
        return True

    def destination_gone(self, destination: Destination, holders: Iterable[OwnedExchange]) -> bool:
        """Forget clients' bindings to a queue or exchange that is gone; answer whether there were any.

        Args:
            destination: what is gone.
            holders: exchanges whose bindings are meant.
        """
        found = [stored for owned in holders for stored in owned.receivers.get(destination, {}).values()]
        for stored in found:
            self.remove_binding(stored)
        return bool(found)

    def say(self, name: bytes, what: str) -> None:
        """Write a fault once."""
        if (name, what) not in self._said and len(self._said) < _SAID_LIMIT:
            self._said.add((name, what))
            log.error("declared state is not usable", vhost=self.state.name, exchange=_text(name), what=what)


def _text(name: bytes) -> str:
    return name.decode(errors="replace")
