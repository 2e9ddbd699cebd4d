"""Threads that can be paused, so that queues can be emptied and counted while nothing is in transit."""

from __future__ import annotations

import threading
import time


class PausableThread(threading.Thread):
    """A thread that works until it is ended, except while it is paused."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._ended = False
        self._running = threading.Event()
        self._running.set()
        self._idle = threading.Event()

    def pause(self) -> None:
        """Let the thread complete what is in transit, and then wait."""
        self._idle.clear()
        self._running.clear()

    def await_idle(self, deadline: float) -> bool:
        """Wait until the thread waits; False if that takes too long."""
        return self._idle.wait(max(deadline - time.monotonic(), 0.0))

    def resume(self) -> None:
        self._running.set()

    def end(self) -> None:
        """End the thread, and wait for it, or give up."""
        self._ended = True
        self._running.set()
        if self.is_alive():
            self.join(30)

    def _wait_until_resumed(self) -> None:
        self._idle.set()
        self._running.wait()
