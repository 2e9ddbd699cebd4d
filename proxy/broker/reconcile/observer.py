"""Observes one virtual host through the management API: queues, exchanges, tokens, and bindings that are not ours.

`ObservedState` is the cache of the queues and exchanges. It has two sources: listings, and declarations that pass
through the sidecar. A listing describes some moment between its request and its answer, so what passed through in
between takes precedence.

`Observer` writes into `ObservedState` and into each exchange's `bound`, and logs what changed since the last pass. A
listing that fails costs its own answer, never the whole pass. Nothing is declared here.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import structlog

from proxy.broker.declared.store import DeclarationStore
from proxy.broker.management_api import BindingInfo, ExchangeInfo, ManagementApi, QueueInfo, listings
from proxy.broker.methods import ABSENT
from proxy.broker.reconcile.checks import (
    CarrierTokens,
    bypasses,
    carrier_conflict,
    carrier_tokens,
    dead_letter_warnings,
    foreign_bindings,
    grants_bound,
    internal_conflicts,
    topic_warnings,
)
from proxy.broker.reconcile.desired import DesiredState
from proxy.errors import UpstreamError
from proxy.relay.tokens import Tokens
from proxy.relay.vhost import Destination, OwnedExchange
from proxy.routing.decision import QueueNames

K = TypeVar("K")
V = TypeVar("V")


def merged(before: Mapping[K, V], now: Mapping[K, V], listed: Mapping[K, V]) -> dict[K, V]:
    """Join a listing with what was learned and forgotten while it was made.

    Args:
        before: what was known when the listing was asked for.
        now: what is known when it arrives.
        listed: what it says.
    """
    result = {key: value for key, value in listed.items() if key in now or key not in before}
    # What was forgotten and learned again is another object than before.
    result.update((key, value) for key, value in now.items() if before.get(key) is not value)
    return result


class ObservedState:
    """Queues and exchanges of a virtual host."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.queues: dict[bytes, QueueInfo] = {}
        self.exchanges: dict[bytes, ExchangeInfo] = {}
        #: Whether what is not known does not exist: false until a listing came, and while listings fail.
        self.queues_complete = False
        self.exchanges_complete = False

    def add_queue(self, name: bytes, exclusive: bool = False) -> None:
        """Take note of a queue that was just declared."""
        known = self.queues.get(name)
        if known is None or known.exclusive != exclusive:
            self.queues[name] = QueueInfo(name, exclusive)

    def remove_queue(self, name: bytes) -> None:
        """Take note of a queue that was just deleted."""
        self.queues.pop(name, None)

    def queues_listed(self, before: Mapping[bytes, QueueInfo], listed: Mapping[bytes, QueueInfo]) -> None:
        """Take a listing of queues; `before` is a copy of `queues` from when it was asked for."""
        self.queues = merged(before, self.queues, listed)
        self.queues_complete = True

    def exchanges_listed(self, listed: Mapping[bytes, ExchangeInfo]) -> None:
        """Take a listing of exchanges."""
        self.exchanges = dict(listed)
        self.exchanges_complete = True

    def absence_reason(self, destination: Destination) -> str | None:
        """Say why a destination can't be reached, None where it exists or nobody knows."""
        kind, name = destination
        if kind == "queue":
            lacking = self.queues_complete and name not in self.queues
        else:
            lacking = self.exchanges_complete and name not in self.exchanges
        return ABSENT if lacking else None

    def knows(self, destination: Destination) -> bool:
        """Say whether a destination is known to exist."""
        kind, name = destination
        return name in (self.queues if kind == "queue" else self.exchanges)

    def exclusive(self, destination: Destination) -> bool:
        """Say whether a destination is a queue that is exclusive to some connection."""
        kind, name = destination
        return kind == "queue" and name in self.queues and self.queues[name].exclusive

    def names(self, last: QueueNames) -> QueueNames:
        """Give the names of all queues: `last` itself where they are the same, else the next version."""
        names = tuple(sorted(self.queues))
        return last if names == last.names else QueueNames(names, last.version + 1)


def with_name(last: QueueNames, name: bytes) -> QueueNames:
    """Give the next version with one more name; `last` itself where it has it. Cheap for one among thousands."""
    at = bisect_left(last.names, name)
    if at < len(last.names) and last.names[at] == name:
        return last
    return QueueNames((*last.names[:at], name, *last.names[at:]), last.version + 1)


def without_name(last: QueueNames, name: bytes) -> QueueNames:
    """Give the next version without a name; `last` itself where it lacks it."""
    at = bisect_left(last.names, name)
    if at == len(last.names) or last.names[at] != name:
        return last
    return QueueNames((*last.names[:at], *last.names[at + 1 :]), last.version + 1)


#: Listings of bindings at a time.
_READERS = 4
#: Names that one log line shows at most.
_SHOWN = 20
#: Exchanges downstream of carriers whose bindings are read in search of patterns; behind that we trust.
_DOWNSTREAM_LIMIT = 200

#: where no store says more
_UNKEYED = Tokens()

