"""Several workers on one host: starts them, keeps them running, and answers for all of them on the admin address.

The workers listen on the same addresses; the kernel distributes connections (SO_REUSEPORT). This process serves no
producer. Each worker is a complete sidecar: it provisions by itself, and provisioning is idempotent.

Reload: the files are parsed, compiled and tested here first; if they are invalid, no worker hears of it. Then each
worker is told to reload. A worker that can't, because of the broker, is told again until it can; until then it decides
by the rules before, and `oxproxy_rules_info` shows both versions. Shadow: each worker compares its own publishes, and
the reports are added up here.

Source: socket(7), SO_REUSEPORT.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import structlog

from proxy.admin.client import JSON, TEXT
from proxy.admin.explain import explain_route
from proxy.admin.server import AdminServer, GuardedRoute
from proxy.app.composition import cannot_listen, remote_brokers
from proxy.app.reload import Activation, ActivationResult, Files, ReloadLoop
from proxy.app.shadow import shadow_routes
from proxy.app.worker import Worker
from proxy.broker.task_supervisor import Supervisor
from proxy.config.loader import ChangedSettings, changed_since, rules_files
from proxy.config.settings import Settings
from proxy.net.tasks import Tasks
from proxy.net.tls_config import SidecarTls
from proxy.observe.exposition import PROCESS, Exposition
from proxy.observe.merging import MergedExposition, MetricsSnapshot, read_snapshot
from proxy.relay.counters import Counters, RulesCounters
from proxy.rules.comparison import KINDS
from proxy.rules.loader import LoadedRules
from proxy.yamlfile.kinds import HostPort

_log = structlog.get_logger(__name__)

#: Back-off before a worker is started again, in seconds: the first, and the longest.
RETRY_SECONDS, RETRY_MOST_SECONDS = 0.5, 30.0
#: A worker that ran for so long is started again with the first back-off.
STEADY_SECONDS = 60.0
#: Seconds after which watching the rules files counts as working again.
_STEADY_SECONDS = 5.0
#: Seconds between two checks whether all are ready, at the start.
_READY_SECONDS = 0.1
#: Longest wait for pages that a worker answers immediately.
_PROMPT_SECONDS = 5.0
#: Beyond `shutdown.deadline`, what a worker may take to end: close-oks, audit log.
_END_SECONDS = 15.0
_HTTP_OK, _HTTP_UNUSABLE, _HTTP_UNAVAILABLE = 200, 422, 503
_EXIT_OK, _EXIT_FAULTY = 0, 2
#: The parent process has no number of this metric: it serves no producer.
_OF_WORKERS = "oxproxy_workers"
#: Numbers of a report of a shadow that are added up.
_SUMS = ("compared", "equal", "different", "random")

#: A report of a shadow.
Report: TypeAlias = dict[str, Any]  # Any: JSON
#: Requests a page of all running workers, by method and body; returns status and body of those that answered.
Broadcast: TypeAlias = Callable[[str, bytes], Awaitable[Sequence[tuple[int, bytes]]]]


class WorkersReload(ReloadLoop):
    """Replaces the rules of all workers.

    Args:
        files: lists the rules files as the configuration names them.
        loaded: the rules in force.
        check: checks what else the rules need, in a thread; returns the activation.
        reload_all: requests a reload of every worker; returns its number, status and body; status 0 if it does
            not answer.
        counters: counts reloads.
        tasks: runs reloads that nothing waits for.
        tls_files: lists the files of TLS, which are watched as well.
        settings: compares the configuration with the one in use; called in a thread.
    """

    def __init__(
        self,
        files: Files,
        loaded: LoadedRules,
        check: Callable[[LoadedRules], Activation],
        reload_all: Callable[[], Awaitable[Sequence[tuple[int, int, bytes]]]],
        counters: RulesCounters,
        tasks: Tasks,
        tls_files: Files = tuple,
        settings: Callable[[], ChangedSettings] = ChangedSettings,
    ) -> None:
        """Take the rules as they are."""
        super().__init__(files, loaded.rules.version, counters, tasks, tls_files, settings)
        self._check = check
        self._reload_all = reload_all
        self._counters = counters

    def _prepare(self, loaded: LoadedRules) -> Activation:
        return self._check(loaded)

    async def _activate(self, loaded: LoadedRules, activation: Activation) -> ActivationResult:
        answers = await self._reload_all()
        wrong = [_wrong(number, status, text, loaded.rules.version) for number, status, text in answers]
        errors = [error for error in wrong if error]
        if not errors:
            activation()
            self._counters.version = loaded.rules.version
        return ActivationResult(errors, invalid=_HTTP_UNUSABLE in {status for _, status, _ in answers})


def _wrong(number: int, status: int, text: bytes, version: str) -> str:
    """Say what is wrong with the answer of a worker; nothing where all is well."""
    if not status:
        return f"worker {number}: no answer"
    try:
        answered = json.loads(text)
    except ValueError:
        answered = None
    if not isinstance(answered, dict):  # an error page
        answered = {}
    if status != _HTTP_OK:
        return f"worker {number}: {'; '.join(answered.get('errors', [])) or f'status {status}'}"
    if answered.get("rules") != version:
        return (
            f"worker {number}: has rules {answered.get('rules')}, expected {version}: the files have changed meanwhile"
        )
    return ""


class WorkersShadow:
    """One shadow for all workers; a worker that is started meanwhile has none.

    Args:
        broadcast: requests the page of all workers.
    """

    def __init__(self, broadcast: Broadcast) -> None:
        """Request nothing yet."""
        self._broadcast = broadcast

    @property
    def routes(self) -> list[GuardedRoute]:
        """The pages."""
        return shadow_routes(self.begin, self.report, self.end)

    async def begin(self, body: bytes) -> tuple[int, object]:
        """Begin in every worker; if one refuses, in none."""
        answers = await self._broadcast("POST", body)
        refused = [answer for answer in answers if answer[0] != _HTTP_OK]
        if refused:
            # What the others have begun must not go on.
            await self._broadcast("DELETE", b"")
            return refused[0][0], refused[0][1].decode()
        return _joined(answers)

    async def report(self, _body: bytes) -> tuple[int, object]:
        """Add up the reports."""
        return _joined(await self._broadcast("GET", b""))

    async def end(self, _body: bytes) -> tuple[int, object]:
        """Drop the candidate and add up the reports."""
        return _joined(await self._broadcast("DELETE", b""))


def _joined(answers: Sequence[tuple[int, bytes]]) -> tuple[int, object]:
    reports = [json.loads(text) for status, text in answers if status == _HTTP_OK]
    if reports:
        return _HTTP_OK, added(reports)
    return (
        (answers[0][0], answers[0][1].decode()) if answers else (_HTTP_UNAVAILABLE, {"errors": ["no worker answers"]})
    )


def added(reports: Sequence[Report]) -> Report:
    """Add reports up.

    Args:
        reports: one or more, of one candidate.
    """
    exchanges: dict[tuple[str, str], Report] = {}
    for exchange in (exchange for report in reports for exchange in report["exchanges"]):
        key = (exchange["vhost"], exchange["exchange"])
        exchanges[key] = _exchange(exchanges[key], exchange) if key in exchanges else exchange
    matches = [
        sum(binding["matches"] for binding in same)
        for same in zip(*(report["bindings"] for report in reports), strict=True)
    ]
    return {
        **reports[0],
        "seconds": max(report["seconds"] for report in reports),
        **{name: sum(report[name] for report in reports) for name in ("skipped", "waiting", *_SUMS)},
        "exchanges": [exchanges[key] for key in sorted(exchanges)],
        "bindings": [
            {**binding, "matches": count} for binding, count in zip(reports[0]["bindings"], matches, strict=True)
        ],
    }


def _exchange(first: Report, second: Report) -> Report:
    """Add up the reports of two workers on an exchange."""
    kinds: dict[str, Report] = {}
    for difference in (*first["differences"], *second["differences"]):
        key = json.dumps([difference["live"], difference["candidate"]], sort_keys=True)
        publishes = difference["publishes"] + (kinds[key]["publishes"] if key in kinds else 0)
        kinds[key] = {**kinds.get(key, difference), "publishes": publishes}
    ordered = sorted(kinds.values(), key=lambda kind: -int(kind["publishes"]))
    further = first["further_differences"] + second["further_differences"]
    further += sum(kind["publishes"] for kind in ordered[KINDS:])
    return {
        **first,
        **{name: first[name] + second[name] for name in _SUMS},
        "differences": ordered[:KINDS],
        "further_differences": further,
    }


def _reserve(address: HostPort) -> socket.socket:
    """Bind an address that workers will listen on, so that its port is known and stays ours.

    Raises:
        OSError: it is taken, perhaps by another sidecar, which would get some of the connections.
    """
    family, *_, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as alone:
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        alone.bind(place)
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(place)
    except OSError:
        held.close()
        raise
    return held


def _json_of(answer: tuple[int, bytes]) -> object:
    """Read an answer; of an error page, its status."""
    try:
        return json.loads(answer[1])
    except ValueError:
        return f"answers with status {answer[0]}"


def _reasons_in(answer: tuple[int, bytes], which: str) -> list[str]:
    """Read the reasons of a worker; any other answer is a reason itself."""
    answered = _json_of(answer)
    reasons = answered.get(which) if isinstance(answered, dict) else None
    if isinstance(reasons, list):
        return [str(reason) for reason in reasons]
    return [f"answers with status {answer[0]}"] if which == "reasons" else []


class Workers:
    """The parent process of all workers.

    Args:
        config: the configuration file.
        settings: what is in it.
        loaded: the compiled rules.
        environ: environment, for secrets.
        version: of this program.
    """

    def __init__(
        self, config: Path, settings: Settings, loaded: LoadedRules, environ: Mapping[str, str], version: str
    ) -> None:
        """Build what needs no event loop; nothing is started yet.

        Raises:
            ConfigErrors: other brokers that the rules name can't be used as they say, or files of TLS can't.
        """
        self._config = config
        self._settings = settings
        self._environ = environ
        self._version = version
        self._counters = Counters(0)
        self._counters.rules.version = loaded.rules.version
        self._own_metrics = Exposition(self._counters, version)
        self._workers: list[Worker] = []
        #: numbers of workers that have ended
        self._ended = MetricsSnapshot()
        self._tasks = Tasks()
        self._supervisor = Supervisor()
        self._counters.control_failures = self._supervisor.failures
        self._stopping = asyncio.Event()
        self._were_ready = False
        self._status = _EXIT_OK
        self._signals = 0
        files = partial(rules_files, settings)
        self._tls = SidecarTls(settings)
        self._check(loaded)()
        rules = self._counters.rules
        changed = partial(changed_since, settings, environ)
        self._reload = WorkersReload(
            files, loaded, self._check, self._reload_all, rules, self._tasks, self._tls.files, changed
        )

    async def serve(self) -> int:
        """Run until told to stop; return the exit status.

        Raises:
            ConfigError: an address can't be listened on.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload.request)
        async with AsyncExitStack() as stack:
            reserved = [stack.enter_context(self._reserved(index)) for index in range(len(self._settings.listen))]
            await self._start_admin(stack)
            ports = [held.getsockname()[1] for held in reserved]
            self._workers = [Worker(number, self._config, ports) for number in range(1, self._settings.workers + 1)]
            stack.push_async_callback(self._tasks.ended)
            supervising = [
                self._tasks.start(self._supervise(worker), f"worker {worker.number}") for worker in self._workers
            ]
            report_ready = self._supervisor.keep(
                "rules", partial(self._report_ready, ports), steady_seconds=_STEADY_SECONDS
            )
            self._tasks.start(report_ready, "workers are ready")
            await self._stopping.wait()
            _log.info("draining", workers=len(self._workers))
            for worker in self._workers:
                worker.stop()
            patience = self._settings.shutdown.deadline_seconds + _END_SECONDS
            _, late = await asyncio.wait(supervising, timeout=patience)
            if late:
                _log.warning("workers have not ended in time", workers=len(late))
                for worker in self._workers:
                    worker.kill()
                await asyncio.wait(late)
            for worker in self._workers:
                worker.close()
        _log.info("stopped")
        return self._status

    def _reserved(self, index: int) -> socket.socket:
        address = self._settings.listen[index].address
        try:
            return _reserve(address)
        except OSError as error:
            raise cannot_listen(self._settings, f"listen[{index}].address", address, error) from error

    async def _start_admin(self, stack: AsyncExitStack) -> None:
        address = self._settings.admin.address
        if address is None:
            return
        explain, explain_text = (partial(self._ask_first, form, "POST", "/explain") for form in (JSON, TEXT))
        routes = [
            self._reload.route,
            explain_route(explain, explain_text),
            *WorkersShadow(self._ask_shadows).routes,
        ]
        page = MergedExposition(self._collect_metrics)
        settings = self._settings.admin
        admin = AdminServer(page, self._not_ready, self._show, settings.allow, routes, self._degraded, settings.hosts)
        stack.push_async_callback(admin.stop)
        try:
            bound = await admin.start(address.host, address.port)
        except OSError as error:
            raise cannot_listen(self._settings, "admin.address", address, error) from error
        _log.info("admin endpoint", address=f"{bound[0]}:{bound[1]}")

    # -- life ----------------------------------------------------------------------------------------------------------

    async def _supervise(self, worker: Worker) -> None:
        """Start a worker, and again whenever it ends unexpectedly."""
        loop = asyncio.get_running_loop()
        again = RETRY_SECONDS
        while not self._stopping.is_set():
            started = loop.time()
            status = await self._run(worker)
            if self._stopping.is_set():
                return
            if worker.last_metrics is not None:
                self._ended.add(worker.last_metrics.growing())
                worker.last_metrics = None
            if status == _EXIT_FAULTY and not self._were_ready:
                # As a single sidecar: an invalid configuration is not retried.
                self._status = _EXIT_FAULTY
                self._stopping.set()
                return
            again = RETRY_SECONDS if loop.time() - started >= STEADY_SECONDS else again
            if status is not None:
                _log.error("worker ended by itself", number=worker.number, status=status, again_in_seconds=again)
                worker.restarts += 1
                self._counters.worker_restarts += 1
            await self._pause(again)
            again = min(2 * again, RETRY_MOST_SECONDS)

    @staticmethod
    async def _run(worker: Worker) -> int | None:
        """Start a worker and wait for its end; return its exit status, None if it can't be started now."""
        try:
            await worker.start()
        except OSError as error:  # for example no process or no memory is left, until others end
            _log.error("worker can't be started", number=worker.number, error=error.strerror or str(error))
            return None
        _log.info("worker started", number=worker.number, process=worker.process_id)
        return await worker.ended()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def _report_ready(self, ports: Sequence[int]) -> None:
        """Log when all are ready for the first time; from then on watch the files."""
        while not self._were_ready and await self._not_ready():  # noqa: ASYNC110 -- ready is what many processes say
            await asyncio.sleep(_READY_SECONDS)
        if not self._were_ready:
            self._were_ready = True
            listen = [f"{entry.address.host}:{port}" for entry, port in zip(self._settings.listen, ports, strict=True)]
            _log.info("ready", listen=listen, workers=len(self._workers), rules=self._counters.rules.version)
        await self._reload.watch()

    def _stop(self) -> None:
        self._signals += 1
        if self._signals > 1:
            _log.warning("told to stop twice: ending at once")
            for worker in self._workers:
                worker.kill()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        self._stopping.set()

    # -- answers -------------------------------------------------------------------------------------------------------

    async def _ask_all(
        self, method: str, page: str, seconds: float = _PROMPT_SECONDS
    ) -> list[tuple[Worker, tuple[int, bytes] | None]]:
        answers = await asyncio.gather(*(worker.ask(method, page, seconds=seconds) for worker in self._workers))
        return list(zip(self._workers, answers, strict=True))

    async def _not_ready(self) -> list[str]:
        reasons = await self._reasons("reasons") + self._supervisor.failing
        return reasons + (["draining"] if self._stopping.is_set() else [])

    async def _degraded(self) -> list[str]:
        return await self._reasons("degraded")

    async def _reasons(self, which: str) -> list[str]:
        """Return the reasons of all workers; a reason that all of them give stands once."""
        found: dict[str, list[int]] = {}
        for worker, answer in await self._ask_all("GET", "/readyz"):
            silent = ["does not answer"] if which == "reasons" else []
            for reason in silent if answer is None else _reasons_in(answer, which):
                found.setdefault(reason, []).append(worker.number)
        return [
            reason if len(numbers) == len(self._workers) else f"worker {', '.join(map(str, numbers))}: {reason}"
            for reason, numbers in found.items()
        ]

    async def _show(self) -> dict[str, object]:
        reasons = await self._not_ready()
        workers = [
            {
                "worker": worker.number,
                "process": worker.process_id,
                "restarts": worker.restarts,
                "status": None if answer is None else _json_of(answer),
            }
            for worker, answer in await self._ask_all("GET", "/status")
        ]
        return {
            "version": self._version,
            "rules": self._counters.rules.version,
            "last_reload": None if self._reload.last is None else self._reload.last.as_json(),
            "ready": not reasons,
            "not_ready": reasons,
            "degraded": await self._degraded(),
            "workers": workers,
        }

    async def _collect_metrics(self) -> list[MetricsSnapshot]:
        """Return all numbers; of a worker that does not answer, its last counters."""
        own = read_snapshot(await self._own_metrics.snapshot())
        own.series.pop(_OF_WORKERS)
        mine = own.series.get(PROCESS, {})
        own.series[PROCESS] = {labels: value for labels, value in mine.items() if not labels[-1].endswith("_fds")}
        snapshots = [own, self._ended]
        for worker, answer in await self._ask_all("GET", "/-/metrics"):
            if answer is not None and answer[0] == _HTTP_OK:
                worker.last_metrics = read_snapshot(answer[1])
                snapshots.append(worker.last_metrics)
            elif worker.last_metrics is not None:
                snapshots.append(worker.last_metrics.growing())
        return snapshots

    async def _ask_first(self, form: str, method: str, page: str, body: bytes) -> tuple[int, object]:
        """Return the answer of the first worker that answers: all have the same rules."""
        for worker in self._workers:
            answer = await worker.ask(method, page, body, accept=form)
            if answer is not None:
                status, text = answer[0], answer[1].decode().removesuffix("\n")
                return status, text if status == _HTTP_OK else json.loads(text)
        return _HTTP_UNAVAILABLE, {"errors": ["no worker answers"]}

    async def _ask_shadows(self, method: str, body: bytes) -> list[tuple[int, bytes]]:
        asked = [worker.ask(method, "/-/shadow", body) for worker in self._workers if worker.running]
        return [answer for answer in await asyncio.gather(*asked) if answer is not None]

    # -- rules ---------------------------------------------------------------------------------------------------------

    def _check(self, loaded: LoadedRules) -> Activation:
        """Check the other brokers that the rules name, and the files of TLS.

        Returns:
            The activation: from then on these files are watched.

        Raises:
            ConfigErrors: they can't be used.
        """
        listening = [(entry.address.host, entry.address.port) for entry in self._settings.listen]
        return self._tls.read(remote_brokers(loaded, self._environ, listening))

    async def _reload_all(self) -> list[tuple[int, int, bytes]]:
        """Reload all running workers; a worker that is being started reads the new files by itself."""
        running = [worker for worker in self._workers if worker.running]
        answers = await asyncio.gather(*(worker.ask("POST", "/-/reload") for worker in running))
        return [(worker.number, *(answer or (0, b""))) for worker, answer in zip(running, answers, strict=True)]
