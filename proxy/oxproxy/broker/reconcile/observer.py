"""Observes the queues, exchanges, tokens and unwanted bindings of one virtual host.

The management API is used if it is configured. If a listing fails, the pass continues without its result. In each pass,
up to a fixed number of objects that could not be listed are looked up by name. Nothing is declared or removed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, TypeVar

import structlog

from oxproxy.broker.declared.store import DeclarationStore
from oxproxy.broker.management_api import BindingInfo, ManagementApi
from oxproxy.broker.methods import ABSENT, unnameable
from oxproxy.broker.reconcile.checks import CarrierRows, carrier_rows_in_steps
from oxproxy.broker.reconcile.desired import DesiredState
from oxproxy.broker.reconcile.diff import undetermined
from oxproxy.broker.reconcile.observed import ObservedState
from oxproxy.broker.reconcile.warnings import BrokerWarnings
from oxproxy.broker.steps import in_steps
from oxproxy.errors import UpstreamError
from oxproxy.relay.tokens import Tokens
from oxproxy.relay.vhost import OwnedExchange
from oxproxy.values import EXCHANGE, QUEUE, Destination, describe, shown

T = TypeVar("T")

#: Number of concurrent listings of bindings.
_READERS = 4
#: The time that RabbitMQ needs for a list grows faster than the number of bindings. If a carrier has at least
#: `_MANY_BINDINGS` bindings, they are therefore requested by destination. Each request scans all bindings, so this is
#: done only if there are at most `_DESTINATIONS` destinations. Before the first list, the number of bindings is
#: unknown, so at most `_FIRST_REQUESTS` requests are sent for all carriers together.
_MANY_BINDINGS, _DESTINATIONS, _FIRST_REQUESTS = 20_000, 64, 128
#: If listing an exchange's bindings takes longer than `_LONG_SECONDS`, the list is not requested in every pass, but
#: only once `_SHARE` times the duration of the last listing has passed.
_LONG_SECONDS, _SHARE = 1.0, 9
#: Maximum number of objects, among those that are no longer listed, that are looked up on the broker.
_COMPARED = 8
#: Maximum number of names in one log line.
_SHOWN = 20

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Reading:
    """The bindings of a carrier as of the last listing.

    Args:
        digest: the digest of the listing; b"" if there is none.
        tokens: the tokens of the virtual host at the time of the listing.
        rows: the bindings by kind.
        ends: whether the exchange has tokens, but no client's binding.
        current_until: time until which a long, unchanged list of bindings need not be requested again.
    """

    exchange: OwnedExchange
    digest: bytes = b""
    tokens: Tokens | None = None
    rows: CarrierRows = field(default_factory=CarrierRows)
    size: int = 0
    ends: bool = False
    current_until: float = 0.0


class _Turns:
    """Returns consecutive parts of a list in turn, starting over at the end."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._first = 0

    def share(self, items: list[T], *, whole: bool) -> list[T]:
        if whole or len(items) <= self._size:
            return items
        first = self._first % len(items)
        self._first = first + self._size
        return (items[first:] + items[:first])[: self._size]


#: Queries the broker for destinations; returns the missing destinations with the reasons.
Find: TypeAlias = Callable[[Iterable[Destination]], Awaitable[dict[Destination, str]]]
#: Queries the broker for destinations; returns those that certainly exist.
FindExisting: TypeAlias = Callable[[Iterable[Destination]], Awaitable[set[Destination]]]


