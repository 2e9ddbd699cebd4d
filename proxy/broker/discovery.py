"""In which virtual hosts have clients declared something? Asked once, before the first producer is let in.

A management API that does not answer yet is waited for a while: without it a sidecar would not know what it has to
route. After that it goes without, says so, and asks again. It must not know what was declared (see `store`).
"""

from __future__ import annotations

import asyncio

import structlog

from proxy.broker.inventory import ManagementApi, Undecodable
from proxy.broker.settings import ControlSettings
from proxy.errors import UpstreamError, UpstreamFailure

log = structlog.get_logger(__name__)


class Discovery:
    """Finds virtual hosts.

    Args:
        settings: how patient to be.
        inventory: the management API, None where there is none.
    """

    def __init__(self, settings: ControlSettings, inventory: ManagementApi | None) -> None:
        """Have asked nobody."""
        self._settings = settings
        self._inventory = inventory
        #: Why nobody knows; empty where it is known, or there is nobody to ask.
        self.fault = ""

    async def find(self) -> set[str]:
        """Give the virtual hosts; none, with `fault` set, where the management API does not say in time."""
        if self._inventory is None:
            log.warning(
                "no management API: what clients declare through other sidecars is not seen, and after a restart "
                "only what a snapshot keeps is known",
                snapshot=str(self._settings.declared.snapshot),
            )
            return set()
        loop = asyncio.get_running_loop()
        until = loop.time() + self._settings.patience_seconds
        while True:
            try:
                return await self._ask(self._inventory)
            except UpstreamError as error:
                if error.failure is UpstreamFailure.REFUSED or loop.time() >= until:
                    log.error("what clients declared can't be read back", error=self.fault)
                    return set()
            await asyncio.sleep(self._settings.retry_seconds)

    async def find_later(self) -> set[str]:
        """Go on asking where `find` had no answer; give the virtual hosts once there is one."""
        if self._inventory is None or not self.fault:
            return set()
        pause_seconds = self._settings.refresh_seconds
        while True:
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, self._settings.retry_limit_seconds)
            try:
                found = await self._ask(self._inventory)
            except UpstreamError:
                continue
            if self.fault:
                continue
            log.info("what clients declared can be read back again")
            return found

    async def _ask(self, inventory: ManagementApi) -> set[str]:
        faults: list[str] = []
        try:
            try:
                found = await inventory.declared_vhosts()
            except Undecodable:
                found = await self._ask_singly(inventory, faults)
        except UpstreamError as error:
            self.fault = str(error)
            raise
        self.fault = "; ".join(faults)
        return found

    @staticmethod
    async def _ask_singly(inventory: ManagementApi, faults: list[str]) -> set[str]:
        """Ask for every virtual host by itself: one exchange that can't be decoded hides those of its own only."""
        found: set[str] = set()
        for vhost in sorted(await inventory.vhosts()):
            try:
                listed = await inventory.exchanges(vhost)
            except Undecodable as error:
                faults.append(str(error))
            else:
                found |= {vhost} if any(info.kept for info in listed.values()) else set()
        return found
