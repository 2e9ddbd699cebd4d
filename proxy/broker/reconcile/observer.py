"""Observes the queues, exchanges, tokens and unwanted bindings of one virtual host.

The management API is used if it is configured. If a listing fails, the pass continues without its result. In each pass,
up to a fixed number of objects that could not be listed are looked up by name. Nothing is declared or removed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import NamedTuple, TypeAlias, TypeVar

import structlog

from proxy.broker.declared.store import DeclarationStore
from proxy.broker.management_api import BindingInfo, ExchangeInfo, ManagementApi, QueueInfo, listings
from proxy.broker.methods import ABSENT, unnameable
from proxy.broker.reconcile.carrier_forms import has_eight_words
from proxy.broker.reconcile.checks import (
    CarrierTokens,
    bypasses,
    carrier_tokens,
    dead_letter_warnings,
    foreign_bindings,
    grants_bound,
    topic_warnings,
)
from proxy.broker.reconcile.desired import DesiredState
from proxy.broker.reconcile.diff import RemoveBinding, undetermined
from proxy.broker.reconcile.observed import ObservedState
from proxy.errors import UpstreamError
from proxy.relay.tokens import TokenForm, Tokens
from proxy.relay.vhost import OwnedExchange
from proxy.values import EXCHANGE, QUEUE, Destination, shown

T = TypeVar("T")
#: A destination on our own broker, or the label of another broker and a destination there.
K = TypeVar("K", Destination, tuple[str, Destination])

#: Number of concurrent listings of bindings.
_READERS = 4
#: RabbitMQ's time for a list grows faster than the list, so at least `_MANY_BINDINGS` of a carrier are requested by
#: destination. Each request scans all bindings, so there is a limit to the number of destinations. Before the first
#: list, the number of bindings is unknown; then at most `_FIRST_REQUESTS` are sent for all carriers together.
_MANY_BINDINGS, _DESTINATIONS, _FIRST_REQUESTS = 20_000, 64, 128
#: If listing an exchange's bindings takes longer than `_LONG_SECONDS`, the list is not requested in every pass, but
#: only after `_SHARE` times the duration of the last listing.
_LONG_SECONDS, _SHARE = 1.0, 9
#: Maximum number of names in one log line.
_SHOWN = 20
#: Maximum number of exchanges, upstream or downstream of carriers, whose bindings are checked.
_DOWNSTREAM_LIMIT = 200

#: The tokens to use if there is no store.
_UNKEYED = Tokens()

log = structlog.get_logger(__name__)


class Names(NamedTuple):
    """Listed queues and exchanges; None if the listing failed or there is no management API."""

    queues: Mapping[bytes, QueueInfo] | None
    exchanges: Mapping[bytes, ExchangeInfo] | None


class _Reading(NamedTuple):
    """The bindings of a carrier as of the last listing."""

    exchange: OwnedExchange
    digest: bytes
    tokens: Tokens
    carrier_tokens: CarrierTokens
    size: int = 0
    eight_words: bool = False


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


class Observer:
    """Observes one virtual host; `share` is the maximum number of names queried in one pass."""

    def __init__(
        self,
        vhost: str,
        management: ManagementApi | None,
        observed: ObservedState,
        find: Find,
        store: DeclarationStore | None = None,
        share: int = 256,
    ) -> None:
        self.store = store
        self._readings: dict[bytes, _Reading] = {}
        #: For each exchange with a long, unchanged list of bindings, the time until which it need not be listed again.
        self._current_until: dict[bytes, float] = {}
        #: Number of announcements received.
        self._announcements = 0
        self._vhost = vhost
        self._management = management
        self._observed = observed
        self._find = find
        self._carriers, self._unlisted, self.verified = _Turns(share), _Turns(share), _Turns(share)
        self._lacking: dict[Destination, str] = {}
        self._warned: set[str] = set()
        self._failed: list[str] = []
        #: Foreign bindings, by carrier.
        self.foreign: dict[bytes, list[BindingInfo]] = {}
        #: Copies of clients' bindings that were in the last listings and have to be removed, by carrier.
        self.superfluous: dict[bytes, list[RemoveBinding]] = {}
        #: Clients' exchanges that are listed, but whose bindings have never been read successfully, with the error.
        self.unread: dict[bytes, UpstreamError] = {}
        #: Listings that failed in the last pass.
        self.failures: tuple[str, ...] = ()
        #: Alternate and dead-letter exchanges that route to carriers, as sentences for operators.
        self.bypasses: tuple[str, ...] = ()
        self._leading: set[bytes] = set()

    def _tokens(self, exchange: OwnedExchange) -> Tokens:
        return self.store.state.tokens_of(exchange) if self.store is not None else _UNKEYED

    def carrier_tokens(self, exchange: OwnedExchange) -> CarrierTokens:
        """Return the tokens on the carrier of an exchange as of the last listing."""
        last = self._readings.get(exchange.carrier)
        return last.carrier_tokens if last is not None and last.exchange is exchange else CarrierTokens()

    def has_eight_words(self, exchange: OwnedExchange) -> bool:
        last = self._readings.get(exchange.carrier)
        return last is not None and last.exchange is exchange and last.eight_words

    def binding_count(self, exchange: OwnedExchange) -> int:
        """Return the number of bindings on the carrier of an exchange in the last listing."""
        last = self._readings.get(exchange.carrier)
        return last.size if last is not None and last.exchange is exchange else 0

    def incomplete(self, exchange: OwnedExchange) -> Set[Destination]:
        """Return destinations for which at least one token was missing in the last listing of an exchange's carrier."""
        last = self._readings.get(exchange.carrier)
        if last is None or last.exchange is not exchange or last.tokens is not self._tokens(exchange):
            return frozenset()
        return last.carrier_tokens.incomplete

    def tokens(self) -> dict[str, int]:
        """Count the bindings with old tokens on all carriers, by kind of token."""
        seen = [last.carrier_tokens for last in self._readings.values()]
        return {"unkeyed": sum(tokens.unkeyed for tokens in seen), "previous": sum(tokens.previous for tokens in seen)}

    def failed(self, error: UpstreamError) -> None:
        self._failed.append(str(error))

    async def list_names(self) -> Names:
        """List queues and exchanges at the start of a pass."""
        self._failed.clear()
        self.unread.clear()
        if self._management is None:
            return Names(None, None)
        queues, exchanges = await listings(self._management, self._vhost)
        self._failed += [str(answer) for answer in (queues, exchanges) if isinstance(answer, UpstreamError)]
        return Names(
            None if isinstance(queues, UpstreamError) else queues,
            None if isinstance(exchanges, UpstreamError) else exchanges,
        )

    async def find_absent(self, desired: DesiredState, *, thorough: bool) -> list[Destination]:
        """Query needed objects that could not be listed; return the destinations that do not exist.

        Args:
            thorough: whether earlier results are ignored.
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
        """Query destinations that must exist and could not be listed; return the missing destinations."""
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
        broker. However, carriers with rows that rules need are always listed, since other sidecars may hand over rows.
        """
        now = asyncio.get_running_loop().time()
        return frozenset(
            exchange.name
            for exchange in desired.carriers
            if now < self._current_until.get(exchange.name, 0.0)
            and not desired.plain.get(exchange.name)
            and self._is_read(exchange)
        )

    def _is_read(self, exchange: OwnedExchange) -> bool:
        """Return True if the last list of the carrier's bindings was read for this exchange and its current tokens."""
        last = self._readings.get(exchange.carrier)
        return last is not None and last.exchange is exchange and last.tokens is self._tokens(exchange)

    def announced(self, names: Iterable[bytes] | None) -> None:
        """Record that other sidecars have changed the given exchanges, so that the next pass lists their bindings.

        None means that any exchange may have changed.
        """
        self._announcements += 1
        for name in list(self._current_until) if names is None else names:
            self._current_until.pop(name, None)

    async def read_bindings(self, carriers: Sequence[OwnedExchange], *, names_listed: bool = False) -> set[bytes]:
        """Read the bindings of carriers: tokens, clients' bindings and foreign bindings.

        Args:
            names_listed: whether this pass has listed all queues and exchanges, which are the possible destinations.

        Returns:
            Names of the exchanges whose bindings could be read.
        """
        if self._management is None:
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
                        self.unread[exchange.name] = error
                else:
                    read.add(exchange.name)

        await asyncio.gather(*(reader(self._management) for _ in range(min(_READERS, len(carriers)))))
        return read

    def _is_new(self, exchange: OwnedExchange) -> bool:
        """Return True if a client's exchange has been listed, but its bindings have not been read yet."""
        listed = exchange.declared is not None and self._observed.exchanges_complete
        return listed and exchange.carrier not in self._readings

    def _destinations(self, exchange: OwnedExchange, carriers: int) -> list[Destination] | None:
        """Return the possible destinations of a carrier if its bindings should be requested by destination.

        Args:
            carriers: number of carriers whose bindings are being read.
        """
        seen, last = self._observed, self._readings.get(exchange.carrier)
        if last is None:
            limit = min(_DESTINATIONS, _FIRST_REQUESTS // carriers)
        else:
            limit = _DESTINATIONS if last.size >= _MANY_BINDINGS else 0
        if len(seen.queues) + len(seen.exchanges) > limit:
            return None
        # Destinations may have been declared through this sidecar since the names were listed.
        names = {(QUEUE, name) for name in seen.queues} | {(EXCHANGE, name) for name in seen.exchanges if name}
        names |= exchange.tokens.destinations | exchange.receivers.keys()
        return sorted(names) if len(names) <= limit and not any(map(_unreadable, names)) else None

    async def _read(self, management: ManagementApi, exchange: OwnedExchange, carriers: int | None) -> None:
        store = self.store
        last = self._readings.get(exchange.carrier)
        tokens = self._tokens(exchange)
        unchanged = self._is_read(exchange) and exchange.carrier not in self.foreign
        if last is None or not unchanged or (store is not None and not store.listings.settled(exchange)):
            last = _Reading(exchange, b"", tokens, CarrierTokens())
        clock = asyncio.get_running_loop().time
        look = exchange.tokens.look(clock())
        known = store.listings.before(exchange) if store is not None else None
        self._current_until.pop(exchange.name, None)
        announcements = self._announcements
        destinations = self._destinations(exchange, carriers) if carriers is not None else None

        async def read_ahead(bindings: list[BindingInfo]) -> None:
            if store is not None and known is not None:
                await store.listings.read_ahead(exchange, bindings)

        answer = await management.changed_bindings(self._vhost, exchange.carrier, last.digest, destinations, read_ahead)
        answered_at = clock()
        if answer is not None:
            digest, bindings = answer
            if not exchange.bound and exchange.form is TokenForm.ONE_WORD and has_eight_words(bindings):
                exchange.form = TokenForm.EIGHT_WORDS
                tokens = self._tokens(exchange)
            last = self._readings[exchange.carrier] = _Reading(
                exchange,
                digest,
                tokens,
                carrier_tokens(bindings, tokens, exchange.leftover),
                len(bindings),
                has_eight_words(bindings),
            )
        exchange.tokens.listed(look, last.carrier_tokens.rows, clock())
        if answer is None:
            # No binding is foreign or unverified; otherwise, the last response's digest would not have been used.
            took_seconds, left = answered_at - look.began_at, last.carrier_tokens
            changing = self.superfluous.get(exchange.carrier) or left.incomplete or left.former
            if took_seconds > _LONG_SECONDS and announcements == self._announcements and not changing:
                self._current_until[exchange.name] = answered_at + _SHARE * took_seconds
            return
        for key, destination in grants_bound(bindings).items():
            exchange.grant(key, destination)
        self._note_foreign(exchange.carrier, foreign_bindings(bindings, tokens))
        if store is not None:
            self.superfluous[exchange.carrier] = [
                RemoveBinding(exchange.carrier, copy, "duplicate binding removed")
                for copy in await store.listings.take(exchange, known, bindings)
            ]

    async def warn(self, desired: DesiredState) -> None:
        """Log new conditions that prevent the rules from working as intended (see `checks`)."""
        known = self._observed.queues
        receivers = [known[name] for kind, name in desired.existing if kind == "queue" and name in known]
        warnings = dead_letter_warnings(receivers)
        if self._management is not None:
            self._leading = await self._upstream(self._management, [exchange.carrier for exchange in desired.carriers])
            starts = {name for kind, name in desired.holders if kind == "exchange"}
            warnings += await self._downstream(self._management, starts)
        for text in warnings:
            if text not in self._warned:
                log.warning("state of the broker conflicts with the rules", vhost=self._vhost, what=text)
        self._warned = set(warnings)

    async def _upstream(self, management: ManagementApi, carriers: Iterable[bytes]) -> set[bytes]:
        """Follow exchange-to-exchange bindings backwards to find the exchanges that route to carriers."""
        ahead = list(carriers)
        seen: set[bytes] = set(ahead)
        sources: set[bytes] = set()
        while ahead and len(sources) < _DOWNSTREAM_LIMIT:
            try:
                fresh = await management.sources(self._vhost, ahead.pop()) - seen
            except UpstreamError as error:
                self.failed(error)
                continue
            seen |= fresh
            sources |= fresh
            ahead += sorted(fresh)
        return sources

    def note_bypasses(self, desired: DesiredState) -> None:
        """Find bypasses in the observed state, and log new bypasses."""
        carriers = {exchange.carrier for exchange in desired.carriers}
        last, self.bypasses = self.bypasses, ()
        if carriers:
            seen = self._observed
            self.bypasses = tuple(bypasses(carriers, self._leading, seen.exchanges.values(), seen.queues.values()))
        fresh = [text for text in self.bypasses if text not in last]
        if fresh:
            log.warning(
                "messages can reach carriers without being evaluated",
                vhost=self._vhost,
                count=len(self.bypasses),
                ways=fresh[:_SHOWN],
            )

    async def _downstream(self, management: ManagementApi, starts: set[bytes]) -> list[str]:
        """Follow exchange-to-exchange bindings in search of topic patterns that match tokens."""
        warnings: list[str] = []
        seen: set[bytes] = set()
        ahead = sorted(starts)
        while ahead and len(seen) < _DOWNSTREAM_LIMIT:
            name = ahead.pop()
            info = self._observed.exchanges.get(name)
            if name in seen or info is None:
                continue
            seen.add(name)
            try:
                bindings = await management.bindings(self._vhost, name)
            except UpstreamError as error:
                self._failed.append(str(error))
                continue
            if info.type == "topic":
                warnings += topic_warnings(name, bindings)
            ahead += [item.destination for item in bindings if item.destination_type == "exchange"]
        return warnings

    def _note_foreign(self, carrier: bytes, foreign: list[BindingInfo]) -> None:
        last = self.foreign.pop(carrier, [])
        if not foreign:
            return
        self.foreign[carrier] = foreign
        fresh = [binding for binding in foreign if binding not in last]
        if fresh:
            log.warning(
                "foreign bindings bypass the rules",
                vhost=self._vhost,
                carrier=shown(carrier),
                count=len(foreign),
                bindings=[str(binding) for binding in fresh[:_SHOWN]],
            )

    def forget_others(self, desired: DesiredState) -> None:
        """Forget what listings have shown of carriers that are no longer needed."""
        carriers = {exchange.carrier for exchange in desired.carriers}
        self._readings = {name: last for name, last in self._readings.items() if name in carriers}
        self.foreign = {name: bindings for name, bindings in self.foreign.items() if name in carriers}
        self.superfluous = {name: copies for name, copies in self.superfluous.items() if name in carriers}
        exchanges = {exchange.name for exchange in desired.carriers}
        self._current_until = {name: until for name, until in self._current_until.items() if name in exchanges}

    def finish(self) -> None:
        """Log new failures at the end of a pass."""
        for text in self._failed:
            if text not in self.failures:
                log.warning("inventory not complete", vhost=self._vhost, error=text)
        if self.failures and not self._failed:
            log.info("inventory complete again", vhost=self._vhost)
        self.failures = tuple(self._failed)


def log_missing(vhost: str, last: Collection[K], missing: Mapping[K, str], describe: Callable[[K], str]) -> None:
    """Log destinations that are newly missing, and destinations that exist again."""
    gone, back = sorted(missing.keys() - last), sorted(set(last).difference(missing))
    if gone:
        names = [f"{describe(item)}: {missing[item]}" for item in gone[:_SHOWN]]
        log.warning("destinations missing", vhost=vhost, count=len(missing), destinations=names)
    if back:
        names = [describe(item) for item in back[:_SHOWN]]
        log.info("destinations found", vhost=vhost, missing=len(missing), destinations=names)


def _unreadable(destination: Destination) -> bool:
    """Return True if the management API can't find a destination by name: the name is not UTF-8, or a relative path."""
    name = shown(destination[1])
    return "\ufffd" in name or name in (".", "..")