log = structlog.get_logger(__name__)


async def _nothing_more() -> None:
    """Nobody waits for listings."""


class _Reading(NamedTuple):
    """What the bindings of a carrier were when they were read last."""

    exchange: OwnedExchange
    digest: bytes
    tokens: Tokens
    carrier_tokens: CarrierTokens


class Observer:
    """Looks at one virtual host.

    Args:
        vhost: its name.
        management: the management API, None where there is none.
        observed: what exists, kept up to date here.
        remove_foreign: whether foreign bindings are removed.
        store: what clients declared, kept up to date here.
    """

    def __init__(
        self,
        vhost: str,
        management: ManagementApi | None,
        observed: ObservedState,
        remove_foreign: bool = False,
        store: DeclarationStore | None = None,
    ) -> None:
        """Have seen nothing yet."""
        #: What clients declared.
        self.store = store
        self._readings: dict[bytes, _Reading] = {}
        self._vhost = vhost
        self._management = management
        self._observed = observed
        self._remove_foreign = remove_foreign
        self._warned: set[str] = set()
        self._failed: list[str] = []
        #: Bindings of carriers that are not ours, by carrier.
        self.foreign: dict[bytes, list[BindingInfo]] = {}
        #: Carrier and destination of tokens that stand and must not be relied on any more.
        self.leaving: set[tuple[bytes, Destination]] = set()
        #: Why listings failed at the last look; empty when all went well.
        self.failures: tuple[str, ...] = ()
        #: Alternate and dead-letter exchanges that lead to carriers, in sentences for operators.
        self.bypasses: tuple[str, ...] = ()
        self._leading: set[bytes] = set()
        #: Called when queues and exchanges have been listed, before anything is declared.
        self.looked: Callable[[], Awaitable[None]] = _nothing_more

    @property
    def _tokens(self) -> Tokens:
        return self.store.state.tokens if self.store is not None else _UNKEYED

    def carrier_tokens(self, exchange: OwnedExchange) -> CarrierTokens:
        """Give which tokens stood on the carrier of an exchange when its bindings were read last."""
        last = self._readings.get(exchange.carrier)
        return last.carrier_tokens if last is not None and last.exchange is exchange else CarrierTokens()

    def tokens(self) -> dict[str, int]:
        """Count the bindings under tokens other than the current ones, on all carriers."""
        seen = [last.carrier_tokens for last in self._readings.values()]
        return {"unkeyed": sum(each.unkeyed for each in seen), "previous": sum(each.previous for each in seen)}

    def failed(self, error: UpstreamError) -> None:
        """Take note that something could not be asked for, or done, at this look."""
        self._failed.append(str(error))

    async def observe(self) -> None:
        """Begin a look: list queues and exchanges."""
        self._failed.clear()
        if self._management is not None:
            await self._list(self._management)
        await self.looked()

    async def _list(self, management: ManagementApi) -> None:
        before = dict(self._observed.queues)
        declared = self.store.exchanges_before() if self.store is not None else None
        queues, exchanges = await listings(management, self._vhost)
        if isinstance(queues, UpstreamError):
            self._observed.queues_complete = False
        else:
            self._observed.queues_listed(before, queues)
        if isinstance(exchanges, UpstreamError):
            self._observed.exchanges_complete = False
        else:
            self._observed.exchanges_listed(exchanges)
            if self.store is not None and declared is not None:
                self.store.exchanges_listed(declared, exchanges)
        self._failed += [str(answer) for answer in (queues, exchanges) if isinstance(answer, UpstreamError)]

    def conflicts(self, desired: DesiredState) -> dict[bytes, str]:
        """Find what on the broker contradicts the rules, by the last look: the exchange's name and what to do."""
        found = self._observed.exchanges
        conflicts = internal_conflicts(desired.published, found)
        for exchange in desired.made:
            text = carrier_conflict(exchange, found.get(exchange.carrier))
            if text is not None:
                conflicts[exchange.name] = text
        return conflicts

    async def read_bindings(self, carriers: Sequence[OwnedExchange]) -> set[bytes]:
        """Read the bindings of carriers: which tokens stand, what clients bound, which bindings are foreign.

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
                    await self._read(management, exchange)
                except UpstreamError as error:
                    self._failed.append(str(error))
                else:
                    read.add(exchange.name)

        await asyncio.gather(*(reader(self._management) for _ in range(min(_READERS, len(carriers)))))
        return read

    async def _read(self, management: ManagementApi, exchange: OwnedExchange) -> None:
        store = self.store
        last = self._readings.get(exchange.carrier)
        tokens = self._tokens
        unchanged = last is not None and last.exchange is exchange and last.tokens is tokens
        unchanged = unchanged and exchange.carrier not in self.foreign
        if last is None or not unchanged or (store is not None and not store.listings.settled(exchange)):
            last = _Reading(exchange, b"", tokens, CarrierTokens())
        exchange.sure.clear()  # a queue may be another one of that name, made beside us
        before = set(exchange.bound)
        known = store.listings.before(exchange) if store is not None else None
        answer = await management.changed_bindings(self._vhost, exchange.carrier, last.digest)
        if answer is not None:
            digest, bindings = answer
            last = self._readings[exchange.carrier] = _Reading(
                exchange, digest, tokens, carrier_tokens(bindings, tokens)
            )
        leaving = {one for carrier, one in self.leaving if carrier == exchange.carrier}
        seen = last.carrier_tokens.bound - (leaving - before)
        gone = before - exchange.bound
        added = exchange.bound - before
        exchange.bound.clear()
        exchange.bound.update((seen - gone) | added)
        if answer is None:
            return
        for key, destination in grants_bound(bindings).items():
            exchange.grant(key, destination)
        await self._note_foreign(management, exchange.carrier, foreign_bindings(bindings, tokens))
        if store is not None:
            for copy in await store.listings.take(exchange, known, bindings):
                await management.remove_binding(self._vhost, exchange.carrier, copy)
                log.info("second copy of a binding removed", vhost=self._vhost, binding=str(copy))

    async def warn(self, desired: DesiredState) -> None:
        """Say once what is there and won't do what the operator expects (see `checks`)."""
        known = self._observed.queues
        receivers = [known[name] for kind, name in desired.existing if kind == "queue" and name in known]
        warnings = dead_letter_warnings(receivers)
        if self._management is not None:
            self._leading = await self._upstream(self._management, [one.carrier for one in desired.carriers])
            starts = {name for kind, name in desired.holders if kind == "exchange"}
            warnings += await self._downstream(self._management, starts)
        for text in warnings:
            if text not in self._warned:
                log.warning("rules meet an obstacle on the broker", vhost=self._vhost, what=text)
        self._warned = set(warnings)

    async def _upstream(self, management: ManagementApi, carriers: Iterable[bytes]) -> set[bytes]:
        """Follow exchange-to-exchange bindings to the exchanges that lead to carriers."""
        ahead = list(carriers)
        seen: set[bytes] = set(ahead)
        found: set[bytes] = set()
        while ahead and len(found) < _DOWNSTREAM_LIMIT:
            try:
                fresh = await management.sources(self._vhost, ahead.pop()) - seen
            except UpstreamError as error:
                self.failed(error)
                continue
            seen |= fresh
            found |= fresh
            ahead += sorted(fresh)
        return found

    def note_bypasses(self, desired: DesiredState) -> None:
        """Find the ways on the broker that lead to a carrier, by the last look, and say which are new."""
        carriers = {exchange.carrier for exchange in desired.carriers}
        last, self.bypasses = self.bypasses, ()
        if carriers:
            seen = self._observed
            self.bypasses = tuple(bypasses(carriers, self._leading, seen.exchanges.values(), seen.queues.values()))
        fresh = [text for text in self.bypasses if text not in last]
        if fresh:
            log.warning(
                "messages can come to carriers without their rules",
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

    async def _note_foreign(self, management: ManagementApi, carrier: bytes, foreign: list[BindingInfo]) -> None:
        last = self.foreign.pop(carrier, [])
        if not foreign:
            return
        self.foreign[carrier] = foreign
        fresh = [binding for binding in foreign if binding not in last]
        if fresh:
            log.warning(
                "bindings that are not ours route past the rules",
                vhost=self._vhost,
                carrier=_text(carrier),
                count=len(foreign),
                bindings=[str(binding) for binding in fresh[:_SHOWN]],
            )
        if self._remove_foreign:
            await self._remove(management, carrier, foreign)

    async def _remove(self, management: ManagementApi, carrier: bytes, foreign: Iterable[BindingInfo]) -> None:
        for binding in foreign:
            try:
                await management.remove_binding(self._vhost, carrier, binding)
            except UpstreamError as error:
                self._failed.append(str(error))
            else:
                log.warning(
                    "foreign binding removed",
                    vhost=self._vhost,
                    carrier=_text(carrier),
                    binding=str(binding),
                )

    def finish(self) -> None:
        """End a look: say what failed that did not fail last time."""
        for text in self._failed:
            if text not in self.failures:
                log.warning("inventory not complete", vhost=self._vhost, error=text)
        if self.failures and not self._failed:
            log.info("inventory complete again", vhost=self._vhost)
        self.failures = tuple(self._failed)


def log_missing(vhost: str, last: Collection[Destination], missing: dict[Destination, str]) -> None:
    """Write which destinations went missing and which came back."""
    gone = sorted(set(missing).difference(last))
    found = sorted(set(last).difference(missing))
    if gone:
        log.warning(
            "destinations missing",
            vhost=vhost,
            count=len(missing),
            destinations=[f"{kind} {_text(name)}: {missing[kind, name]}" for kind, name in gone[:_SHOWN]],
        )
    if found:
        log.info(
            "destinations found",
            vhost=vhost,
            missing=len(missing),
            destinations=[f"{kind} {_text(name)}" for kind, name in found[:_SHOWN]],
        )


def _text(name: bytes) -> str:
    return name.decode(errors="replace")
