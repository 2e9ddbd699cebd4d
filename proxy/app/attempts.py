"""When are rules loaded again, and what is counted and said of each attempt?

Asked for, or because files have changed; one attempt at a time. An attempt reads, compiles and tests the files beside
the event loop; whoever runs it says what else has to be good, and how the rules come to hold. It must not know either.

Source: architecture, 5 (rules are data with a life cycle).
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

import structlog

from proxy.config.settings import Changed
from proxy.errors import ConfigErrors
from proxy.net.tasks import Tasks
from proxy.relay.counters import RulesCounters
from proxy.rules.loader import LoadedRules, load_rules
from proxy.rules.watch import Watch, lone_mounts

_log = structlog.get_logger(__name__)

#: Seconds between two looks at the files; a change holds after two of them.
LOOK_SECONDS = 1.0
#: Seconds until rules are tried again that were good while the broker could not be reached.
AGAIN_SECONDS = 5.0
_MOUNTINFO = Path("/proc/self/mountinfo")

#: Lists files, in the order of a load.
Files: TypeAlias = Callable[[], Sequence[Path]]
#: Makes hold what was prepared; takes no time.
Use: TypeAlias = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one reload.

    Args:
        version: of the rules in force after it.
        errors: why new ones do not hold; none where they do.
        at: when, in seconds since the epoch.
        reason: who asked.
        faulty: whether the files are to blame, not the broker.
        missing: destinations of the new rules that can't be reached now, such as queues that nobody has declared.
        restart: keys of the configuration that have changed and hold only after a restart.
    """

    version: str
    errors: tuple[str, ...] = ()
    at: float = 0.0
    reason: str = ""
    faulty: bool = False
    missing: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        """Give it as plain data."""
        return {
            "result": "error" if self.errors else "ok",
            "rules": self.version,
            "at": self.at,
            "reason": self.reason,
            "errors": list(self.errors),
            "missing": list(self.missing),
            "restart": list(self.restart),
        }


class ReloadResult(NamedTuple):
    """Whether good rules hold: see `Answer`."""

    errors: Sequence[str] = ()
    faulty: bool = False
    missing: Sequence[str] = ()


class ReloadLoop(ABC):
    """Attempts to replace the rules in force.

    Args:
        files: lists the rules files as the configuration names them.
        version: of the rules in force.
        counters: what is counted of it.
        tasks: runs what goes on behind it.
        files_beside: lists files that are followed as the rules files are: those of TLS.
        settings: compares the configuration with the one in use, beside the event loop.
    """

    def __init__(
        self,
        files: Files,
        version: str,
        counters: RulesCounters,
        tasks: Tasks,
        files_beside: Files = tuple,
        settings: Callable[[], Changed] = Changed,
    ) -> None:
        """Take the rules as they are."""
        #: What came of the last attempt.
        self.last: Answer | None = None
        self._version = version
        self._files = files
        self._files_beside = files_beside
        self._settings = settings
        self._counted = counters
        self._tasks = tasks
        self._watches = (Watch(files, version), Watch(files_beside, ""))
        self._watches[1].take()
        self._one_at_a_time = asyncio.Lock()

    @abstractmethod
    def _prepare(self, loaded: LoadedRules) -> Use:
        """Find what else is wrong, beside the event loop; what is given is for `_hold`.

        Raises:
            ConfigErrors: what is wrong.
        """

    @abstractmethod
    async def _hold(self, loaded: LoadedRules, use: Use) -> ReloadResult:
        """Make good rules hold."""

    def request(self) -> None:
        """Reload soon, whatever the files hold (SIGHUP)."""
        self._tasks.start(self.reload("signal"), "reload")

    async def watch(self) -> None:
        """Reload whenever the files change; returns only by cancellation."""
        for path in await asyncio.to_thread(self._lone_mounts):
            _log.warning("file is mounted alone (subPath): it will never change, mount its folder", file=path)
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
        """Load the files and, where they are good, judge by them from now on.

        Args:
            reason: who asked, for the log.
        """
        async with self._one_at_a_time:
            answer = await self._attempt(reason)
            changed = await asyncio.to_thread(self._settings)
            self.last = answer = replace(answer, restart=changed.keys)
        self._counted.reloads["error" if answer.errors else "ok"] += 1
        if answer.errors:
            _log.error("reload failed", reason=reason, rules=answer.version, errors=list(answer.errors))
        else:
            self._counted.last_success_seconds = answer.at
            _log.info("reloaded", reason=reason, rules=answer.version)
        if changed.keys:
            _log.warning("settings have changed that hold only after a restart", keys=list(changed.keys))
        if changed.errors:
            event = "the configuration can't be used as it is now: a restart would fail"
            _log.warning(event, errors=list(changed.errors))
        return answer

    async def _attempt(self, reason: str) -> Answer:
        verdict = await self._judged()
        return Answer(self._version, tuple(verdict.errors), time.time(), reason, verdict.faulty, tuple(verdict.missing))

    async def _judged(self) -> ReloadResult:
        try:
            loaded, failures, use = await asyncio.to_thread(self._load)
        except ConfigErrors as error:
            return ReloadResult([str(each) for each in error.errors], faulty=True)
        except Exception as error:  # noqa: BLE001 -- whatever a file makes us do wrong must not end the sidecar
            _log.exception("reload went wrong")
            return ReloadResult([f"{type(error).__name__} while loading: {error}"], faulty=True)
        if failures:
            return ReloadResult(failures, faulty=True)
        verdict = await self._hold(loaded, use)
        if not verdict.errors:
            self._version = loaded.rules.version
        return verdict

    def _look(self) -> bool:
        looks = [watch.look() for watch in self._watches]  # each has to look, whatever the others see
        return any(looks)

    def _load(self) -> tuple[LoadedRules, list[str], Use]:
        for watch in self._watches:
            watch.take()
        loaded = load_rules(self._files())
        use = self._prepare(loaded)
        return loaded, [str(failure) for failure in loaded.failures()], use

    def _lone_mounts(self) -> list[str]:
        try:
            files = [*self._files(), *self._files_beside()]
            return [str(path) for path in lone_mounts(files, _MOUNTINFO.read_text(encoding="utf-8"))]
        except (OSError, ConfigErrors):  # no Linux; no file: the next load says so
            return []
