"""Several workers on one host: start them, keep them running, and be one sidecar to whoever asks.

The workers listen on the same addresses; the kernel deals connections out (SO_REUSEPORT). This process serves no
producer: it starts a worker again that ends by itself, hands signals on, and answers for all of them on the admin
address. Each worker is a whole sidecar: it provisions by itself, which is done so that doing it twice does nothing.

Source: socket(7), SO_REUSEPORT.

How do new rules come to hold in several workers: in all of them or in none?

The files are parsed, compiled and tested here first; where they are bad no worker hears of it. Then every worker is
told to reload, and provisions and swaps by itself (see `reload`). One that can't, since the broker does not let it, is
told again until it can: until then it judges by the rules before, and `oxproxy_rules_info` shows both versions.

What do several workers find of one candidate? Each compares what it carries; here the reports are added up.

Source: `proxy.app.shadow`, whose answers these are.
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

from proxy.admin.server import AdminServer, GuardedRoute, json_route
from proxy.app.composition import cannot_listen, remote_brokers
from proxy.app.reload import Files, ReloadLoop, ReloadResult, Use
from proxy.app.shadow import shadow_routes
from proxy.app.worker import JSON, TEXT, Worker
from proxy.broker.supervision import Supervisor
from proxy.config.settings import Changed, Settings, changed_since, rules_files
from proxy.net.tasks import Tasks
from proxy.net.tls_config import SidecarTls
from proxy.observe.exposition import PROCESS, Exposition
from proxy.observe.merging import JointPage, WorkerMetrics, read_portion
from proxy.relay.counters import Counters, RulesCounters
from proxy.rules.comparison import KINDS
from proxy.rules.loader import LoadedRules
from proxy.yamlfile.kinds import HostPort

#: Statuses of HTTP.
_HTTP_OK, _HTTP_UNUSABLE, _HTTP_UNAVAILABLE = 200, 422, 503
#: Exit statuses.
_EXIT_OK, _EXIT_FAULTY = 0, 2


class JointReload(ReloadLoop):
    """Replaces the rules of all workers, one attempt at a time.

    Args:
        files: lists the rules files as the configuration names them.
        loaded: the rules in force.
        check: finds what else is wrong with rules, beside the event loop; what it gives is called when they hold.
        tell: asks every worker to reload, and gives their answers: number of the worker, status, text; no status where
            it does not answer.
        counters: what is counted of it.
        tasks: runs what goes on behind it.
        files_beside: lists files that are followed as the rules files are: those of TLS.
        settings: compares the configuration with the one in use, beside the event loop.
    """

    def __init__(
        self,
        files: Files,
        loaded: LoadedRules,
        check: Callable[[LoadedRules], Use],
        tell: Callable[[], Awaitable[Sequence[tuple[int, int, bytes]]]],
        counters: RulesCounters,
        tasks: Tasks,
        files_beside: Files = tuple,
        settings: Callable[[], Changed] = Changed,
    ) -> None:
        """Take the rules as they are."""
        super().__init__(files, loaded.rules.version, counters, tasks, files_beside, settings)
        self._check = check
        self._tell = tell
        self._counters = counters

    def _prepare(self, loaded: LoadedRules) -> Use:
        return self._check(loaded)

    async def _hold(self, loaded: LoadedRules, use: Use) -> ReloadResult:
        told = await self._tell()
        wrong = [_wrong(number, status, text, loaded.rules.version) for number, status, text in told]
        errors = [error for error in wrong if error]
        if not errors:
            use()
            self._counters.version = loaded.rules.version
        return ReloadResult(errors, faulty=_HTTP_UNUSABLE in {status for _, status, _ in told})


def _wrong(number: int, status: int, text: bytes, version: str) -> str:
    """Say what is wrong with the answer of a worker; nothing where all is well."""
    if not status:
        return f"worker {number}: no answer"
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if not isinstance(said, dict):  # an error page
        said = {}
    if status != _HTTP_OK:
        return f"worker {number}: {'; '.join(said.get('errors', [])) or f'status {status}'}"
    if said.get("rules") != version:
        return f"worker {number}: has rules {said.get('rules')}, expected {version}: the files have changed meanwhile"
    return ""


#: Plain data.
Report: TypeAlias = dict[str, Any]  # Any: JSON
#: Asks every worker that runs, by a method and a body, and gives status and text of those that answered.
Tell: TypeAlias = Callable[[str, bytes], Awaitable[Sequence[tuple[int, bytes]]]]

_SUMS = ("compared", "equal", "different", "random")


class JointShadow:
    """One shadow before several workers; a worker that is started meanwhile has none.

    Args:
        tell: asks the workers.
    """

    def __init__(self, tell: Tell) -> None:
        """Remember whom to ask."""
        self._tell = tell

    @property
    def routes(self) -> list[GuardedRoute]:
        """The pages."""
        return shadow_routes(self.begin, self.report, self.end)

    async def begin(self, body: bytes) -> tuple[int, object]:
        """Have every worker compare; where one refuses, none does."""
        answers = await self._tell("POST", body)
        refused = [answer for answer in answers if answer[0] != _HTTP_OK]
        if refused:
            # What the others have begun must not go on.
            await self._tell("DELETE", b"")
            return refused[0][0], refused[0][1].decode()
        return _joined(answers)

    async def report(self, _body: bytes) -> tuple[int, object]:
        """Add up what was found so far."""
        return _joined(await self._tell("GET", b""))

    async def end(self, _body: bytes) -> tuple[int, object]:
        """Drop the candidate and add up what was found."""
        return _joined(await self._tell("DELETE", b""))


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
    for each in (exchange for report in reports for exchange in report["exchanges"]):
        key = (each["vhost"], each["exchange"])
        exchanges[key] = _exchange(exchanges[key], each) if key in exchanges else each
    matches = [
        sum(each["matches"] for each in same) for same in zip(*(one["bindings"] for one in reports), strict=True)
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


def _exchange(one: Report, other: Report) -> Report:
    """Add up what two workers saw of an exchange."""
    kinds: dict[str, Report] = {}
    for each in (*one["differences"], *other["differences"]):
        key = json.dumps([each["live"], each["candidate"]], sort_keys=True)
        publishes = each["publishes"] + (kinds[key]["publishes"] if key in kinds else 0)
        kinds[key] = {**kinds.get(key, each), "publishes": publishes}
    ordered = sorted(kinds.values(), key=lambda kind: -int(kind["publishes"]))
    further = one["further_differences"] + other["further_differences"]
    further += sum(kind["publishes"] for kind in ordered[KINDS:])
    return {
        **one,
        **{name: one[name] + other[name] for name in _SUMS},
        "differences": ordered[:KINDS],
        "further_differences": further,
    }


_log = structlog.get_logger(__name__)

#: Seconds before a worker is started again: first, and at most, when it ends again and again.
AGAIN_SECONDS, AGAIN_MOST_SECONDS = 0.5, 30.0
#: A worker that ran for so long is started again without having to wait for its past.
STEADY_SECONDS = 60.0
#: Seconds after which following the rules files counts as working again.
_STEADY_SECONDS = 5.0
#: Between two looks whether all are ready, at the start.
_LOOK_SECONDS = 0.1
#: Longest wait for pages that a worker answers at once.
_PROMPT_SECONDS = 5.0
#: Beyond `shutdown.deadline`, what a worker may take to end: close-oks, audit log.
_END_SECONDS = 15.0
#: Of the parent's numbers, what is none of its own: it serves nobody. Nor do its descriptors matter to producers.
_NOT_OURS = "oxproxy_workers"


def _reserve(address: HostPort) -> socket.socket:
    """Bind an address that workers will listen on, so that its port is known and nobody else takes it.

    Raises:
        OSError: it is taken, also by others of ours, which would get a part of the connections.
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
    """Read an answer; an error page in its place is shown by its status."""
    try:
        return json.loads(answer[1])
    except ValueError:
        return f"answers with status {answer[0]}"


