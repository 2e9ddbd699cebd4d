"""Reloads the rules of a running sidecar: on request, on SIGHUP, and when files change."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import structlog

from oxproxy.admin.server import GuardedRoute, json_route
from oxproxy.app.reload_units import Brokers, BrokersOf, ReloadUnit, load_units
from oxproxy.broker.methods import DeclareQueue
from oxproxy.broker.reconcile.reconciler import PreparedRules
from oxproxy.broker.reconcile.vhost_loop import VhostTopology
from oxproxy.broker.topology import Topology
from oxproxy.config.loader import ChangedSettings
from oxproxy.errors import ConfigErrors, UpstreamError, UpstreamFailure
from oxproxy.garbage import without_collection
from oxproxy.net.tasks import Tasks
from oxproxy.relay.counters import Counters, TrafficLabels
from oxproxy.relay.vhost import VhostState
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.router import Router
from oxproxy.rules.loader import LoadedRules, joined_rules
from oxproxy.rules.ruleset import VhostRules
from oxproxy.rules.watch import FileWatch, lone_mounts
from oxproxy.rules.wire import owned_exchanges

_log = structlog.get_logger(__name__)

#: Maximum number of missing destinations in a report.
_SHOWN = 100
#: Number of bindings in old rules that are freed in one step, which takes about 0.1 ms. Other tasks run between steps.
_FREED_AT_ONCE = 64
#: Number of times to try to free old rules while they are still in use. The interval is `POLL_SECONDS`.
_FREE_ATTEMPTS = 60
#: Seconds for which a compiling thread holds the interpreter lock while other threads wait.
_SWITCH_SECONDS = 0.0005
#: Seconds between checks of the files. A change is loaded when the next check finds no further change.
POLL_SECONDS = 1.0
#: Seconds until the next attempt to activate valid rules if the broker was unreachable.
RETRY_SECONDS = 5.0
_OK, _UNUSABLE, _UNAVAILABLE = 200, 422, 503
_MOUNTINFO = Path("/proc/self/mountinfo")

#: Returns files in the order in which they are loaded.
Files: TypeAlias = Callable[[], Sequence[Path]]
#: Activates TLS files, tokens and brokers that have been read, except the brokers of the given virtual hosts; neither
#: waits nor fails.
Activation: TypeAlias = Callable[[Collection[str]], None]

_Compiled = TypeVar("_Compiled")


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """The outcome of one reload.

    Args:
        errors: reasons why some or all new rules are not active; empty if they are active.
        outdated: names of the virtual hosts whose new rules are not active.
        invalid: whether files are invalid or the broker has refused rules.
        unavailable: whether rules are not active because the broker was unreachable.
        missing: destinations of the new rules that can't be reached now, such as queues that no client has declared.
        version: version of the active rules after the reload.
        at: time in seconds since the epoch.
        reason: cause of the reload: request, signal or file.
        restart: changed keys of the configuration that require a restart.
    """

    errors: Sequence[str] = ()
    outdated: Sequence[str] = ()
    invalid: bool = False
    unavailable: bool = False
    missing: Sequence[str] = ()
    version: str = ""
    at: float = 0.0
    reason: str = ""
    restart: Sequence[str] = ()

    def as_json(self) -> dict[str, object]:
        return {
            "result": "error" if self.errors else "ok",
            "rules": self.version,
            "at": self.at,
            "reason": self.reason,
            "errors": list(self.errors),
            "outdated": list(self.outdated),
            "missing": list(self.missing),
            "restart": list(self.restart),
        }


class _PreparedVhost(NamedTuple):
    """A virtual host for whose new rules everything has been declared and bound."""

    managed: VhostTopology
    state: VhostState
    rules: PreparedRules


class Reload:
    """Replaces the rules of a running sidecar on request and when files change. Reloads never run concurrently.

    A reload reads, compiles and tests the files in a separate thread. Everything that the new rules need is then
    declared on the broker. Finally, all virtual hosts switch at once, so that each publish is decided by either the old
    or the new rules. If the rules of a virtual host are invalid or refused, the active rules stay in use for its
    `ReloadUnit`. If a file that the configuration names can't be used, they stay in use for all virtual hosts.

    Args:
        files: lists the rules files of the configuration.
        state_of: returns the shared state of a virtual host, and creates the state if there is none.
        tasks: runs reloads, and the cleanup after a reload, in the background.
        brokers_of: reads the brokers that rules name; called in a thread.
        others_of: reads the TLS files, including those of the given brokers, and the tokens, in a thread; returns a
            function that activates them together with the brokers.
        other_files: lists TLS files and files with tokens, which are also watched.
        settings: compares the configuration file with the configuration in use; called in a thread.
    """

    def __init__(
        self,
        files: Files,
        loaded: LoadedRules,
        state_of: Callable[[str], VhostState],
        topology: Topology,
        counters: Counters,
        tasks: Tasks,
        brokers_of: BrokersOf,
        others_of: Callable[[Brokers], Activation],
        other_files: Files = tuple,
        settings: Callable[[], ChangedSettings] = ChangedSettings,
    ) -> None:
        self.loaded = loaded
        self.last: ReloadReport | None = None
        self._files = files
        self._other_files = other_files
        self._settings = settings
        self._brokers_of = brokers_of
        self._others_of = others_of
        self._state_of = state_of
        self._topology = topology
        self._counters = counters
        counters.rules.outdated = dict.fromkeys(loaded.rules.vhosts, False)
        self._tasks = tasks
        self._watches = (FileWatch(files, loaded.rules.version), FileWatch(other_files, ""))
        self._watches[1].take()
        self._one_at_a_time = asyncio.Lock()
        #: event loop time of the next attempt to activate valid rules; None if no attempt is due
        self._again_at: float | None = None

    async def compile_in_thread(self, compiling: Callable[[], _Compiled]) -> _Compiled:
        """Run a compilation of rules in a thread, never concurrently with a reload."""
        async with self._one_at_a_time:
            with _compilation_in_thread():
                return await asyncio.to_thread(compiling)

    def request(self) -> None:
        """Schedule a reload, regardless of whether the files have changed (SIGHUP)."""
        self._tasks.start(self.reload("signal"), "reload")

    @property
    def route(self) -> GuardedRoute:
        """``POST /-/reload``: 200; 422 if `ReloadReport.invalid` is set; 503 if the broker is unreachable."""
        return json_route("POST", "/-/reload", self._answer, change="reload")

    async def _answer(self, _body: bytes) -> tuple[int, object]:
        report = await self.reload("request")
        status = _OK if not report.errors else _UNUSABLE if report.invalid else _UNAVAILABLE
        return status, report.as_json()

    async def watch(self) -> None:
        for path in await asyncio.to_thread(self._lone_mounts):
            _log.warning("file is mounted without its directory (subPath) and will never change", file=path)
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if self._again_at is not None and loop.time() >= self._again_at:
                self._again_at = None
                self._watches[0].again()
            if await asyncio.to_thread(self._have_files_changed):
                await self.reload("file")

    async def reload(self, reason: str) -> ReloadReport:
        """Load the files and, if they are valid, activate them; `reason` is the cause, for the log."""
        async with self._one_at_a_time:
            before = self.loaded
            answer = await self._load_and_activate()
            answer = replace(answer, version=self.loaded.rules.version, at=time.time(), reason=reason)
            changed = await asyncio.to_thread(self._settings)
            self.last = answer = replace(answer, restart=changed.keys)
            self._again_at = asyncio.get_running_loop().time() + RETRY_SECONDS if answer.unavailable else None
        self._count(answer)
        if not answer.errors or self.loaded is not before:
            self._counters.rules.last_success_seconds = answer.at
            _log.info("reloaded", reason=reason, rules=answer.version)
        if answer.errors:
            outdated, errors = list(answer.outdated), list(answer.errors)
            _log.error("reload failed", reason=reason, rules=answer.version, outdated=outdated, errors=errors)
        if changed.keys:
            _log.warning("changed settings require a restart", keys=list(changed.keys))
        if changed.errors:
            event = "the configuration is now invalid: a restart would fail"
            _log.warning(event, errors=list(changed.errors))
        return answer

    def _count(self, answer: ReloadReport) -> None:
        counters = self._counters.rules
        counters.reloads["error" if answer.errors else "ok"] += 1
        counters.outdated = {name: name in answer.outdated for name in {*self.loaded.rules.vhosts, *answer.outdated}}

    async def _load_and_activate(self) -> ReloadReport:
        try:
            with _compilation_in_thread():
                units, activation = await asyncio.to_thread(self._load)
        except ConfigErrors as error:
            return self._refusal([str(fault) for fault in error.errors])
        except Exception as error:  # noqa: BLE001 -- no file may crash the sidecar
            _log.exception("reload failed unexpectedly")
            return self._refusal([f"{type(error).__name__} while loading: {error}"])
        return await self._activate(units, activation)

    def _refusal(self, errors: Sequence[str]) -> ReloadReport:
        """Return the report on a reload that activated nothing."""
        return ReloadReport(errors, sorted(self.loaded.rules.vhosts), invalid=True)

    def _have_files_changed(self) -> bool:
        changed = [watch.check() for watch in self._watches]  # a list, so that every watch checks its files
        return any(changed)

    def _load(self) -> tuple[list[ReloadUnit], Activation]:
        for watch in self._watches:
            watch.take()
        units = load_units(self._files(), self.loaded, self._brokers_of)
        brokers = {name: named for unit in units if not unit.errors for name, named in unit.brokers.items()}
        return units, self._others_of(brokers)

    def _lone_mounts(self) -> list[str]:
        try:
            files = [*self._files(), *self._other_files()]
            return [str(path) for path in lone_mounts(files, _MOUNTINFO.read_text("utf-8", "surrogateescape"))]
        except (OSError, ConfigErrors):  # not Linux, or a missing file, which the next load reports
            return []

    async def _activate(self, units: Sequence[ReloadUnit], activation: Activation) -> ReloadReport:
        for warning in (warning for unit in units if unit.changed for warning in unit.loaded.warnings):
            _log.warning("configuration", text=str(warning))
        # At the same time, since an unreachable virtual host delays the others by its deadline.
        async with asyncio.TaskGroup() as group:
            preparing = [group.create_task(self._prepare(unit)) for unit in units]
        prepared = [task.result() for task in preparing]
        units = [unit for unit, _ in prepared]
        outdated = {name for unit in units if unit.errors for name in unit.vhosts}
        before = self.loaded
        loaded, labels = await asyncio.to_thread(self._joined, units)
        # No await until `self.loaded` is set, so that no publish is processed in between.
        for vhost in (vhost for unit, vhosts in prepared if not unit.errors for vhost in vhosts):
            vhost.managed.reconciler.swap(vhost.rules)
            vhost.state.set_addresses(loaded.books.get(vhost.state.name))
        activation(outdated)
        if loaded.contents != before.contents:
            self._counters.traffic.name(labels)
            self._counters.rules.version = loaded.rules.version
            self.loaded = loaded
            replaced = (router for name, router in before.routers.items() if loaded.routers.get(name) is not router)
            remains = [exchange for router in replaced for exchange in router.exchanges.values()]
            self._tasks.start(free_exchanges(remains), "free old rules")
        missing = [text for name in loaded.rules.vhosts for text in sorted(self._state_of(name).missing_here())]
        failed = [unit for unit in units if unit.errors]
        return ReloadReport(
            [error for unit in failed for error in unit.errors],
            sorted(outdated),
            invalid=any(unit.invalid for unit in failed),
            unavailable=not all(unit.invalid for unit in failed),
            missing=missing[:_SHOWN],
        )

    def _joined(self, units: Sequence[ReloadUnit]) -> tuple[LoadedRules, TrafficLabels]:
        """Return the rules of all units, and their labels. A unit with errors keeps its active rules."""
        loaded = joined_rules([self.loaded.of_vhosts(unit.vhosts) if unit.errors else unit.loaded for unit in units])
        return loaded, traffic_labels(self._counters, loaded)

    async def _prepare(self, unit: ReloadUnit) -> tuple[ReloadUnit, list[_PreparedVhost]]:
        """Declare and bind what a unit needs; return the unit, with an error if the broker fails or refuses."""
        prepared: list[_PreparedVhost] = []
        if unit.errors or not unit.changed:
            return unit, prepared
        for name in sorted(unit.vhosts):
            try:
                prepared.append(await self._prepare_vhost(name, unit.loaded))
            except UpstreamError as error:
                refused = error.failure is UpstreamFailure.REFUSED
                return unit.failed([f"vhost {name}: {error}"], invalid=refused), []
        return unit, prepared

    async def _prepare_vhost(self, name: str, loaded: LoadedRules) -> _PreparedVhost:
        rules = loaded.rules.vhosts.get(name, VhostRules(name))
        state, exchanges = self._state_of(name), owned_exchanges(rules)
        router = loaded.routers.get(name) or Router(())
        if not self._topology.follows(name):
            await self._topology.adopt(name, state)
        managed = self._topology.managed(name)  # looked up now: the virtual host may be deleted during `prepare`
        book = loaded.books.get(name)
        return _PreparedVhost(managed, state, await managed.prepare(exchanges, router, declared_queues(rules), book))


@contextmanager
def _compilation_in_thread() -> Iterator[None]:
    """Let a thread compile rules without delaying publishes.

    The thread switch interval is short, since each confirm waits for two or three switches to the event loop. Garbage
    collection is disabled, since it would stop all threads while it traverses all rules. Objects that exist at the end
    are permanently excluded from garbage collection.
    """
    # Garbage that still exists at the end would never be freed. Old objects are not examined, since they may include
    # 100,000 client bindings.
    gc.collect(1)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    with without_collection():
        try:
            yield
        finally:
            sys.setswitchinterval(interval)
            gc.freeze()


async def free_exchanges(exchanges: list[Exchange]) -> None:
    """Free old rules in steps, since freeing large rules at once would block the event loop for too long."""
    while exchanges:
        exchange = exchanges.pop()
        for _ in range(_FREE_ATTEMPTS):
            # An explanation, a shadow comparison or an idle relay may still refer to the exchange. This function and
            # `getrefcount` hold one reference each.
            if sys.getrefcount(exchange) <= 2:
                break
            await asyncio.sleep(POLL_SECONDS)
        else:
            continue
        # The new rules use the clients' layer, unless they give the exchange another type or lack it.
        layers = [exchange.file] if sys.getrefcount(exchange.clients) > 2 else [exchange.file, exchange.clients]
        for layer in layers:
            while layer.dismantle(_FREED_AT_ONCE):  # noqa: ASYNC110 -- lets other tasks run, does not poll
                await asyncio.sleep(0)


def declared_queues(rules: VhostRules) -> list[DeclareQueue]:
    return [DeclareQueue(queue.name, queue.arguments) for queue in rules.queues]


def traffic_labels(counters: Counters, loaded: LoadedRules) -> TrafficLabels:
    """Return the exchanges, bindings and destinations that have their own series in the traffic metrics."""
    rules = [(vhost.vhost, exchange) for vhost in loaded.rules.vhosts.values() for exchange in vhost.exchanges]
    destinations = {
        (vhost, name) for vhost, exchange in rules for _, name in loaded.routers[vhost].destinations(exchange.name)
    }
    # Regular expressions, routing keys and headers of messages can also select queues that are not named in any
    # binding.
    destinations |= {(vhost.vhost, queue.name) for vhost in loaded.rules.vhosts.values() for queue in vhost.queues}
    return counters.traffic.labels(
        ((vhost, exchange.name) for vhost, exchange in rules),
        ((vhost, exchange.name, binding.id) for vhost, exchange in rules for binding in exchange.bindings),
        sorted(destinations),
        ((vhost, exchange.name) for vhost, exchange in rules if exchange.require or exchange.observes),
    )
