"""Where would a second rules file send the live traffic of a running sidecar? It is asked, and changes nothing.

The candidate is compiled beside the event loop. Publishes to exchanges that either rules touch are noted on their way
into a bounded buffer and compared later, in short turns: under load a part of them is skipped, and counted. Without a
candidate no publish pays anything. A candidate whose report nobody reads for an hour is dropped.

It must not know HTTP beyond a status. Source: architecture, 5 (rules are data with a life cycle).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from proxy.admin.server import Answering, GuardedRoute, json_route
from proxy.app.reload import Reload, owned_exchanges
from proxy.audit.record import LineRenderer, Privacy, text
from proxy.broker.declared.store import inheriting
from proxy.errors import ConfigErrors, ProtocolError
from proxy.net.tasks import Tasks
from proxy.net.vhosts import Vhosts
from proxy.relay.publish.tap import ObservedDecision
from proxy.relay.vhost import OwnedExchange
from proxy.rules.comparison import ComparedSide, Differences, ObservedPublish
from proxy.rules.loader import LoadedRules, compile_rules
from proxy.rules.message import DescribedMessage

_log = structlog.get_logger(__name__)

_OK, _NOT_FOUND, _UNUSABLE = 200, 404, 422
#: Bytes of rules files that may come over the admin port: about 50,000 bindings. More is 413.
RULES_BYTES = 16 << 20
#: Publishes that wait to be compared, and bytes of their headers: what a shadow may cost, beside its counts.
BUFFERED, BUFFERED_BYTES = 4096, 8 << 20
#: A turn of comparing ends after this long, and the rest before the next is at least so long, in seconds.
TURN_SECONDS, REST_SECONDS = 0.001, 0.02
#: A rest is this many times as long as the turn before it: one comparison may be slow.
RESTS = 19
#: How long the end waits for what is buffered, in seconds.
_LAST_SECONDS = 2.0
#: Seconds between two looks at what clients have declared since.
_INHERIT_SECONDS = 1.0
#: Clients' bindings put beside the candidate's between two pauses in which others may run.
_STEP = 64
#: Seconds after which a shadow that nobody asks about is dropped.
FORGOTTEN_SECONDS = 3600.0


@dataclass(slots=True)
class _Run:
    """One candidate being compared.

    Args:
        candidate: its rules.
        found: what was compared so far, with the rules in force.
        owned: its exchanges with what clients declared, by virtual host.
        began: seconds since the epoch.
        asked: when its report was last asked for, in seconds of the timer.
    """

    candidate: ComparedSide
    found: Differences
    owned: dict[str, dict[bytes, OwnedExchange]]
    began: float
    asked: float
    epochs: dict[str, int] = field(default_factory=dict)
    waiting: deque[tuple[ObservedDecision, LoadedRules]] = field(default_factory=deque)
    waiting_bytes: int = 0
    skipped: int = 0


class Shadow:
    """Compares one candidate at a time with the rules in force.

    Args:
        reload: holds the rules in force.
        vhosts: lets publishes be watched.
        privacy: what of a message may be shown.
        tasks: runs the comparing.
        wall: gives seconds since 1970.
        timer: gives seconds of a clock that never jumps.
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
        """Start without a candidate."""
        self._reload = reload
        self._vhosts = vhosts
        self._records = LineRenderer("", privacy)
        self._tasks = tasks
        self._wall = wall
        self._timer = timer
        self._run: _Run | None = None

    @property
    def routes(self) -> list[GuardedRoute]:
        """The pages."""
        return shadow_routes(self.begin, self.report, self.end)

    @property
    def version(self) -> str | None:
        """The version of the candidate, None where there is none."""
        return None if self._run is None else self._run.candidate.loaded.rules.version

    async def begin(self, body: bytes) -> tuple[int, object]:
        """Compare a candidate from now on, in place of the one before: 200, or 422 with every fault.

        Args:
            body: the text of one rules file, or several as JSON: ``{"files": [[name, text], ...]}``.
        """
        try:
            loaded, failures = await self._reload.beside(lambda: _compiled(contents(body)))
        except ConfigErrors as errors:
            return _UNUSABLE, {"errors": [str(error) for error in errors.errors]}
        if failures:
            return _UNUSABLE, {"errors": failures}
        candidate = ComparedSide(loaded)
        owned = {name: owned_exchanges(vhost) for name, vhost in loaded.rules.vhosts.items()}
        found = Differences(ComparedSide(self._reload.loaded), candidate)
        run = _Run(candidate, found, owned, self._wall(), self._timer())
        await self._inherit(run)
        self._run = run
        self._vhosts.watch(self)
        self._tasks.start(self._compare(run), "shadow")
        _log.info("shadow begins", candidate=loaded.rules.version, rules=self._reload.loaded.rules.version)
        return _OK, self._report(run)

    async def report(self, _body: bytes) -> tuple[int, object]:
        """Say what was found so far; 404 where there is no candidate."""
        run = self._run
        if run is None:
            return _NOT_FOUND, {"errors": ["there is no shadow"]}
        run.asked = self._timer()
        return _OK, self._report(run)

    async def end(self, _body: bytes) -> tuple[int, object]:
        """Drop the candidate and say what was found; 404 where there is none."""
        run = self._run
        if run is None:
            return _NOT_FOUND, {"errors": ["there is no shadow"]}
        self._stop(run)
        deadline = self._timer() + _LAST_SECONDS
        while run.waiting and self._timer() < deadline:
            self._turn(run)
            await asyncio.sleep(0)
        run.skipped += len(run.waiting)
        run.waiting.clear()
        return _OK, self._report(run)

    def wants(self, vhost: str, exchange: bytes) -> bool:
        """Whether publishes to an exchange can differ: see `Watcher`. What clients declared is not compared."""
        run = self._run
        if run is None:
            return False
        owned = self._vhosts.plans(vhost).state.exchanges.get(exchange)
        if owned is not None and owned.declared is not None:
            return False
        return owned is not None or run.candidate.touches(vhost, exchange) or vhost in self._reload.loaded.books

    def saw(self, sight: ObservedDecision) -> None:
        """Note a publish, if there is room: see `Watcher`."""
        run = self._run
        if run is None:
            return
        size = len(sight.header)
        if len(run.waiting) >= BUFFERED or run.waiting_bytes + size > BUFFERED_BYTES:
            run.skipped += 1
            return
        run.waiting_bytes += size
        run.waiting.append((sight, self._reload.loaded))

    def _stop(self, run: _Run) -> None:
        self._run = None
        self._vhosts.watch(None)
        _log.info("shadow ended", candidate=run.candidate.loaded.rules.version)

    async def _compare(self, run: _Run) -> None:
        """Compare what was noted, in turns, until another candidate or none takes the place."""
        looked = self._timer()
        while self._run is run:
            begin = self._timer()
            self._turn(run)
            now = self._timer()
            await asyncio.sleep(max(REST_SECONDS, RESTS * (now - begin)))
            if now - looked > _INHERIT_SECONDS:
                looked = now
                await self._inherit(run)
            if now - run.asked > FORGOTTEN_SECONDS and self._run is run:
                self._stop(run)

    def _turn(self, run: _Run) -> None:
        deadline = self._timer() + TURN_SECONDS
        while run.waiting:
            sight, live = run.waiting.popleft()
            run.waiting_bytes -= len(sight.header)
            self._judge(run, sight, live)
            if self._timer() > deadline:
                return

    def _judge(self, run: _Run, sight: ObservedDecision, live: LoadedRules) -> None:
        if live is not self._reload.loaded:
            run.skipped += 1  # noted before a reload
            return
        if run.found.live.loaded is not live:
            run.found = Differences(ComparedSide(live), run.candidate)
            run.skipped = 0
            run.began = self._wall()
        try:
            facts = sight.facts()
        except ProtocolError:
            run.skipped += 1
            return
        queues = self._vhosts.plans(sight.vhost).state.queues
        seen = ObservedPublish(sight.vhost, DescribedMessage(sight.exchange, facts), sight.at, queues, sight.decision)
        run.found.compare(seen, lambda: self._example(sight))

    async def _inherit(self, run: _Run) -> None:
        """Put what clients have declared beside the candidate's rules, as a reload would."""
        for state in self._vhosts.states:
            owned, router = run.owned.get(state.name), run.candidate.loaded.routers.get(state.name)
            if owned is None or router is None or run.epochs.get(state.name) == state.epoch:
                continue
            run.epochs[state.name] = state.epoch
            for number, _ in enumerate(inheriting(state, owned, router)):
                if not number % _STEP:
                    await asyncio.sleep(0)

    def _example(self, sight: ObservedDecision) -> dict[str, object]:
        """Give what may be shown of a message: what an audit line would say of it."""
        privacy = self._records.privacy
        key = text(sight.routing_key)
        if "rk" in privacy.hashed:
            key = privacy.hash("rk", sight.routing_key)
        headers = json.loads(self._records.headers(sight.raw_headers(privacy.headers)))
        return {"routing_key": key, "headers": headers}

    def _report(self, run: _Run) -> dict[str, object]:
        seconds = round(self._wall() - run.began, 3)
        return {"seconds": seconds, "skipped": run.skipped, "waiting": len(run.waiting), **run.found.as_json()}


def shadow_routes(begin: Answering, report: Answering, end: Answering) -> list[GuardedRoute]:
    """Give the pages by which a shadow is begun, asked for and ended."""
    return [
        json_route("POST", "/-/shadow", begin, RULES_BYTES),
        json_route("GET", "/-/shadow", report),
        json_route("DELETE", "/-/shadow", end),
    ]


def contents(body: bytes) -> list[tuple[str, bytes]]:
    """Read which files a request brings: see `Shadow.begin`."""
    if body.lstrip()[:1] == b"{":
        try:
            found = json.loads(body)
            if found.keys() == {"files"}:
                return [(str(name), str(content).encode()) for name, content in found["files"]]
        except (ValueError, TypeError, RecursionError):
            pass  # the text of a rules file, as it seems: its reader says what is wrong
    return [("candidate", body)]


def _compiled(files: Sequence[tuple[str, bytes]]) -> tuple[LoadedRules, list[str]]:
    loaded = compile_rules(files)
    return loaded, [str(failure) for failure in loaded.failures()]
