"""The sidecar: assembles all packages according to the configuration and the rules, runs until SIGTERM, and drains.

Only this module refers to all parts of a running sidecar.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import structlog

from oxproxy.addressing.targets import Remote
from oxproxy.admin.access import Access, AdminChange, Role
from oxproxy.admin.console import console_routes
from oxproxy.admin.explain import ExplainPage
from oxproxy.admin.live import LiveFeed, LiveTopic
from oxproxy.admin.recent import RecentPublishes
from oxproxy.admin.rules_pages import RulesPages
from oxproxy.admin.server import AdminServer
from oxproxy.admin.traffic import TrafficSampler
from oxproxy.app.composition import (
    admin_tokens,
    audit_facts,
    audit_policy,
    audit_privacy,
    client_rules,
    control_settings,
    listener_limits,
    rates,
    remote_brokers,
    secrets_of,
    session_limits,
    token_files,
)
from oxproxy.app.exit_status import EXIT_FAULTY, EXIT_OK
from oxproxy.app.reload import Activation, Reload, declared_queues, traffic_labels
from oxproxy.app.reload_units import Brokers
from oxproxy.app.shadow import Shadow
from oxproxy.audit.policy import AuditPolicy
from oxproxy.audit.writer import AuditWriter
from oxproxy.broker.connection import ControlSettings
from oxproxy.broker.remote_observer import RemoteObserver
from oxproxy.broker.topology import Topology
from oxproxy.config.loader import changed_since, rules_files
from oxproxy.config.settings import Settings
from oxproxy.errors import ConfigError, UpstreamError, UpstreamFailure
from oxproxy.garbage import without_collection
from oxproxy.native import BUILD
from oxproxy.net.context import SessionContext
from oxproxy.net.listener import Listener, ListenError, admitted_connections
from oxproxy.net.remote.endpoints import Endpoint, endpoint
from oxproxy.net.remote.pool import RemotePool
from oxproxy.net.tasks import Tasks
from oxproxy.net.tls_config import SidecarTls
from oxproxy.net.upstream import MOST_KEPT, Upstream, UpstreamPool
from oxproxy.net.vhosts import Vhosts
from oxproxy.observe.exposition import Exposition
from oxproxy.relay.counters import Counters
from oxproxy.relay.plan.plan import Sources
from oxproxy.relay.rate_limits import UserRateLimits
from oxproxy.relay.records.audit_record import PublishLog
from oxproxy.relay.vhost import VhostState
from oxproxy.routing.bindings.patterns import jit_compiles
from oxproxy.rules.loader import LoadedRules
from oxproxy.rules.wire import owned_exchanges
from oxproxy.yamlfile.hosts import is_own_address

_log = structlog.get_logger(__name__)
_DISTRIBUTION = "oxproxy"
#: Seconds between two updates of the gauges that are not updated by events.
_WATCH_SECONDS = 1.0
#: Seconds for which another thread (compiling rules, writing the metrics page) may hold the interpreter lock while the
#: event loop waits. Python's default of 5 ms would be noticeable, since the event loop may wait several times per
#: iteration.
_SWITCH_SECONDS = 0.0005
#: Seconds without a failure after which a periodic task counts as working.
_STEADY_SECONDS = 5.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: Signals to stop within this many seconds count as one, since a service manager and a shell may both send one.
ONE_SIGNAL_SECONDS = 1.0


def product_version() -> str:
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


class Sidecar:
    """One running sidecar.

    Most attributes are the parts of the process, which this class creates, connects, starts and stops.

    Args:
        environ: environment, for secrets.
    """

    def __init__(self, settings: Settings, loaded: LoadedRules, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._environ = environ
        self._loaded = loaded
        self._version = product_version()
        self._started_at = time.time()
        self._counters = counters = Counters(settings.metrics.bindings, self._version)
        self._states = {
            name: VhostState(name, loaded.routers[name], owned_exchanges(vhost), addresses=loaded.books.get(name))
            for name, vhost in loaded.rules.vhosts.items()
        }
        counters.rules.version = loaded.rules.version
        counters.rules.last_success_seconds = time.time()
        counters.traffic.name(traffic_labels(counters, loaded))
        self._tls = SidecarTls(settings)
        self._topology = self._make_topology()
        counters.control_failures = self._topology.supervisor.failures
        self._audit: AuditWriter | None = None
        # Set in `_assemble`, before anything runs.
        self._remotes: RemotePool
        self._reload: Reload
        self._shadow: Shadow
        self._live: LiveFeed
        self._access: Access
        self._admin: AdminServer
        self._stopping = asyncio.Event()
        #: event-loop time of the first signal to stop
        self._signalled_at: float | None = None
        self._listening = False
        #: event-loop time at which every wait after the first signal ends
        self._end = 0.0
        self._following: asyncio.Task[object] | None = None
        self._refused: UpstreamError | ConfigError | None = None

    async def serve(self) -> int:
        """Run until a signal arrives. Return the exit status."""
        sys.setswitchinterval(_SWITCH_SECONDS)
        loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self._stop)
        tasks = Tasks()
        async with AsyncExitStack() as stack:
            policy = audit_policy(self._settings)
            publish_log = None
            if policy is not None:
                publish_log = await self._open_audit(policy, stack)
                if publish_log is None:
                    _log.info("stopped")
                    return EXIT_OK
            listener = self._assemble(tasks, publish_log)
            await self._start_admin(stack)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))
            stack.push_async_callback(self._topology.close)
            stack.push_async_callback(tasks.ended)
            keep = self._topology.supervisor.keep
            tasks.start(keep("gauges", self._watch, steady_seconds=_STEADY_SECONDS), "gauges")
            tasks.start(keep("live", self._live.run, steady_seconds=_STEADY_SECONDS), "live events")
            tasks.start(keep("start", partial(self._control, tasks, listener)), "control plane")
            await self._stopping.wait()
            self._end = loop.time() + self._settings.shutdown.deadline_seconds
            if self._refused is not None:
                sys.stderr.write(f"{self._refused}\n")
                return EXIT_FAULTY
            _log.info("draining")
            if self._listening:
                await listener.drain()
                # The remaining messages are from producers that have disconnected. The deadline of the drain applies.
                await self._remotes.drain(self._end - loop.time())
        _log.info("stopped")
        return EXIT_OK

    async def _close_audit(self) -> None:
        """Close the audit log. The deadline that the first signal has set also applies here."""
        if self._audit is not None:
            await self._audit.close(max(0.0, self._end - asyncio.get_running_loop().time()))

    async def _start_admin(self, stack: AsyncExitStack) -> None:
        address = self._settings.admin.address
        if address is None:
            return
        stack.push_async_callback(self._admin.stop)
        try:
            bound = await self._admin.start(address.host, address.port)
        except OSError as error:
            raise self._settings.cannot_listen("admin.address", address, error) from error
        _log.info("admin endpoint", address=f"{bound[0]}:{bound[1]}")

    async def _open_audit(self, policy: AuditPolicy, stack: AsyncExitStack) -> PublishLog | None:
        """Open the audit log; return None if a signal arrives while another process still holds the log's lock.

        Raises:
            ConfigError: the audit log can't be written.
        """
        facts = audit_facts(self._settings, policy.instance)
        self._audit = AuditWriter(policy, self._counters.audit, time.time, facts=facts)
        if not await self._audit.start(self._stopping):
            return None
        # The audit log is closed last, since publishes are confirmed and audit records are written until then.
        stack.push_async_callback(self._close_audit)
        return PublishLog(
            policy.instance,
            audit_privacy(self._settings),
            lambda: self._counters.rules.version,
            self._audit.append,
            time.time,
            ruled_only=self._settings.audit.scope == "ruled",
            facts=facts,
        )

    def _assemble(self, tasks: Tasks, publish_log: PublishLog | None) -> Listener:
        """Build the listener and everything that it uses."""
        sources = Sources(time.time, time.perf_counter, random.randrange)
        privacy = audit_privacy(self._settings)
        rules_of_clients = client_rules(self._settings)
        vhosts = Vhosts(self._states.values(), self._topology, self._counters, sources, rules_of_clients, publish_log)
        warn = self._topology.supervisor.keep("warnings", vhosts.warn, steady_seconds=_STEADY_SECONDS)
        tasks.start(warn, "warnings")
        self._topology.remote_observer = RemoteObserver(self._control_settings_of_remote)
        self._topology.in_use, self._topology.released = vhosts.in_use, vhosts.forget
        self._remotes = self._make_remotes(tasks)
        self._reload = self._make_reload(vhosts, tasks)
        self._shadow = Shadow(self._reload, vhosts, privacy, tasks)
        recent = RecentPublishes(privacy, vhosts.set_failures)
        vhosts.set_failures(recent)
        self._access = self._make_access(publish_log)
        self._admin = self._make_admin(vhosts, recent)
        listener = self._make_listener(vhosts)
        if self._audit is not None:
            self._audit.on_durable = listener.audit_durable
            self._audit.on_failing = listener.audit_failing
            self._audit.on_full = listener.audit_full
        return listener

    async def _control(self, tasks: Tasks, listener: Listener) -> None:
        """Declare and bind on the broker what the rules need, then accept producers."""
        if self._following is None:
            gc.collect()  # collection is disabled in the next step, since it creates no reference cycles
            try:
                with without_collection():
                    await self._topology.start()
            except UpstreamError as error:
                if error.failure is UpstreamFailure.REFUSED:
                    self._refused = error
                    self._stopping.set()
                    return
                _log.warning("the broker is not reachable yet", error=str(error))
            self._following = tasks.start(self._topology.run(), "topology")
        while not self._topology.ready:  # noqa: ASYNC110 -- no single event makes the sidecar ready
            await asyncio.sleep(0.05)
        # The loaded objects are permanent. Excluding them from garbage collection avoids pauses.
        gc.freeze()
        try:
            bound = await listener.start()
        except ListenError as error:
            address = self._settings.listen[error.index].address
            self._refused = self._settings.cannot_listen(f"listen[{error.index}].address", address, error)
            self._stopping.set()
            return
        self._listening = True
        if not jit_compiles():
            _log.info("regular expressions run in PCRE2's interpreter, since executable memory is not permitted")
        listen = [f"{host}:{port}" for host, port in bound]
        _log.info("ready", listen=listen, rules=self._counters.rules.version, build=BUILD)
        watch = self._topology.supervisor.keep("rules", self._reload.watch, steady_seconds=_STEADY_SECONDS)
        tasks.start(watch, "rules files")

    def _stop(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._signalled_at is None:
            self._signalled_at = now
        elif now - self._signalled_at >= ONE_SIGNAL_SECONDS:
            _log.warning("second signal: ending immediately")
            sys.stderr.flush()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        self._stopping.set()

    async def _watch(self) -> None:
        while True:
            self._topology.count(self._counters)
            self._counters.certificates = self._tls.contexts.ends
            await asyncio.sleep(_WATCH_SECONDS)

    def not_ready(self) -> list[str]:
        reasons = [f"vhost {name}: the first reconcile pass has not succeeded yet" for name in self._topology.waiting]
        reasons += self._topology.supervisor.failing
        if self._audit is not None and self._audit.failure and (self._audit.strict or self._audit.full):
            reasons.append(f"audit log: {self._audit.failure}")
        if self._stopping.is_set():
            reasons.append("draining")
        elif not reasons and not self._listening:
            reasons.append("not listening yet")
        return reasons

    def status(self) -> dict[str, object]:
        return {
            "version": self._version,
            "build": BUILD,
            "started_at": self._started_at,
            "process": os.getpid(),
            "rules": self._counters.rules.version,
            "rules_since": self._counters.rules.last_success_seconds,
            "last_reload": None if self._reload.last is None else self._reload.last.as_json(),
            "shadow": self._shadow.version,
            "ready": not self.not_ready(),
            "not_ready": self.not_ready(),
            "degraded": self._topology.degraded,
            "audit_failure": None if self._audit is None else self._audit.failure,
            "upstream": _links(self._counters),
            "remotes": self._remotes.status(),
            "vhosts": self._topology.status(),
        }

    def _make_topology(self) -> Topology:
        control = control_settings(self._settings, self._tls, secrets_of(self._settings))
        queues = {name: declared_queues(vhost) for name, vhost in self._loaded.rules.vhosts.items()}
        return Topology(control, self._states, queues)

    def _make_remotes(self, tasks: Tasks) -> RemotePool:
        listening = self._settings.listen_addresses
        brokers = remote_brokers(self._loaded, self._environ, listening)
        self._tls.read(brokers)(brokers)
        for section, policy in self._tls.policies().items():
            _log.info("TLS policy", section=section, **policy)
        remotes = RemotePool(brokers, self._counters, self._version, tasks, self._tls.contexts)
        remotes.listening = listening
        return remotes

    def _control_settings_of_remote(self, vhost: str, remote: Remote) -> tuple[ControlSettings, str] | None:
        """Return the settings and the virtual host with which another broker's inventory is read.

        The login is the same as for sending messages to that broker. Return None if `remote` has no endpoint, if its
        address is that of this sidecar, or if the login is not UTF-8.
        """
        remotes = self._remotes
        place = endpoint(remote, remotes.brokers.get(vhost, {}), vhost)
        if not isinstance(place, Endpoint) or is_own_address(place.host, place.port, remotes.listening):
            return None
        tls = None if place.tls is None else self._tls.client(place.tls, place.tls.server_name or place.host)
        login = place.credentials
        try:
            user, password, remote_vhost = login.user.decode(), login.password.decode(), login.vhost.decode()
        except UnicodeDecodeError:  # an address may contain any bytes, but the client library requires str
            return None
        return ControlSettings(
            hosts=((place.host, place.port),), username=user, password=password, tls=tls
        ), remote_vhost

    def _make_reload(self, vhosts: Vhosts, tasks: Tasks) -> Reload:
        def state_of(vhost: str) -> VhostState:
            return vhosts.plans(vhost).state

        files = partial(rules_files, self._settings)

        def brokers_of(loaded: LoadedRules) -> Brokers:
            return remote_brokers(loaded, self._environ, self._remotes.listening)

        def others_of(brokers: Brokers) -> Activation:
            use_contexts = self._tls.read(brokers)
            tokens = admin_tokens(self._settings)

            def use(outdated: Collection[str]) -> None:
                kept = {name: named for name, named in self._remotes.brokers.items() if name in outdated}
                new = {name: named for name, named in brokers.items() if name not in outdated}
                use_contexts(new | kept)
                self._remotes.use(new | kept)
                if self._access.use(tokens):
                    self._live.end_streams()

            return use

        changed = partial(changed_since, self._settings, self._environ)

        def other_files() -> list[Path]:
            return [*self._tls.files(), *token_files(self._settings)]

        reload = Reload(
            files,
            self._loaded,
            state_of,
            self._topology,
            self._counters,
            tasks,
            brokers_of,
            others_of,
            other_files,
            changed,
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload.request)
        return reload

    def _make_access(self, publish_log: PublishLog | None) -> Access:
        def record(change: AdminChange) -> None:
            if publish_log is not None:
                publish_log.admin(change.as_json())

        admin = self._settings.admin
        return Access(admin.allow, admin.hosts, admin_tokens(self._settings), record)

    def _make_admin(self, vhosts: Vhosts, recent: RecentPublishes) -> AdminServer:
        reload, shadow = self._reload, self._shadow
        explain = ExplainPage(lambda: reload.loaded, lambda: vhosts.states)
        files = partial(rules_files, self._settings)
        rules = RulesPages(lambda: reload.loaded, lambda: vhosts.states, files, reload.compile_in_thread)
        topics = {
            "status": LiveTopic(self.status),
            "recent": LiveTopic(recent.whole, recent.news),
            "shadow": LiveTopic(shadow.state),
        }
        self._live = LiveFeed(TrafficSampler(self._counters), topics)
        metrics_role = self._settings.admin.metrics_role
        pages = [reload.route, explain.route, *rules.routes, *shadow.routes, recent.route, *self._live.routes]
        return AdminServer(
            Exposition(self._counters),
            self.not_ready,
            self.status,
            self._access,
            [*pages, *console_routes()],
            lambda: self._topology.degraded,
            None if metrics_role is None else Role(metrics_role),
            self._tls.admin_provider(),
        )

    def _make_listener(self, vhosts: Vhosts) -> Listener:
        settings, upstream = self._settings, self._settings.upstream
        context = SessionContext(
            Upstream(
                tuple((address.host, address.port) for address in upstream.addresses),
                upstream.connect_timeout_seconds,
                self._tls.upstream,
                self._tls.contexts,
            ),
            vhosts,
            self._counters,
            session_limits(settings),
            self._version,
            self._remotes,
            self._audit,
            UserRateLimits(rates(settings)),
            UpstreamPool(upstream.reuse_seconds, self._counters) if upstream.reuse_seconds is not None else None,
        )
        limits = listener_limits(settings)
        kept = MOST_KEPT if context.reuse else 0
        configured = "limits.connections" in settings.places
        return Listener(
            tuple((entry.address.host, entry.address.port) for entry in settings.listen),
            context,
            replace(limits, connections=admitted_connections(limits.connections, kept, configured=configured)),
            self._tls.providers(),
            {index for index, entry in enumerate(settings.listen) if entry.reuse_port},
        )


def _links(counters: Counters) -> dict[str, object]:
    """Return the number of connections to RabbitMQ, the connection attempts by result, and the last failure."""
    links, error = counters.upstream, counters.upstream.last_error
    return {
        "connections": links.open,
        "attempts": links.results,
        "last_error": None if error is None else {"at": error[0], "error": error[1]},
    }