class Observer:
    """Observes one virtual host; `share` is the maximum number of names queried in one pass.

    Six attributes are the means of observation; the others are results, which the next pass compares with its own.
    """

    def __init__(
        self,
        store: DeclarationStore,
        management: ManagementApi | None,
        observed: ObservedState,
        find: Find,
        find_existing: FindExisting,
        share: int = 256,
    ) -> None:
        self._store = store
        self._vhost = store.state.name
        self._management = management
        self._observed = observed
        self._find = find
        self._find_existing = find_existing
        #: Whether the listings of this pass are those of another broker.
        self._misled = False
        #: The readings of all carriers, by carrier.
        self.readings: dict[bytes, Reading] = {}
        #: Number of announcements received.
        self._announcements = 0
        self._carriers, self._unlisted, self.verified = _Turns(share), _Turns(share), _Turns(share)
        self._lacking: dict[Destination, str] = {}
        self._failed: list[str] = []
        #: Errors in this pass that prevented the bindings of a client's exchange from being read for the first time.
        self.unread: list[UpstreamError] = []
        #: Listings that failed in the last pass.
        self.failures: tuple[str, ...] = ()
        self.warnings = BrokerWarnings(self._vhost, management, observed, self._failed.append)

    def reading(self, exchange: OwnedExchange) -> Reading:
        """Return the last reading of an exchange's carrier, or an empty reading if there is none."""
        last = self.readings.get(exchange.carrier)
        return last if last is not None and last.exchange is exchange else Reading(exchange)

    def _is_current(self, reading: Reading) -> bool:
        """Return True if a listing was read with the tokens that are used now."""
        return reading.tokens is self._store.state.tokens

    @property
    def foreign(self) -> dict[bytes, tuple[BindingInfo, ...]]:
        """Foreign bindings, by carrier."""
        return {carrier: last.rows.foreign for carrier, last in self.readings.items() if last.rows.foreign}

    @property
    def stale(self) -> dict[bytes, int]:
        """Number of bindings with tokens made with secrets that are not listed, by carrier."""
        return {carrier: len(last.rows.stale) for carrier, last in self.readings.items() if last.rows.stale}

    async def list_names(self) -> None:
        """List queues and exchanges at the start of a pass."""
        self._failed.clear()
        self.unread.clear()
        names, management = self._observed, self._management
        queues = exchanges = None
        queues_before, exchanges_before = dict(names.queues), self._store.exchanges_before()
        known_exchanges = tuple(names.exchanges)
        if management is not None:
            queues, exchanges = await asyncio.gather(
                self._listed(management.queues), self._listed(management.exchanges)
            )
        names.queues_complete, names.exchanges_complete = False, False
        lacking: list[Destination] = []
        if queues is not None:
            lacking += [
                (QUEUE, name) for name, info in queues_before.items() if name not in queues and not info.exclusive
            ]
        if exchanges is not None:
            lacking += [(EXCHANGE, name) for name in known_exchanges if name not in exchanges]
        self._misled = await self._is_misled(lacking)
        if self._misled:
            queues = exchanges = None
        if queues is not None:
            names.queues_listed(queues_before, queues)
        self._store.state.broker_exchanges = None
        if exchanges is not None:
            names.exchanges_listed(exchanges)
            self._store.exchanges_listed(exchanges_before, exchanges)

    async def _is_misled(self, lacking: Iterable[Destination]) -> bool:
        """Return True if an object that is no longer listed exists on the broker of the control connection.

        The management API can be that of a node that is not, or not yet, in the same cluster, for example a node that
        was restarted without its data. Messages for the objects that it lacks would be dropped and confirmed.
        """
        asked = sorted(item for item in lacking if unnameable(item[1]) is None)
        found = await self._find_existing(asked[:_COMPARED])
        if found:
            what = describe(min(found))
            self._failed.append(f"the management API is not that of the broker: it does not list {what}, which exists")
        return bool(found)

    async def _listed(self, listing: Callable[[str], Awaitable[T]]) -> T | None:
        try:
            return await listing(self._vhost)
        except UpstreamError as error:
            self._failed.append(str(error))
            return None

    async def find_absent(self, desired: DesiredState, *, thorough: bool) -> list[Destination]:
        """Query clients' exchanges that could not be listed; return the destinations that do not exist.

        Args:
            thorough: whether earlier results are ignored, and known queues that could not be listed are also queried.
        """
        asked: list[Destination] = []
        if not self._observed.exchanges_complete:
            declared = [(EXCHANGE, exchange.carrier) for exchange in desired.carriers if exchange.declared is not None]
            asked += self._carriers.share(declared, whole=thorough)
        if thorough:
            self._lacking.clear()
            if not self._observed.queues_complete:  # the broker may have lost queues that were seen earlier
                asked += [(QUEUE, name) for name in self._observed.queues if unnameable(name) is None]
        return [destination for destination, why in (await self._find(asked)).items() if why == ABSENT]

    async def ask_unlisted(self, desired: DesiredState, *, thorough: bool) -> dict[Destination, str]:
        """Query the broker for destinations that must exist but could not be listed; return those that are missing."""
        unlisted = undetermined(desired, self._observed)
        asked = self._unlisted.share(unlisted, whole=thorough)
        answers = await self._find(asked)
        silent = set(unlisted).difference(asked)
        self._lacking = {
            destination: why for destination, why in self._lacking.items() if destination in silent
        } | answers
        return self._lacking

    def current(self, desired: DesiredState) -> frozenset[bytes]:
        """Return exchanges whose bindings need not be listed in this pass.

        RabbitMQ needs 10 s to list 100,000 bindings, so listing them in every pass would occupy one CPU core of the
        broker.
        """
        now = asyncio.get_running_loop().time()
        readings = [self.reading(exchange) for exchange in desired.carriers]
        return frozenset(last.exchange.name for last in readings if now < last.current_until and self._is_current(last))

    def announced(self, names: Collection[bytes] | None) -> None:
        """Record that other sidecars have changed the given exchanges, so that the next pass lists their bindings.

        None means that any exchange may have changed.
        """
        self._announcements += 1
        for last in self.readings.values():
            if names is None or last.exchange.name in names:
                last.current_until = 0.0

    async def read_bindings(self, carriers: Sequence[OwnedExchange], *, names_listed: bool = False) -> set[bytes]:
        """Read the bindings of carriers: tokens, clients' bindings and foreign bindings.

        Args:
            names_listed: whether this pass has listed all queues and exchanges, which are the possible destinations.

        Returns:
            Names of the exchanges whose bindings could be read.
        """
        if self._management is None or self._misled:
            return set()
        read: set[bytes] = set()
        work = iter(carriers)

        async def reader(management: ManagementApi) -> None:
            for exchange in work:
                try:
                    await self._read(management, exchange, len(carriers) if names_listed else None)
                except UpstreamError as error:
                    self._failed.append(str(error))
                    if self._is_new(exchange):
                        self.unread.append(error)
                else:
                    read.add(exchange.name)

        await asyncio.gather(*(reader(self._management) for _ in range(min(_READERS, len(carriers)))))
        return read

    def _is_new(self, exchange: OwnedExchange) -> bool:
        """Return True if a client's exchange has been listed, but its bindings have not been read yet."""
        listed = exchange.declared is not None and self._observed.exchanges_complete
        return listed and exchange.carrier not in self.readings

    def _destinations(self, exchange: OwnedExchange, carriers: int) -> list[Destination] | None:
        """Return the possible destinations of a carrier if its bindings should be requested by destination.

        Args:
            carriers: number of carriers whose bindings are being read.
        """
        seen, last = self._observed, self.readings.get(exchange.carrier)
        if last is None:
            limit = min(_DESTINATIONS, _FIRST_REQUESTS // carriers)
        else:
            limit = _DESTINATIONS if last.size >= _MANY_BINDINGS else 0
        if len(seen.queues) + len(seen.exchanges) > limit:
            return None
        # Destinations may have been declared through this sidecar since the names were listed.
        names = {(QUEUE, name) for name in seen.queues} | {(EXCHANGE, name) for name in seen.exchanges if name}
        names |= exchange.tokens.bound.keys() | exchange.clients.receivers.keys()
        return sorted(names) if len(names) <= limit and not any(map(_unreadable, names)) else None

    async def _read(self, management: ManagementApi, exchange: OwnedExchange, carriers: int | None) -> None:
        listings = self._store.listings
        last = self.reading(exchange)
        last.current_until = 0.0
        tokens = self._store.state.tokens
        # A listing with foreign or unverified bindings is processed again, even if it is unchanged.
        reusable = self._is_current(last) and not last.rows.foreign and listings.unchanged(exchange)
        clock = asyncio.get_running_loop().time
        began_at, events = clock(), exchange.tokens.events
        known = listings.before(exchange)
        announcements = self._announcements
        answer = await management.changed_bindings(
            self._vhost,
            exchange.carrier,
            last.digest if reusable else b"",
            self._destinations(exchange, carriers) if carriers is not None else None,
            partial(listings.read_ahead, exchange) if known is not None else None,
        )
        answered_at = clock()
        if answer is None:
            exchange.tokens.listed(events, last.rows.tokens)
            took_seconds = answered_at - began_at
            if took_seconds > _LONG_SECONDS and announcements == self._announcements:
                last.current_until = answered_at + _SHARE * took_seconds
            return
        digest, bindings = answer
        rows = await in_steps(carrier_rows_in_steps(bindings, tokens))
        self._note_foreign(exchange.carrier, rows.foreign)
        self._note_stale(exchange.carrier, len(rows.stale))
        ends = bool(rows.tokens) and not any(info.stores for info in bindings)
        self.readings[exchange.carrier] = Reading(exchange, digest, tokens, rows, len(bindings), ends)
        exchange.tokens.listed(events, rows.tokens)
        await listings.take(exchange, known, bindings)

    def _note_foreign(self, carrier: bytes, foreign: Sequence[BindingInfo]) -> None:
        last = self.readings.get(carrier)
        fresh = [binding for binding in foreign if last is None or binding not in last.rows.foreign]
        if fresh:
            log.warning(
                "foreign bindings bypass the rules",
                vhost=self._vhost,
                carrier=shown(carrier),
                count=len(foreign),
                bindings=[str(binding) for binding in fresh[:_SHOWN]],
            )

    def _note_stale(self, carrier: bytes, count: int) -> None:
        last = self.readings.get(carrier)
        if count != (0 if last is None else len(last.rows.stale)):
            log.info(
                "tokens made with secrets that are not listed; no message uses them, and oxproxy cleanup --stale "
                "removes them",
                vhost=self._vhost,
                carrier=shown(carrier),
                count=count,
            )

    def forget_others(self, desired: DesiredState) -> None:
        """Discard the readings of carriers that are no longer needed."""
        carriers = {exchange.carrier for exchange in desired.carriers}
        self.readings = {carrier: last for carrier, last in self.readings.items() if carrier in carriers}

    def finish(self) -> None:
        """Log new failures at the end of a pass."""
        for text in self._failed:
            if text not in self.failures:
                log.warning("inventory not complete", vhost=self._vhost, error=text)
        if self.failures and not self._failed:
            log.info("inventory complete again", vhost=self._vhost)
        self.failures = tuple(self._failed)


def log_missing(vhost: str, last: Collection[str], missing: Mapping[str, str]) -> None:
    """Log destinations that are newly missing, and destinations that exist again; see `VhostState.missing`."""
    gone, back = sorted(missing.keys() - last), sorted(set(last).difference(missing))
    if gone:
        names = [f"{name}: {missing[name]}" for name in gone[:_SHOWN]]
        log.warning("destinations missing", vhost=vhost, count=len(missing), destinations=names)
    if back:
        log.info("destinations found", vhost=vhost, missing=len(missing), destinations=back[:_SHOWN])


def _unreadable(destination: Destination) -> bool:
    """Return True if the management API can't find a destination: its name is not UTF-8 or is a relative path."""
    name = shown(destination[1])
    return "\ufffd" in name or name in (".", "..")
