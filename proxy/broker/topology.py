"""The control plane as the other rooms see it: one call per question, for every virtual host that rules name.

`app` builds it, awaits `start` and keeps `run` as a task; the relays call the rest. It must not know rules
files: it is given the shared states. Source: docs/architecture.md (the broker is the store).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from proxy.amqp.vhost import Destination, OwnedExchange, VhostState
from proxy.broker.changeover import Retirement
from proxy.broker.inventory import Inventory
from proxy.broker.needs import WantedQueue
from proxy.broker.settings import ControlSettings
from proxy.broker.vhost_topology import VhostTopology
from proxy.routing.router import Router


@dataclass(frozen=True, slots=True)
class VhostStatus:
    """What operators may know of one virtual host.

    Args:
        vhost: its name.
        ready: whether everything was declared and looked over once.
        connected: whether the control connection stands now.
        missing: "queue NAME" or "exchange NAME" with the reason.
        foreign: by carrier, bindings on it that are not ours.
        conflicts: what contradicts the rules, and what to do.
        inventory_failures: listings that failed at the last look.
        queues: how many queues are known.
        refreshed_at: seconds since the epoch of the last look, None before the first.
    """

    vhost: str
    ready: bool
    connected: bool
    missing: Mapping[str, str]
    foreign: Mapping[str, Sequence[str]]
    conflicts: Sequence[str]
    inventory_failures: Sequence[str]
    queues: int
    refreshed_at: float | None


class Topology:
    """Everything declared on one broker.

    Args:
        settings: where and how.
        states: the virtual hosts that rules name, by name.
        queues: queues that the rules ask for, by virtual host.
    """

    def __init__(
        self,
        settings: ControlSettings,
        states: Mapping[str, VhostState],
        queues: Mapping[str, Sequence[WantedQueue]],
    ) -> None:
        """Prepare; nothing is asked or declared yet."""
        self._inventory = Inventory(settings, settings.management) if settings.management else None
        self._vhosts = {
            name: VhostTopology(settings, state, queues.get(name, ()), self._inventory)
            for name, state in states.items()
        }

    async def start(self) -> None:
        """Declare and look over everything once; `run` goes on from there.

        Raises:
            UpstreamError: the first failure. REFUSED is the operator's to solve (credentials, permissions, an
                exchange in the way); after UNAVAILABLE or TIMEOUT `run` may be started as it is and goes on trying.
        """
        outcomes = await asyncio.gather(*(vhost.connect() for vhost in self._vhosts.values()), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def run(self) -> None:
        """Keep everything in step; returns only by cancellation."""
        async with asyncio.TaskGroup() as tasks:
            for vhost in self._vhosts.values():
                tasks.create_task(vhost.run())

    async def refresh(self, vhost: str) -> None:
        """Look at a virtual host now.

        Raises:
            UpstreamError: the control connection is lost.
        """
        await self._vhosts[vhost].refresh()

    async def close(self) -> None:
        """Close every connection; what is declared stays."""
        await asyncio.gather(*(vhost.close() for vhost in self._vhosts.values()))
        if self._inventory is not None:
            await self._inventory.close()

    def recompute(self, vhost: str) -> None:
        """Read anew what the rules need, after a swap of rules or a binding of a client."""
        self._vhosts[vhost].recompute()

    def interested(self, vhost: str, queue: bytes) -> bool:
        """Say whether a declare of the queue must wait for `ensure_queue`: cheap, never waits."""
        known = self._vhosts.get(vhost)
        return known is not None and known.interested(queue)

    def queue_declared(self, vhost: str, queue: bytes, exclusive: bool = False) -> None:
        """Take note of a queue that exists now."""
        if vhost in self._vhosts:
            self._vhosts[vhost].queue_declared(queue, exclusive)

    def queue_deleted(self, vhost: str, queue: bytes) -> None:
        """Take note of a queue that is gone."""
        if vhost in self._vhosts:
            self._vhosts[vhost].queue_deleted(queue)

    async def ensure_queue(self, vhost: str, queue: bytes, exclusive: bool = False) -> None:
        """Bind the tokens of a queue that has just been declared.

        Returns when they are bound or refused, at the latest at the deadline. Never raises.
        """
        if vhost in self._vhosts:
            await self._vhosts[vhost].ensure_queue(queue, exclusive)

    async def bind(self, vhost: str, exchange: bytes, destinations: Iterable[Destination]) -> set[Destination]:
        """Bind destinations that a publish wants and that have no token yet.

        Returns:
            Those of them that are bound now, at the latest at the deadline.
        """
        return await self._vhosts[vhost].bind(exchange, destinations) if vhost in self._vhosts else set()

    def follows(self, vhost: str) -> bool:
        """Whether the virtual host is kept in step already."""
        return True

    async def adopt(self, vhost: str, state: VhostState) -> None:
        """Keep one more virtual host in step."""

    async def lookup_exchange(self, vhost: str, exchange: bytes) -> str | None:
        """Look at the broker now: the type of an exchange that is not one of ours, None where there is none."""
        return None

    def changed(self, vhost: str, exchange: bytes) -> None:
        """A client has declared, deleted, bound or unbound the exchange."""
        if vhost in self._vhosts:
            self._vhosts[vhost].recompute()

    async def prepare(
        self,
        vhost: str,
        exchanges: Mapping[bytes, OwnedExchange],
        router: Router,
        queues: Sequence[WantedQueue],
    ) -> Retirement:
        """Declare and bind what new rules need; then swap them into the state and call `retire`.

        Raises:
            UpstreamError: REFUSED with every conflict, else the broker can't be reached. Nothing has changed then.
        """
        return await self._vhosts[vhost].prepare(exchanges, router, queues)

    async def retire(self, vhost: str, retirement: Retirement) -> None:
        """Take away what the rules before the swap needed, after the grace period."""
        await self._vhosts[vhost].retire(retirement)

    @property
    def ready(self) -> bool:
        """Whether every virtual host has been looked over once."""
        return all(vhost.ready for vhost in self._vhosts.values())

    @property
    def missing_count(self) -> int:
        """How many destinations that rules name can't be reached."""
        return sum(len(vhost.missing) for vhost in self._vhosts.values())

    @property
    def foreign_count(self) -> int:
        """How many bindings on carriers are not ours."""
        return sum(len(bindings) for vhost in self._vhosts.values() for bindings in vhost.survey.foreign.values())

    def status(self) -> list[VhostStatus]:
        """Tell operators how it stands."""
        return [_status(vhost) for vhost in self._vhosts.values()]


def _status(vhost: VhostTopology) -> VhostStatus:
    return VhostStatus(
        vhost=vhost.state.name,
        ready=vhost.ready,
        connected=vhost.connected,
        missing={f"{kind} {_text(name)}": why for (kind, name), why in sorted(vhost.missing.items())},
        foreign={
            _text(carrier): [str(binding) for binding in bindings] for carrier, bindings in vhost.survey.foreign.items()
        },
        conflicts=vhost.conflicts,
        inventory_failures=vhost.survey.failures,
        queues=len(vhost.presence.queues),
        refreshed_at=vhost.refreshed_at,
    )


def _text(name: bytes) -> str:
    return name.decode(errors="replace")
