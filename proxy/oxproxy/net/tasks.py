"""A set of running tasks, which holds a reference to each task, logs failures, and cancels the tasks at the end.

Source: asyncio "Coroutines and Tasks" (the event loop itself keeps only weak references).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

_log = structlog.get_logger(__name__)

#: Time after which a task that is still running is cancelled again.
_CANCEL_AGAIN_SECONDS = 5.0


class Tasks:
    """A set of named tasks."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()  # Any: results are not used

    def start(self, coroutine: Coroutine[Any, Any, object], name: str) -> asyncio.Task[Any]:  # Any: as in asyncio
        """Run a coroutine; if it fails, log the traceback with the given name."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("task failed", task=task.get_name(), exc_info=task.exception())

    def cancel(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()

    async def ended(self) -> None:
        """Cancel all tasks and wait until they have ended. If a library suppresses a cancellation, it is repeated."""
        while self._tasks:
            self.cancel()
            await asyncio.wait(self._tasks, timeout=_CANCEL_AGAIN_SECONDS)
