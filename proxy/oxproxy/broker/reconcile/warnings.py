"""Warns about a state of the broker that changes the effect of the rules, and finds bypasses (`checks`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from oxproxy.broker.management_api import ManagementApi
from oxproxy.broker.reconcile.checks import bypasses, dead_letter_warnings, topic_warnings
from oxproxy.broker.reconcile.desired import DesiredState
from oxproxy.broker.reconcile.observed import ObservedState
from oxproxy.errors import UpstreamError
from oxproxy.values import EXCHANGE

#: Maximum number of names in one log line.
_SHOWN = 20
#: Maximum number of exchanges, upstream or downstream of carriers, whose bindings are checked.
_DOWNSTREAM_LIMIT = 200

log = structlog.get_logger(__name__)


class BrokerWarnings:
    """The warnings and bypasses of one virtual host. Each is logged once, as long as it exists.

    Args:
        failed: called with the error if a list can't be read.
    """

    def __init__(
        self, vhost: str, management: ManagementApi | None, observed: ObservedState, failed: Callable[[str], None]
    ) -> None:
        self._vhost = vhost
        self._management = management
        self._observed = observed
        self._failed = failed
        self._warned: set[str] = set()
        #: exchanges to which carriers are bound, directly or through other exchanges
        self._leading: set[bytes] = set()
        #: Descriptions, for operators, of alternate and dead-letter exchanges that route to carriers.
        self.bypasses: tuple[str, ...] = ()

    async def warn(self, desired: DesiredState) -> None:
        """Log new conditions that prevent the rules from working as intended (see `checks`)."""
        known = self._observed.queues
        receivers = [known[name] for kind, name in desired.existing if kind == "queue" and name in known]
        warnings = dead_letter_warnings(receivers)
        if self._management is not None:
            self._leading = await self._upstream(self._management, [exchange.carrier for exchange in desired.carriers])
            starts = {name for tokens in desired.tokens.values() for kind, name in tokens if kind == EXCHANGE}
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
                self._failed(str(error))
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
                self._failed(str(error))
                continue
            if info.type == "topic":
                warnings += topic_warnings(name, bindings)
            ahead += [name for kind, name in (item.destination for item in bindings) if kind == EXCHANGE]
        return warnings
