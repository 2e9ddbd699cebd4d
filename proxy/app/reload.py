"""Reloads the rules of a running sidecar: on request, on SIGHUP, and when files change."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, TypeVar

import structlog

from proxy.admin.server import GuardedRoute, json_route
from proxy.broker.methods import DeclareQueue
from proxy.broker.topology import Topology
from proxy.config.loader import ChangedSettings
from proxy.errors import ConfigErrors, UpstreamError, UpstreamFailure
from proxy.garbage import without_collection
from proxy.net.tasks import Tasks
from proxy.relay.counters import Counters, TrafficLabels
from proxy.relay.vhost import Delivery, VhostState
from proxy.routing.destination_translation import static_translations
from proxy.routing.exchange import Exchange
from proxy.routing.router import Router
from proxy.rules.loader import LoadedRules, load_rules
from proxy.rules.ruleset import VhostRules
from proxy.rules.watch import FileWatch, lone_mounts
from proxy.rules.wire import owned_exchanges
from proxy.values import Destination, describe

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
#: Activates prepared data; neither waits nor fails.
Activation: TypeAlias = Callable[[], None]

_Compiled = TypeVar("_Compiled")


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """The outcome of one reload.

    Args:
        errors: reasons why the new rules are not active; empty if they are active.
        invalid: whether the files are invalid or the broker has refused the rules; False if the broker is unreachable.
        missing: destinations of the new rules that can't be reached now, such as queues that no client has declared.
        version: version of the active rules after the reload.
        at: time in seconds since the epoch.
        reason: cause of the reload: request, signal or file.
        restart: changed keys of the configuration that require a restart.
    """

    errors: Sequence[str] = ()
    invalid: bool = False
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
            "missing": list(self.missing),
            "restart": list(self.restart),
        }


class Reload:
    """Replaces the rules of a running sidecar on request and when files change. Reloads never run concurrently.

    A reload reads, compiles and tests the files in a separate thread. Everything that the new rules need is then
    declared on the broker. Finally, all virtual hosts switch at once, so that each publish is decided by either the old
    or the new rules. After a failure before the switch, the active rules stay in use.

    Args:
        files: lists the rules files of the configuration.
        state_of: returns the shared state of a virtual host, and creates the state if there is none.
        tasks: runs reloads, and the cleanup after a reload, in the background.
        brokers_of: reads the brokers named by the rules, the TLS files and the tokens, in a thread; returns a function
            that activates them.
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
        brokers_of: Callable[[LoadedRules], Activation],
        other_files: Files = tuple,
        settings: Callable[[], ChangedSettings] = ChangedSettings,
    ) -> None:
        self.loaded = loaded
        self.last: ReloadReport | None = None
        self._files = files
        self._other_files = other_files
        self._settings = settings
        self._brokers_of = brokers_of
        self._state_of = state_of
        self._topology = topology
        self._counters = counters
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
            if await asyncio.to_thread(self._look):
                await self.reload("file")

    async def reload(self, reason: str) -> ReloadReport:
        """Load the files and, if they are valid, activate them; `reason` is the cause, for the log."""
        async with self._one_at_a_time:
            answer = await self._load_and_activate()
            answer = replace(answer, version=self.loaded.rules.version, at=time.time(), reason=reason)
            changed = await asyncio.to_thread(self._settings)
            self.last = answer = replace(answer, restart=changed.keys)
            unavailable = bool(answer.errors) and not answer.invalid
            self._again_at = asyncio.get_running_loop().time() + RETRY_SECONDS if unavailable else None
        self._counters.rules.reloads["error" if answer.errors else "ok"] += 1
        if answer.errors:
            _log.error("reload failed", reason=reason, rules=answer.version, errors=list(answer.errors))
        else:
            self._counters.rules.last_success_seconds = answer.at
            _log.info("reloaded", reason=reason, rules=answer.version)
        if changed.keys:
            _log.warning("changed settings require a restart", keys=list(changed.keys))
        if changed.errors:
            event = "the configuration is now invalid: a restart would fail"
            _log.warning(event, errors=list(changed.errors))
        return answer

    async def _load_and_activate(self) -> ReloadReport:
        try:
            with _compilation_in_thread():
                loaded, failures, activation = await asyncio.to_thread(self._load)
        except ConfigErrors as error:
            return ReloadReport([str(fault) for fault in error.errors], invalid=True)
        except Exception as error:  # noqa: BLE001 -- no file may crash the sidecar
            _log.exception("reload failed unexpectedly")
            return ReloadReport([f"{type(error).__name__} while loading: {error}"], invalid=True)
        if failures:
            return ReloadReport(failures, invalid=True)
        return await self._activate(loaded, activation)

    def _look(self) -> bool:
        looks = [watch.look() for watch in self._watches]  # a list, so that every watch checks its files
        return any(looks)

    def _load(self) -> tuple[LoadedRules, list[str], Activation]:
        for watch in self._watches:
            watch.take()
        loaded = load_rules(self._files())
        follow_brokers = self._brokers_of(loaded)
        labels = traffic_labels(self._counters, loaded)

        def activate() -> None:
            follow_brokers()
            self._counters.traffic.name(labels)

        return loaded, [str(failure) for failure in loaded.failures()], activate

    def _lone_mounts(self) -> list[str]:
        try:
            files = [*self._files(), *self._other_files()]
            return [str(path) for path in lone_mounts(files, _MOUNTINFO.read_text("utf-8", "surrogateescape"))]
        except (OSError, ConfigErrors):  # not Linux, or a missing file, which the next load reports
            return []

    async def _activate(self, loaded: LoadedRules, activation: Activation) -> ReloadReport:
        for warning in loaded.warnings:
            _log.warning("configuration", text=str(warning))
        before = self.loaded
        if loaded.rules.version == before.rules.version:
            activation()
        else:
            try:
                await self._change_over(before, loaded, activation)
            except UpstreamError as error:
                return ReloadReport([str(error)], invalid=error.failure is UpstreamFailure.REFUSED)
        missing = [text for name in loaded.rules.vhosts for text in _unreachable(self._state_of(name))]
        return ReloadReport(missing=missing[:_SHOWN])

    async def _change_over(self, before: LoadedRules, loaded: LoadedRules, activation: Activation) -> None:
        prepared = []
        for name in sorted({*before.rules.vhosts, *loaded.rules.vhosts}):
            rules = loaded.rules.vhosts.get(name, VhostRules(name))
            state, exchanges = self._state_of(name), owned_exchanges(rules)
            router = loaded.routers.get(name) or Router(())
            if not self._topology.follows(name):
                await self._topology.adopt(name, state)
            managed = self._topology.managed(name)  # looked up now: the virtual host may be deleted during `prepare`
            prepared.append((managed, state, await managed.prepare(exchanges, router, declared_queues(rules))))
        remains = [exchange for router in before.routers.values() for exchange in router.exchanges.values()]
        # No await until `self.loaded` is set, so that no publish is processed in between.
        for managed, state, new in prepared:
            managed.reconciler.swap(new)
            state.set_addresses(loaded.books.get(state.name))
        activation()
        self._counters.rules.version = loaded.rules.version
        self.loaded = loaded
        self._tasks.start(free_exchanges(remains), "free old rules")


