"""Runs the tasks of the control plane so that every failure is reported.

An exception raised by a task is counted and logged with its traceback, and the sidecar is not ready until the task
succeeds again. The task is restarted after a pause, which doubles after each failure. Tasks themselves catch the
`UpstreamError` that is raised if the broker is unreachable or refuses a request.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import structlog

#: Task names, as used in the failure metric.
TASKS = tuple("start vhost discovery announcements demand remotes gauges live rules warnings".split())

T = TypeVar("T")

log = structlog.get_logger(__name__)


def end_if_cancelled() -> None:
    """Re-raise a lost cancellation. aiormq uses `asyncio.wait_for`, which can lose cancellations in Python 3.11.

    Raises:
        asyncio.CancelledError: the task has been cancelled.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def gather_all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Wait until all work has finished, even if some of it fails; then return the results or raise the first error."""
    results: list[T] = []
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results


class Supervisor:
    """Restarts failed tasks and tracks failures."""

    def __init__(self, retry_seconds: float = 0.5, retry_limit_seconds: float = 30.0) -> None:
        self._retry_seconds = retry_seconds
        self._retry_limit_seconds = retry_limit_seconds
        #: Number of failures by task name (TASKS).
        self.failures = dict.fromkeys(TASKS, 0)
        #: Number of failed attempts to connect to the broker.
        self.unreachable = 0
        self._failing: dict[tuple[str, str], str] = {}

    @property
    def failing(self) -> list[str]:
        """Tasks that have failed and have not succeeded since, with the class of the exception."""
        return [f"control task {task}{_of(vhost)}: {why}" for (task, vhost), why in sorted(self._failing.items())]

    def failed(self, task: str, error: BaseException, vhost: str = "") -> None:
        self.failures[task] += 1
        self._failing[task, vhost] = f"failed with {type(error).__name__} and will be retried; see the log"
        log.error("control task failed", task=task, **({"vhost": vhost} if vhost else {}), exc_info=error)

    def recovered(self, task: str, vhost: str = "") -> None:
        if self._failing.pop((task, vhost), None) is not None:
            log.info("control task recovered", task=task, **({"vhost": vhost} if vhost else {}))

    def forget(self, vhost: str) -> None:
        """Forget a virtual host that is no longer managed, so that it can't affect readiness."""
        self._failing = {key: why for key, why in self._failing.items() if key[1] != vhost}

    async def keep(
        self, task: str, work: Callable[[], Awaitable[None]], vhost: str = "", steady_seconds: float | None = None
    ) -> None:
        """Run a task until it returns, and restart it after every failure.

        Args:
            work: the task. If it runs indefinitely, it must call `recovered` when it has succeeded.
            vhost: the task's virtual host, if each virtual host has its own task.
            steady_seconds: running time after which the task counts as recovered; None if it calls `recovered` itself.
        """
        pause_seconds = self._retry_seconds
        while True:
            steady = None
            if steady_seconds is not None:
                steady = asyncio.get_running_loop().call_later(steady_seconds, self.recovered, task, vhost)
            try:
                await work()
            except Exception as error:  # noqa: BLE001 -- the purpose of this class
                if (task, vhost) not in self._failing:
                    pause_seconds = self._retry_seconds
                self.failed(task, error, vhost)
            else:
                self.recovered(task, vhost)
                return
            finally:
                if steady is not None:
                    steady.cancel()
            end_if_cancelled()
            await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311 -- no secret
            pause_seconds = min(2 * pause_seconds, self._retry_limit_seconds)


def _of(vhost: str) -> str:
    return f" of vhost {vhost}" if vhost else ""
