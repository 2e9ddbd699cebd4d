"""Reserves an instance name in the audit directory for one process."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import structlog

from oxproxy.audit.policy import AuditPolicy
from oxproxy.audit.segments import DIRECTORY_MODE, InstanceLock, open_segments, safe_instance
from oxproxy.errors import ConfigError

_log = structlog.get_logger(__name__)

#: Seconds between two attempts to lock the instance.
_LOCK_POLL_SECONDS = 0.05
#: Seconds after which a lock is considered to be held by a running instance, unless the lock file shows that its holder
#: is closing old segments. The file is written immediately after locking.
_HELD_SECONDS = 0.5
#: Seconds to wait for another process to close the segments of this instance. A hanging file system may block it.
_OTHER_CLOSES_SECONDS = 30.0


class InstanceClaim:
    """The right of this process to write segments with its instance name."""

    def __init__(self, policy: AuditPolicy) -> None:
        self._directory = policy.directory
        self._name = policy.instance
        self._lock: InstanceLock | None = None
        self._waits_for_other = False

    @property
    def held(self) -> bool:
        return self._lock is not None

    async def take(self, stopping: asyncio.Event) -> list[Path] | None:
        """Create the directory and lock the instance name.

        If another process is closing segments that this instance left open, wait until it has finished, at most
        `_OTHER_CLOSES_SECONDS`.

        Args:
            stopping: ends the wait when set.

        Returns:
            The segments that an earlier process left open; None if `stopping` was set during the wait.

        Raises:
            ConfigError: the directory can't be created or written, or another process uses the instance name there.
        """
        await asyncio.to_thread(self._make_directory)
        clock = asyncio.get_running_loop().time
        began = clock()
        left = await asyncio.to_thread(self._acquire, 0.0)
        while left is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), _LOCK_POLL_SECONDS)
                return None
            left = await asyncio.to_thread(self._acquire, clock() - began)
        return left

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _make_directory(self) -> None:
        directory = self._directory
        try:
            # Parents are not created: a missing parent means that a volume is not mounted, or that the name is wrong.
            directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        except FileNotFoundError:
            raise self._fault(f"can't be created: there is no directory {directory.parent}") from None
        except FileExistsError:
            raise self._fault("is not a directory") from None
        except OSError as error:
            raise self._fault(f"can't be created: {error.strerror or error}") from error

    def _acquire(self, waited_seconds: float) -> list[Path] | None:
        """Try to lock the instance, and return the segments that an earlier process left open.

        Return None if another process holds the lock and may release it soon.
        """
        directory, instance = self._directory, safe_instance(self._name)
        try:
            self._lock = InstanceLock.acquire(directory, instance)
            if self._lock is not None:
                return open_segments(directory).get(instance, [])
            ends_soon = InstanceLock.is_for_closing(directory, instance)
        except OSError as error:
            raise self._fault(f"can't be written: {error.strerror or error}") from error
        if not ends_soon and waited_seconds > _HELD_SECONDS:
            raise self._fault(
                f"another process is already writing to this directory as {self._name}; names must be unique"
            )
        if waited_seconds > _OTHER_CLOSES_SECONDS:
            raise self._fault(
                f"can't be written: another process has been closing old segments for {_OTHER_CLOSES_SECONDS:g} s"
            )
        if ends_soon and not self._waits_for_other:
            self._waits_for_other = True
            _log.warning("waiting for another process to close old audit segments", instance=self._name)
        return None

    def _fault(self, message: str) -> ConfigError:
        return ConfigError(str(self._directory), 0, "audit.directory", message)
