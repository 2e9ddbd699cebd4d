"""Shadow rules: compares a second set of rules with the active rules, by their decisions on live traffic.

The candidate is compiled in a thread. Publishes to exchanges in either set of rules are buffered and compared later in
short batches. Without a candidate, there is no overhead.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from oxproxy.admin.server import GuardedRoute, json_route
from oxproxy.app.reload import Reload
from oxproxy.broker.steps import compile_again
from oxproxy.errors import ProtocolError
from oxproxy.net.tasks import Tasks
from oxproxy.net.vhosts import Vhosts
from oxproxy.relay.plan.tap import ObservedDecision
from oxproxy.relay.records.privacy import Privacy
from oxproxy.relay.vhost import OwnedExchange
from oxproxy.rules.comparison import ComparedRules, ObservedPublish, RulesComparison
from oxproxy.rules.loader import LoadedRules, compile_rules
from oxproxy.rules.message import DescribedMessage
from oxproxy.rules.ruleset import VhostRules
from oxproxy.rules.wire import owned_exchanges
from oxproxy.values import text

_log = structlog.get_logger(__name__)

_OK, _UNUSABLE = 200, 422
#: Response if there is no candidate.
_NONE: tuple[int, object] = 404, {"errors": ["no candidate rules are being compared"]}
#: Size limit for uploaded rules files, enough for about 50,000 bindings. Larger requests get 413.
RULES_BYTES = 16 << 20
#: Maximum number of buffered publishes, and maximum size of their headers in bytes.
BUFFERED, BUFFERED_BYTES = 4096, 8 << 20
#: Duration of a batch of comparisons, and minimum pause between batches, in seconds.
BATCH_SECONDS, PAUSE_SECONDS = 0.001, 0.02
#: Minimum pause as a multiple of the duration of the previous batch, since a single comparison may be slow.
PAUSE_FACTOR = 19
#: Time limit for comparing the remaining buffered publishes when a comparison ends, in seconds.
_LAST_SECONDS = 2.0
#: Seconds between two updates of clients' exchanges.
_OVERLAY_SECONDS = 1.0
#: Seconds after which a candidate whose report is not read is discarded.
UNREAD_SECONDS = 3600.0


@dataclass(slots=True)
class _Run:
    """One candidate being compared.

    Args:
        differences: results so far.
        owned: exchanges in the candidate rules, including client declarations, by virtual host.
        began: start of the comparison, in seconds since the epoch.
        last_read: value of the timer when the report was last requested, in seconds.
    """

    candidate: ComparedRules
    differences: RulesComparison
    owned: dict[str, dict[bytes, OwnedExchange]]
    began: float
    last_read: float
    epochs: dict[str, int] = field(default_factory=dict)
    waiting: deque[tuple[ObservedDecision, LoadedRules]] = field(default_factory=deque)
    waiting_bytes: int = 0
    skipped: int = 0


class Shadow:
    """Compares a single candidate with the active rules.

    Args:
        reload: provides the active rules.
        vhosts: provides the publishes.
        privacy: which parts of a message may be shown.
        tasks: runs the comparison.
        wall: returns seconds since the epoch.
        timer: returns monotonic seconds.
    """

    def __init__(
        self,
        reload: Reload,
        vhosts: Vhosts,
        privacy: Privacy,
        tasks: Tasks,
        wall: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reload = reload
        self._vhosts = vhosts
        self._privacy = privacy
        self._tasks = tasks
        self._wall = wall
        self._timer = timer
        self._run: _Run | None = None

    @property
    def routes(self) -> list[GuardedRoute]:
        return [
            json_route("POST", "/-/shadow", self.begin, RULES_BYTES, change="shadow start"),
            json_route("GET", "/-/shadow", self.report),
            json_route("DELETE", "/-/shadow", self.end, change="shadow stop"),
        ]

    @property
    def version(self) -> str | None:
        """The version of the candidate; None if there is no candidate."""
        return None if self._run is None else self._run.candidate.loaded.rules.version

    async def begin(self, body: bytes) -> tuple[int, object]:
        """Start comparing a new candidate, replacing any earlier candidate; return 200, or 422 if tests fail.

        Args:
            body: the text of one rules file, or several files as JSON: ``{"files": [[name, text], ...]}``.

        Raises:
            ConfigErrors: the files are invalid.
        """
        loaded, failures = await self._reload.compile_in_thread(lambda: _compiled(uploaded_files(body)))
        if failures:
            return _UNUSABLE, {"errors": failures}
        candidate = ComparedRules(loaded)
        owned = {name: owned_exchanges(vhost) for name, vhost in loaded.rules.vhosts.items()}
        differences = RulesComparison(ComparedRules(self._reload.loaded), candidate)
        run = _Run(candidate, differences, owned, self._wall(), self._timer())
        await self._overlay(run)
        self._run = run
        self._vhosts.set_tap(self)
        self._tasks.start(self._compare(run), "shadow")
        _log.info("shadow started", candidate=loaded.rules.version, rules=self._reload.loaded.rules.version)
        return _OK, self._report(run)

    def state(self) -> object:
        """Return the report for event streams; None if there is no candidate."""
        run = self._run
        if run is None:
            return None
        run.last_read = self._timer()
        return self._report(run)

    async def report(self, _body: bytes) -> tuple[int, object]:
        """Return the report; 404 if there is no candidate."""
        state = self.state()
        return _NONE if state is None else (_OK, state)

    async def end(self, _body: bytes) -> tuple[int, object]:
        """Discard the candidate and return its report; 404 if there is no candidate."""
        run = self._run
        if run is None:
            return _NONE
        self._stop(run)
        deadline = self._timer() + _LAST_SECONDS
        while run.waiting and self._timer() < deadline:
            self._compare_batch(run)
            await asyncio.sleep(0)
        run.skipped += len(run.waiting)
        run.waiting.clear()
        return _OK, self._report(run)

    def wants(self, vhost: str, exchange: bytes) -> bool:
        """Return True if decisions for an exchange can differ (see `Tap`).

        Exchanges declared by clients are not compared.
        """
        run = self._run
        if run is None:
            return False
        owned = self._vhosts.plans(vhost).state.exchanges.get(exchange)
        if owned is not None and owned.declared is not None:
            return False
        return owned is not None or run.candidate.touches(vhost, exchange) or vhost in self._reload.loaded.books

    def observe(self, observed: ObservedDecision) -> None:
        """Buffer a publish if there is room (see `Tap`)."""
        run = self._run
        if run is None:
            return
        size = len(observed.header)
        if len(run.waiting) >= BUFFERED or run.waiting_bytes + size > BUFFERED_BYTES:
            run.skipped += 1
            return
        run.waiting_bytes += size
        run.waiting.append((observed, self._reload.loaded))

    def _stop(self, run: _Run) -> None:
        self._run = None
        self._vhosts.set_tap(None)
        _log.info("shadow ended", candidate=run.candidate.loaded.rules.version)

    async def _compare(self, run: _Run) -> None:
        """Compare buffered publishes, in batches, until the candidate is replaced or discarded."""
        overlaid = self._timer()
        while self._run is run:
            begin = self._timer()
            self._compare_batch(run)
            now = self._timer()
            await asyncio.sleep(max(PAUSE_SECONDS, PAUSE_FACTOR * (now - begin)))
            if now - overlaid > _OVERLAY_SECONDS:
                overlaid = now
                await self._overlay(run)
            if now - run.last_read > UNREAD_SECONDS and self._run is run:
                self._stop(run)

    def _compare_batch(self, run: _Run) -> None:
        deadline = self._timer() + BATCH_SECONDS
        while run.waiting:
            observed, live = run.waiting.popleft()
            run.waiting_bytes -= len(observed.header)
            self._compare_publish(run, observed, live)
            if self._timer() > deadline:
                return

    def _compare_publish(self, run: _Run, observed: ObservedDecision, live: LoadedRules) -> None:
        if live is not self._reload.loaded:
            run.skipped += 1  # observed before a reload
            return
        if run.differences.live.loaded is not live:
            run.differences = RulesComparison(ComparedRules(live), run.candidate)
            run.skipped = 0
            run.began = self._wall()
        try:
            facts = observed.facts()
        except ProtocolError:
            run.skipped += 1
            return
        queues = self._vhosts.plans(observed.vhost).state.queues
        seen = ObservedPublish(
            observed.vhost, DescribedMessage(observed.exchange, facts), observed.at, queues, observed.decision
        )
        run.differences.compare(seen, lambda: self._example(observed))

    async def _overlay(self, run: _Run) -> None:
        """Let the candidate's rules see clients' exchanges and bindings, as a reload would."""
        for state in self._vhosts.states:
            owned, router = run.owned.get(state.name), run.candidate.loaded.routers.get(state.name)
            if owned is None or router is None or run.epochs.get(state.name) == state.epoch:
                continue
            await compile_again(state, owned, router)
            run.epochs[state.name] = state.epoch
            state.overlay(owned, router)

    def _example(self, observed: ObservedDecision) -> dict[str, object]:
        """Return the parts of a message that may be shown, according to the settings for audit records."""
        privacy = self._privacy
        headers = privacy.header_values(observed.raw_headers(privacy.headers))
        return {"routing_key": privacy.shown("rk", observed.routing_key), "headers": headers}

    def _report(self, run: _Run) -> dict[str, object]:
        seconds = round(self._wall() - run.began, 3)
        progress = {"seconds": seconds, "skipped": run.skipped, "waiting": len(run.waiting)}
        return {**progress, "absent": self._absent(run), **run.differences.as_json()}

    def _absent(self, run: _Run) -> list[dict[str, str]]:
        """Return the exchanges of the active rules that the candidate does not contain."""
        candidate = run.candidate.loaded.rules.vhosts
        absent: list[dict[str, str]] = []
        for name, vhost in self._reload.loaded.rules.vhosts.items():
            present = {rule.name for rule in candidate.get(name, VhostRules(name)).exchanges}
            lacking = (rule.name for rule in vhost.exchanges if rule.name not in present)
            absent += [{"vhost": name, "exchange": text(exchange)} for exchange in lacking]
        return absent


def uploaded_files(body: bytes) -> list[tuple[str, bytes]]:
    """Return the files in a request (see `Shadow.begin`)."""
    if body.lstrip()[:1] == b"{":
        try:
            upload = json.loads(body)
            if upload.keys() == {"files"}:
                return [(str(name), str(content).encode()) for name, content in upload["files"]]
        except (ValueError, TypeError, RecursionError):
            pass  # probably a rules file, for which the loader reports a better error
    return [("candidate", body)]


def _compiled(files: Sequence[tuple[str, bytes]]) -> tuple[LoadedRules, list[str]]:
    loaded = compile_rules(files)
    return loaded, [str(failure) for failure in loaded.failures()]
