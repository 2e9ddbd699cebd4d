"""How do new rules come to hold in a running sidecar, and what is said about it?

Parsed, compiled and tested beside the event loop; what they need on the broker is declared; then all virtual hosts
change over at once, so that each publish is judged by the rules before or by those after. Whatever fails before that
leaves everything as it was. It must not know how any of these steps is done.

Source: architecture, 5 (rules are data with a life cycle); delivery, "Tokens and bindings".

When are rules loaded again, and what is counted and said of each attempt?

Asked for, or because files have changed; one attempt at a time. An attempt reads, compiles and tests the files beside
the event loop; whoever runs it says what else has to be good, and how the rules come to hold. It must not know either.

Source: architecture, 5 (rules are data with a life cycle).
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import structlog

from proxy.broker.reconcile.rules_swap import Retirement
from proxy.broker.topology import Topology
from proxy.config.settings import Changed
from proxy.errors import ConfigErrors, UpstreamError, UpstreamFailure
from proxy.net.tasks import Tasks
from proxy.relay.counters import Counters, RulesCounters
from proxy.relay.vhost import Delivery, Destination, OwnedExchange, VhostState
from proxy.routing.destination_translation import static_translations
from proxy.routing.router import Router
from proxy.rules.loader import LoadedRules, load_rules
from proxy.rules.ruleset import VhostRules
from proxy.rules.watch import Watch, lone_mounts
from proxy.rules.wire import owned_exchange

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


#: How long the compiling thread may keep the event loop waiting for the interpreter, in seconds. Python's own 5 ms,
#: several times in one turn of the loop, would be felt.
_TURN_SECONDS = 0.0005
#: Missing destinations that an answer names.
_SHOWN = 100
#: Bindings of old rules freed before others have a turn: some 0.1 ms.
_FREED_AT_ONCE = 64


@dataclass(slots=True)
class _Candidate:
    """Rules of one virtual host on their way in."""

    state: VhostState
    exchanges: dict[bytes, OwnedExchange]
    router: Router
    queues: VhostRules
    retirement: Retirement | None = field(default=None)


_Compiled = TypeVar("_Compiled")


class Reload(ReloadLoop):
    """Replaces the rules of a running sidecar, one attempt at a time.

    Args:
        files: lists the rules files as the configuration names them.
        loaded: the rules in force.
        state_of: gives the shared state of a virtual host, made where nobody has asked for it.
        topology: the control plane.
        counters: what the process counts.
        tasks: runs what goes on behind a reload.
        brokers_of: reads what rules say of other brokers, and the files of TLS, beside the event loop; what it gives
            makes that hold.
        files_beside: lists files that are followed as the rules files are: those of TLS.
        settings: compares the configuration with the one in use, beside the event loop.
    """

    def __init__(
        self,
        files: Files,
        loaded: LoadedRules,
        state_of: Callable[[str], VhostState],
        topology: Topology,
        counters: Counters,
        tasks: Tasks,
        brokers_of: Callable[[LoadedRules], Use] | None = None,
        files_beside: Files = tuple,
        settings: Callable[[], Changed] = Changed,
    ) -> None:
        """Take the rules as they are."""
        super().__init__(files, loaded.rules.version, counters.rules, tasks, files_beside, settings)
        #: The rules in force.
        self.loaded = loaded
        self._brokers_of = brokers_of
        self._state_of = state_of
        self._topology = topology
        self._counters = counters

    async def beside(self, compiling: Callable[[], _Compiled]) -> _Compiled:
        """Run something that compiles rules beside the event loop, never together with a reload."""
        async with self._one_at_a_time:
            with _unnoticed():
                return await asyncio.to_thread(compiling)

    async def _attempt(self, reason: str) -> Answer:
        with _unnoticed():
            return await super()._attempt(reason)

    def _prepare(self, loaded: LoadedRules) -> Use:
        return _nothing if self._brokers_of is None else self._brokers_of(loaded)

    async def _hold(self, loaded: LoadedRules, use: Use) -> ReloadResult:
        for warning in loaded.warnings:
            _log.warning("configuration", text=str(warning))
        before = self.loaded
        if loaded.rules.version == before.rules.version:
            use()
        else:
            try:
                await self._change_over(before, loaded, use)
            except UpstreamError as error:
                return ReloadResult([str(error)], faulty=error.failure is UpstreamFailure.REFUSED)
        missing = [each for name in loaded.rules.vhosts for each in _unreached(self._state_of(name))]
        return ReloadResult(missing=missing[:_SHOWN])

    async def _change_over(self, before: LoadedRules, loaded: LoadedRules, use: Use) -> None:
        candidates = [
            _candidate(self._state_of(name), loaded) for name in sorted({*before.rules.vhosts, *loaded.rules.vhosts})
        ]
        for candidate in candidates:
            name = candidate.state.name
            if not self._topology.follows(name):
                await self._topology.adopt(name, candidate.state)
            candidate.retirement = await self._topology.prepare(
                name, candidate.exchanges, candidate.router, candidate.queues.queues
            )
        remains = _parts(before)
        # From here to the end of the loop nothing waits: no publish comes in between.
        for candidate in candidates:
            self._topology.swap(candidate.state.name, candidate.exchanges, candidate.router)
            candidate.state.set_addresses(loaded.books.get(candidate.state.name))
        use()
        self._counters.rules.version = loaded.rules.version
        name_traffic(self._counters, loaded)
        self.loaded = loaded
        for candidate in candidates:
            if candidate.retirement is not None:
                retire = self._topology.retire(candidate.state.name, candidate.retirement)
                self._tasks.start(retire, f"retire tokens of {candidate.state.name}")
        self._tasks.start(_free(remains), "free old rules")


def _nothing() -> None:
    """Where nobody has links to other brokers."""


@contextmanager
def _unnoticed() -> Iterator[None]:
    """Let a thread compile without the event loop feeling it.

    Without garbage collection, which would stop everything to walk through all rules; what is there at the end is
    kept out of its way for good.
    """
    turn, collects = sys.getswitchinterval(), gc.isenabled()
    sys.setswitchinterval(_TURN_SECONDS)
    gc.disable()
    try:
        yield
    finally:
        sys.setswitchinterval(turn)
        gc.freeze()
        if collects:
            gc.enable()


def _parts(loaded: LoadedRules) -> list[object]:
    """Hold what old rules are made of, so that their end is not the end of thousands of objects at once."""
    exchanges = [exchange for router in loaded.routers.values() for exchange in router.exchanges.values()]
    return [part for exchange in exchanges for part in exchange.parts]


async def _free(remains: list[object]) -> None:
    while remains:
        await asyncio.sleep(0)
        del remains[-_FREED_AT_ONCE:]


def _unreached(state: VhostState) -> list[str]:
    """Destinations of rules that no publish reaches as the broker is now."""
    found = {
        one
        for owned in state.exchanges.values()
        for one in state.router.destinations(owned.name)
        if one not in owned.bound and not (owned.delivery is Delivery.QUEUE and _stands(state, one))
    }
    if state.addresses is not None:
        moved = static_translations(
            state.addresses, {one for each in state.exchanges for one in state.router.destinations(each)}, state.router
        )
        found = {one for one in found if one not in moved.away or moved.away[one].failure}
        found |= {one.here for one in moved.found if one.here is not None and not _stands(state, one.here)}
    return [f"{kind} {name.decode(errors='replace')}" for kind, name in sorted(found)]


def _stands(state: VhostState, destination: Destination) -> bool:
    """Whether a destination of queue delivery, which needs no binding, is there as far as is known."""
    kind, name = destination
    return kind != "queue" or state.has_queue(name)


def _candidate(state: VhostState, loaded: LoadedRules) -> _Candidate:
    rules = loaded.rules.vhosts.get(state.name, VhostRules(state.name))
    router = loaded.routers.get(state.name) or Router(())
    return _Candidate(state, owned_exchanges(rules), router, rules)


def owned_exchanges(rules: VhostRules) -> dict[bytes, OwnedExchange]:
    """Give what relays and control plane know of the exchanges of the rules."""
    return {rule.name: owned_exchange(rule) for rule in rules.exchanges}


def name_traffic(counters: Counters, loaded: LoadedRules) -> None:
    """Tell the counters which exchanges, bindings and destinations have numbers of their own."""
    rules = [(vhost.vhost, exchange) for vhost in loaded.rules.vhosts.values() for exchange in vhost.exchanges]
    destinations = {name for vhost, exchange in rules for _, name in loaded.routers[vhost].destinations(exchange.name)}
    counters.traffic.name(
        ((vhost, exchange.name) for vhost, exchange in rules),
        ((exchange.name, binding.id) for _, exchange in rules for binding in exchange.bindings),
        sorted(destinations),
    )