@contextmanager
def _compilation_in_thread() -> Iterator[None]:
    """Let a thread compile rules without delaying publishes.

    The thread switch interval is short, since each confirm waits for two or three switches to the event loop. Garbage
    collection is disabled, since it would stop all threads while it traverses all rules. Objects that exist at the end
    are permanently excluded from garbage collection.
    """
    gc.collect()  # garbage that still exists at the end would never be freed
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
        while exchange.dismantle(_FREED_AT_ONCE):  # noqa: ASYNC110 -- lets other tasks run, does not poll
            await asyncio.sleep(0)


def _unreachable(state: VhostState) -> list[str]:
    """Of the destinations in the rules, return those that publishes can't reach in the current state of the broker."""
    missing = {
        destination
        for owned in state.exchanges.values()
        for destination in state.router.destinations(owned.name)
        if (
            not _exists(state, destination)
            if owned.delivery is Delivery.QUEUE
            else state.token_of(owned, destination) is None
        )
    }
    if state.addresses is not None:
        named = {destination for name in state.exchanges for destination in state.router.destinations(name)}
        moved = static_translations(state.addresses, named, state.router, state.carriers)
        missing = {
            destination for destination in missing if destination not in moved.away or moved.away[destination].failure
        }
        targets = (translation.here for translation in moved.found)
        missing |= {target for target in targets if target is not None and not _exists(state, target)}
    return [*map(describe, sorted(missing))]


def _exists(state: VhostState, destination: Destination) -> bool:
    """Return True if a destination that needs no binding is believed to exist. All exchanges are assumed to exist."""
    kind, name = destination
    return kind != "queue" or name in state.queues


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
