"""When the snapshot is written, and what is in it: everything that clients declared, as the states have it.

A change is written at once where nothing is being written, else together with all others since. Writing takes a share
of the time that bursts of changes leave the producers theirs. It must not know the file's form (see `snapshot`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

import structlog

from proxy.broker.declared.snapshot import BindingRecord, ExchangeRecord, GrantRecord, Snapshot, SnapshotRecords
from proxy.broker.supervision import Supervisor
from proxy.relay.vhost import VhostState

#: The pause behind a write is at least so many times what the write took.
_SHARE = 4
#: The pause behind a write that failed.
_RETRY_SECONDS = 1.0

log = structlog.get_logger(__name__)


class Recorder:
    """Keeps a snapshot of what clients declared.

    Args:
        snapshot: the file.
        states: gives all virtual hosts.
        supervisor: takes note of what goes wrong beyond what is expected; None: its own.
    """

    def __init__(
        self, snapshot: Snapshot, states: Callable[[], Iterable[VhostState]], supervisor: Supervisor | None = None
    ) -> None:
        """Prepare; nothing is read or written yet."""
        self.snapshot = snapshot
        #: Why the file could not be used the last time; empty where it could.
        self.fault = ""
        self._states = states
        self._supervisor = supervisor or Supervisor()
        self._wanted = False
        self._unreadable = False
        self._ending = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    async def load(self) -> SnapshotRecords:
        """Read the snapshot; one that is damaged, or can't be read, is logged and counts as empty."""
        try:
            return await asyncio.to_thread(self.snapshot.load)
        except ValueError as error:
            log.error("snapshot refused: what clients declared may be lost", error=str(error))
        except OSError as error:
            # What can't be read must not be overwritten either.
            self._unreadable = True
            self.fault = f"snapshot {self.snapshot.path} can't be read: {error}"
            log.error("snapshot not used: what clients declared may be lost", error=self.fault)
        return SnapshotRecords()

    def record(self) -> None:
        """Write soon what clients have declared now."""
        if self._unreadable:
            return
        self._wanted = True
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def close(self) -> None:
        """Write what is not written yet, and end."""
        self._ending.set()
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while self._wanted:
            self._wanted = False
            began_at = loop.time()
            done = await self._save()
            if self._ending.is_set() and not done:
                return
            pause_seconds = _SHARE * (loop.time() - began_at) if done else _RETRY_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_seconds):
                    await self._ending.wait()
            self._wanted |= not done

    async def _save(self) -> bool:
        try:
            await asyncio.to_thread(self.snapshot.save, records_of(self._states()))
        except OSError as error:
            fault = f"snapshot {self.snapshot.path} can't be written: {error}"
            if fault != self.fault:
                log.error("snapshot not written", error=fault)
            self.fault = fault
            return False
        except Exception as error:  # noqa: BLE001 -- tried again like any other, and seen
            self._supervisor.failed("snapshot", error)
            return False
        self._supervisor.recovered("snapshot")
        if self.fault:
            log.info("snapshot written again", path=str(self.snapshot.path))
        self.fault = ""
        return True


def records_of(states: Iterable[VhostState]) -> SnapshotRecords:
    """Collect what clients declared."""
    exchanges: list[ExchangeRecord] = []
    bindings: list[BindingRecord] = []
    grants: list[GrantRecord] = []
    for state in states:
        for name, owned in state.exchanges.items():
            if owned.declared is not None:
                exchanges.append(ExchangeRecord(state.name, name, owned.delivery, owned.declared))
            for stored in owned.clients.values():
                binding = stored.binding
                bindings.append(
                    BindingRecord(
                        state.name,
                        name,
                        binding.destination_type,
                        binding.destination,
                        binding.routing_key,
                        stored.entries,
                        stored.sequences,
                        tuple(copy.client for copy in stored.copies),
                        tuple(copy.sequence for copy in stored.copies if copy.key != stored.key),
                        tuple(copy.signature for copy in stored.copies),
                        tuple(copy.key for copy in stored.copies),
                    )
                )
            grants += [GrantRecord(state.name, name, *destination, key) for key, destination in owned.grants.items()]
    return SnapshotRecords(tuple(exchanges), tuple(bindings), tuple(grants))
