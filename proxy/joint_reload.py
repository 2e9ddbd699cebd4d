"""How do new rules come to hold in several workers: in all of them or in none?

The files are parsed, compiled and tested here first; where they are bad no worker hears of it. Then every worker is
told to reload, and provisions and swaps by itself (see `reload`). One that can't, since the broker does not let it, is
told again until it can: until then it judges by the rules before, and `oxproxy_rules_info` shows both versions.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import structlog

from proxy.amqp.counters import RulesCounters
from proxy.errors import ConfigErrors
from proxy.net.tasks import Tasks
from proxy.reload import AGAIN_SECONDS, LOOK_SECONDS, Answer
from proxy.rules.loader import LoadedRules, load_rules
from proxy.rules.reload import Watch

_log = structlog.get_logger(__name__)
_OK, _UNUSABLE = 200, 422


class JointReload:
    """Replaces the rules of all workers, one attempt at a time.

    Args:
        files: lists the rules files as the configuration names them.
        loaded: the rules in force.
        check: finds what else is wrong with rules, beside the event loop.
        tell: asks every worker to reload, and gives their answers: number of the worker, status, text; no status where
            it does not answer.
        counters: what is counted of it.
        tasks: runs what goes on behind it.
        files_beside: lists files that are followed as the rules files are: those of TLS.
    """

    def __init__(
        self,
        files: Callable[[], Sequence[Path]],
        loaded: LoadedRules,
        check: Callable[[LoadedRules], object],
        tell: Callable[[], Awaitable[Sequence[tuple[int, int, bytes]]]],
        counters: RulesCounters,
        tasks: Tasks,
        files_beside: Callable[[], Sequence[Path]] = tuple,
    ) -> None:
        """Take the rules as they are."""
        #: What came of the last attempt.
        self.last: Answer | None = None
        self._files = files
        self._check = check
        self._tell = tell
        self._counters = counters
        self._tasks = tasks
        self._watches = (Watch(files, loaded.rules.version), Watch(files_beside, ""))
        self._watches[1].take()
        self._one_at_a_time = asyncio.Lock()

    def request(self) -> None:
        """Reload soon, whatever the files hold (SIGHUP)."""
        self._tasks.start(self.reload("signal"), "reload")

    async def watch(self) -> None:
        """Reload whenever the files change; returns only by cancellation."""
        again_at = None
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if again_at is not None and loop.time() >= again_at:
                again_at = None
                self._watches[0].again()
            if not await asyncio.to_thread(self._look):
                continue
            answer = await self.reload("file")
            if answer.errors and not answer.faulty:
                again_at = loop.time() + AGAIN_SECONDS

    async def reload(self, reason: str) -> Answer:
        """Load the files and, where they are good, have all workers judge by them from now on.

        Args:
            reason: who asked, for the log.
        """
        async with self._one_at_a_time:
            self.last = answer = await self._attempt(reason)
        self._counters.reloads["error" if answer.errors else "ok"] += 1
        if answer.errors:
            _log.error("reload failed", reason=reason, rules=answer.version, errors=list(answer.errors))
        else:
            self._counters.last_success_seconds = answer.at
            _log.info("reloaded", reason=reason, rules=answer.version)
        return answer

    async def _attempt(self, reason: str) -> Answer:
        def failed(errors: Sequence[str], faulty: bool) -> Answer:
            return Answer(self._counters.version, tuple(errors), time.time(), reason, faulty)

        try:
            loaded = await asyncio.to_thread(self._load)
        except ConfigErrors as error:
            return failed([str(each) for each in error.errors], faulty=True)
        failures = [str(failure) for failure in loaded.failures()]
        if failures:
            return failed(failures, faulty=True)
        told = await self._tell()
        wrong = [_wrong(number, status, text, loaded.rules.version) for number, status, text in told]
        errors = [error for error in wrong if error]
        if errors:
            return failed(errors, faulty=_UNUSABLE in {status for _, status, _ in told})
        self._counters.version = loaded.rules.version
        return Answer(loaded.rules.version, (), time.time(), reason)

    def _look(self) -> bool:
        looks = [watch.look() for watch in self._watches]  # each has to look, whatever the others see
        return any(looks)

    def _load(self) -> LoadedRules:
        for watch in self._watches:
            watch.take()
        loaded = load_rules(self._files())
        self._check(loaded)
        return loaded


def _wrong(number: int, status: int, text: bytes, version: str) -> str:
    """Say what is wrong with the answer of a worker; nothing where all is well."""
    if not status:
        return f"worker {number}: no answer"
    try:
        said = json.loads(text)
    except ValueError:
        said = {}
    if status != _OK:
        return f"worker {number}: {'; '.join(said.get('errors', [])) or f'status {status}'}"
    if said.get("rules") != version:
        return f"worker {number}: has rules {said.get('rules')}, expected {version}: the files have changed meanwhile"
    return ""