def _reasons_in(answer: tuple[int, bytes], which: str) -> list[str]:
    """Read the reasons that a worker gives; any other answer is one."""
    said = _json_of(answer)
    reasons = said.get(which) if isinstance(said, dict) else None
    if isinstance(reasons, list):
        return [str(reason) for reason in reasons]
    return [f"answers with status {answer[0]}"] if which == "reasons" else []


class Workers:
    """All workers.

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
        self._own = Exposition(self._counters, version)
        self._workers: list[Worker] = []
        #: what workers had counted that have ended
        self._gone = WorkerMetrics()
        self._tasks = Tasks()
        self._supervisor = Supervisor()
        self._counters.control_failures = self._supervisor.failures
        self._stopping = asyncio.Event()
        self._all_ended = asyncio.Event()
        self._were_ready = False
        self._status = _EXIT_OK
        self._signals = 0
        files = partial(rules_files, settings)
        self._tls = SidecarTls(settings)
        self._check(loaded)()
        rules = self._counters.rules
        changed = partial(changed_since, settings, environ)
        self._reload = JointReload(files, loaded, self._check, self._tell, rules, self._tasks, self._tls.files, changed)

    async def serve(self) -> int:
        """Run until told to stop; give the exit status.

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
            keeping = [self._tasks.start(self._keep(one), f"worker {one.number}") for one in self._workers]
            settle = self._supervisor.keep("rules", partial(self._settle, ports), steady_seconds=_STEADY_SECONDS)
            self._tasks.start(settle, "workers are ready")
            await self._stopping.wait()
            _log.info("draining", workers=len(self._workers))
            for worker in self._workers:
                worker.stop()
            patience = self._settings.shutdown.deadline_seconds + _END_SECONDS
            _, late = await asyncio.wait(keeping, timeout=patience)
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
        explain, explain_text = (partial(self._first, form, "POST", "/explain") for form in (JSON, TEXT))
        routes = [
            json_route("POST", "/-/reload", self._reload_page),
            json_route("POST", "/explain", explain, texting=explain_text),
        ]
        routes += JointShadow(self._tell_shadow).routes
        page = JointPage(self._portions)
        settings = self._settings.admin
        admin = AdminServer(page, self._not_ready, self._show, settings.allow, routes, self._degraded, settings.hosts)
        stack.push_async_callback(admin.stop)
        try:
            bound = await admin.start(address.host, address.port)
        except OSError as error:
            raise cannot_listen(self._settings, "admin.address", address, error) from error
        _log.info("admin endpoint", address=f"{bound[0]}:{bound[1]}")

    # -- life ----------------------------------------------------------------------------------------------------------

    async def _keep(self, worker: Worker) -> None:
        """Start a worker, and again whenever it ends by itself."""
        loop = asyncio.get_running_loop()
        again = AGAIN_SECONDS
        while not self._stopping.is_set():
            started = loop.time()
            status = await self._run(worker)
            if self._stopping.is_set():
                return
            if worker.shown is not None:
                self._gone.add(worker.shown.growing())
                worker.shown = None
            if status == _EXIT_FAULTY and not self._were_ready:
                # As a single sidecar: what is wrong at the start does not get better by trying again.
                self._status = _EXIT_FAULTY
                self._stopping.set()
                return
            again = AGAIN_SECONDS if loop.time() - started >= STEADY_SECONDS else again
            if status is not None:
                _log.error("worker ended by itself", number=worker.number, status=status, again_in_seconds=again)
                worker.restarts += 1
                self._counters.worker_restarts += 1
            await self._rest(again)
            again = min(2 * again, AGAIN_MOST_SECONDS)

    @staticmethod
    async def _run(worker: Worker) -> int | None:
        """Start a worker and wait for its end; give its exit status, None where it can't be started now."""
        try:
            await worker.start()
        except OSError as error:  # no process or no memory is left, say: others end
            _log.error("worker can't be started", number=worker.number, error=error.strerror or str(error))
            return None
        _log.info("worker started", number=worker.number, process=worker.process_id)
        return await worker.ended()

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def _settle(self, ports: Sequence[int]) -> None:
        """Say when all are ready for the first time; from then on the files are followed."""
        while not self._were_ready and await self._not_ready():  # noqa: ASYNC110 -- ready is what many processes say
            await asyncio.sleep(_LOOK_SECONDS)
        if not self._were_ready:
            self._were_ready = True
            listen = [f"{one.address.host}:{port}" for one, port in zip(self._settings.listen, ports, strict=True)]
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
        answers = await asyncio.gather(*(one.ask(method, page, seconds=seconds) for one in self._workers))
        return list(zip(self._workers, answers, strict=True))

    async def _not_ready(self) -> list[str]:
        reasons = await self._reasons("reasons") + self._supervisor.failing
        return reasons + (["draining"] if self._stopping.is_set() else [])

    async def _degraded(self) -> list[str]:
        return await self._reasons("degraded")

    async def _reasons(self, which: str) -> list[str]:
        """Give what workers say of themselves, each thing once where all of them say it."""
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

    async def _portions(self) -> list[WorkerMetrics]:
        """Give everybody's numbers; of a worker that does not answer, those that never go down, as last shown."""
        own = read_portion(await self._own.portion())
        own.series.pop(_NOT_OURS)
        mine = own.series.get(PROCESS, {})
        own.series[PROCESS] = {labels: value for labels, value in mine.items() if not labels[-1].endswith("_fds")}
        portions = [own, self._gone]
        for worker, answer in await self._ask_all("GET", "/-/portion"):
            if answer is not None and answer[0] == _HTTP_OK:
                worker.shown = read_portion(answer[1])
                portions.append(worker.shown)
            elif worker.shown is not None:
                portions.append(worker.shown.growing())
        return portions

    async def _first(self, form: str, method: str, page: str, body: bytes) -> tuple[int, object]:
        """Let the first worker that is there answer: all have the same rules."""
        for worker in self._workers:
            answer = await worker.ask(method, page, body, accept=form)
            if answer is not None:
                status, text = answer[0], answer[1].decode().removesuffix("\n")
                return status, text if status == _HTTP_OK else json.loads(text)
        return _HTTP_UNAVAILABLE, {"errors": ["no worker answers"]}

    async def _tell_shadow(self, method: str, body: bytes) -> list[tuple[int, bytes]]:
        asked = [worker.ask(method, "/-/shadow", body) for worker in self._workers if worker.running]
        return [answer for answer in await asyncio.gather(*asked) if answer is not None]

    # -- rules ---------------------------------------------------------------------------------------------------------

    async def _reload_page(self, _body: bytes) -> tuple[int, object]:
        answer = await self._reload.reload("request")
        status = _HTTP_OK if not answer.errors else _HTTP_UNUSABLE if answer.faulty else _HTTP_UNAVAILABLE
        return status, answer.as_json()

    def _check(self, loaded: LoadedRules) -> Use:
        """Find what can't be of other brokers that the rules name, and of the files of TLS.

        Returns:
            Notes which files to follow once the rules hold.

        Raises:
            ConfigErrors: what is wrong with it.
        """
        listening = [(one.address.host, one.address.port) for one in self._settings.listen]
        return self._tls.read(remote_brokers(loaded, self._environ, listening))

    async def _tell(self) -> list[tuple[int, int, bytes]]:
        """Have all workers reload that are there; one that is being started reads the new files by itself."""
        running = [worker for worker in self._workers if worker.running]
        answers = await asyncio.gather(*(worker.ask("POST", "/-/reload") for worker in running))
        return [(one.number, *(answer or (0, b""))) for one, answer in zip(running, answers, strict=True)]
