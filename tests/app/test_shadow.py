"""Tests the comparison with candidate rules: limits without a broker, and its results with a running sidecar."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from oxproxy.amqp.tables import encode_table
from oxproxy.app import shadow as shadow_module
from oxproxy.app.reload import Reload
from oxproxy.app.shadow import Shadow, uploaded_files
from oxproxy.errors import ConfigErrors
from oxproxy.net.tasks import Tasks
from oxproxy.net.vhosts import Vhosts
from oxproxy.relay.counters import Counters
from oxproxy.relay.plan.plan import Sources
from oxproxy.relay.plan.tap import ObservedDecision
from oxproxy.relay.records.privacy import Privacy
from oxproxy.relay.vhost import DeclaredExchange, Delivery, OwnedExchange, VhostState
from oxproxy.routing.decision import Decision, Outcome
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.router import Router
from oxproxy.rules.loader import LoadedRules
from oxproxy.rules.wire import owned_exchanges
from tests.broker.delivery.site import Site, standing
from tests.client import split
from tests.producer import until
from tests.rabbitmq import Broker
from tests.relay.wire import REPORT, publish
from tests.routing.building import NOW, arguments, no_draw, to_queue
from tests.rules.loading import load
from tests.sidecar import PROGRAM, oxproxy_here, request_page

T = TypeVar("T")
Json = dict[str, Any]  # Any: JSON

LIVE = """\
exchanges:
  - name: xo
    bindings: [{queue: q, arguments: {"x-?hkv= type": report}}]
"""
OTHER = LIVE.replace("queue: q", "queue: r")


class Started(Tasks):
    """Tasks that a test can await."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[asyncio.Task[Any]] = []  # Any: asyncio's

    def start(self, coroutine: Coroutine[Any, Any, object], name: str) -> asyncio.Task[Any]:  # Any: asyncio's
        task = super().start(coroutine, name)
        self.started.append(task)
        return task


class Stage:
    """A shadow for a virtual host without a broker, with a clock that the test sets."""

    def __init__(self, privacy: Privacy | None = None) -> None:
        self.now = 100.0
        self.tasks = Started()
        self.state = VhostState("/", Router(()))
        self.reload = SimpleNamespace(loaded=load(LIVE), compile_in_thread=self._compile)
        self._swap()
        self.vhosts = Vhosts([self.state], None, Counters(), Sources(lambda: NOW, lambda: 0.0, no_draw))
        reload = cast("Reload", self.reload)
        self.shadow = Shadow(reload, self.vhosts, privacy or Privacy(), self.tasks, lambda: NOW, lambda: self.now)

    @staticmethod
    async def _compile(compiling: Callable[[], T]) -> T:
        return compiling()

    def _swap(self) -> None:
        loaded = self.reload.loaded
        self.state.swap(owned_exchanges(loaded.rules.vhosts["/"]), loaded.routers["/"])

    def use(self, loaded: LoadedRules) -> None:
        """Use other rules, as after a reload."""
        self.reload.loaded = loaded
        self._swap()

    def see(self, count: int = 1, key: str = "k", exchange: bytes = b"xo") -> None:
        header = split(publish(key, REPORT))[1].raw
        decided = Decision(exchange, Outcome.ROUTED, (b"q",))
        for _ in range(count):
            self.shadow.observe(ObservedDecision("/", exchange, key.encode(), header, decided, NOW))

    async def begin(self, text: str = OTHER) -> Json:
        status, report = await self.shadow.begin(text.encode())
        assert status == 200, report
        return cast("Json", report)

    async def end(self) -> Json:
        status, report = await self.shadow.end(b"")
        assert status == 200
        return cast("Json", report)


async def test_an_invalid_candidate_is_refused_with_all_errors() -> None:
    stage = Stage()
    with pytest.raises(ConfigErrors) as raised:
        await stage.shadow.begin(b"exchanges: [{name: e, tpye: x-open}]\nqueues: 1\n")
    assert [str(error).partition(": ")[0] for error in raised.value.errors] == ["candidate:1:23", "candidate:2:9"]
    assert stage.shadow.version is None
    assert not stage.shadow.wants("/", b"xo")


async def test_a_candidate_with_failing_tests_is_refused() -> None:
    failing = LIVE + "tests: [{name: wrong, publish: {exchange: xo}, expect: {queues: [q]}}]\n"
    status, report = await Stage().shadow.begin(failing.encode())
    assert status == 422
    assert "wrong" in str(report)


async def test_without_a_candidate_report_and_end_are_errors() -> None:
    shadow = Stage().shadow
    assert (await shadow.report(b""))[0] == (await shadow.end(b""))[0] == 404


async def test_observed_publishes_are_compared() -> None:
    stage = Stage()
    await stage.begin()
    stage.see(3)
    report = await stage.end()
    assert (report["compared"], report["different"], report["skipped"]) == (3, 3, 0)
    assert report["exchanges"][0]["differences"][0]["candidate"]["queues"] == ["r"]
    assert stage.shadow.version is None


async def test_the_backlog_is_bounded_and_skipped_publishes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_module, "BUFFERED", 10)
    stage = Stage()
    await stage.begin()
    stage.see(25)
    assert (await stage.end())["skipped"] == 15


async def test_the_backlog_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    await stage.begin()
    header = len(split(publish("k", REPORT))[1].raw)
    monkeypatch.setattr(shadow_module, "BUFFERED_BYTES", 3 * header)
    stage.see(5)
    report = await stage.end()
    assert (report["compared"], report["skipped"]) == (3, 2)


async def test_a_shadow_whose_report_is_not_read_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_module, "PAUSE_SECONDS", 0.0)
    stage = Stage()
    await stage.begin()
    stage.now += shadow_module.UNREAD_SECONDS - 1
    assert (await stage.shadow.report(b""))[0] == 200
    stage.now += shadow_module.UNREAD_SECONDS + 1
    (task,) = stage.tasks.started
    await task
    assert stage.shadow.version is None
    assert not stage.shadow.wants("/", b"xo")


async def test_a_new_candidate_replaces_the_previous_one() -> None:
    stage = Stage()
    first = await stage.begin()
    second = await stage.begin(LIVE)
    assert first["candidate"] != second["candidate"] == stage.shadow.version
    stage.see()
    assert (await stage.end())["equal"] == 1


async def test_a_reload_restarts_the_comparison() -> None:
    stage = Stage()
    await stage.begin()
    stage.see(2)
    stage.use(load(OTHER))
    stage.see(1)
    report = await stage.end()
    assert report["live"] == load(OTHER).rules.version
    assert (report["compared"], report["live"] == report["candidate"]) == (1, True)


async def test_examples_disclose_only_what_the_audit_log_does() -> None:
    stage = Stage(Privacy(frozenset({b"type"}), frozenset({"rk"}), b"0123456789abcdef"))
    await stage.begin()
    stage.see(key="secret")
    example = (await stage.end())["exchanges"][0]["differences"][0]["example"]
    assert example["headers"] == {"type": "report"}
    assert "secret" not in str(example)
    quiet = Stage()
    await quiet.begin()
    quiet.see(key="shown")
    example = (await quiet.end())["exchanges"][0]["differences"][0]["example"]
    assert example == {"routing_key": "shown", "headers": {}}


async def test_bindings_of_clients_apply_to_the_candidate() -> None:
    stage = Stage()
    declared = OwnedExchange(
        b"theirs", "x-open", Delivery.CARRIER, b"theirs", declared=DeclaredExchange(True, False, False, b"", 1)
    )
    exchange = Exchange(b"theirs", "x-open")
    exchange.bind(to_queue("chained"))
    stage.state.add_exchange(declared, exchange)
    await stage.begin(LIVE.replace("queue: q", "exchange: theirs"))
    assert not stage.shadow.wants("/", b"theirs")
    assert stage.shadow.wants("/", b"xo")
    stage.see()
    decision = (await stage.end())["exchanges"][0]["differences"][0]["candidate"]
    assert decision["queues"] == ["chained"]


async def test_only_exchanges_of_either_rules_are_compared() -> None:
    stage = Stage()
    await stage.begin(OTHER.replace("name: xo", "name: new"))
    assert [stage.shadow.wants("/", name) for name in (b"xo", b"new", b"else", b"")] == [True, True, False, False]


def test_a_request_contains_one_file_or_several() -> None:
    assert uploaded_files(b"exchanges: []") == [("candidate", b"exchanges: []")]
    assert uploaded_files(b'{"exchanges": []}') == [("candidate", b'{"exchanges": []}')]
    assert uploaded_files(b'{"files": [["a", "x"], ["b", "y"]]}') == [("a", b"x"), ("b", b"y")]
    assert uploaded_files(b'{"files": 3}') == [("candidate", b'{"files": 3}')]
    assert uploaded_files(b'{"fil') == [("candidate", b'{"fil')]


# -- a running sidecar -----------------------------------------------------------------------------------------------

RULES = """
queues: [reports, bills, all]
exchanges:
  - name: letters
    bindings:
      - {queue: reports, name: reports, arguments: {"x-?hkv= type": report}}
      - {queue: bills, name: bills, arguments: {"x-?hkv= type": bill}}
"""
#: `RULES`, with an additional destination for bills.
CANDIDATE = (
    RULES
    + """\
      - {queue: all, name: everything, arguments: {"x-?hkv= type": bill}}
"""
)


@pytest.fixture(scope="module")
def shared(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("shadow")
    settings = {"audit": {"directory": str(folder), "headers": ["type"]}}
    with standing(broker, folder, RULES, settings) as site:
        yield site


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:
    yield shared
    shared.bodies("reports", "bills", "all")
    shared.tidy()


def ask(site: Site, method: str, body: bytes | None = None) -> tuple[int, Json]:
    status, text = request_page(site.sidecar.admin + "/-/shadow", body, method)
    return status, json.loads(text)


def candidate(site: Site, text: str = CANDIDATE) -> bytes:
    return f"vhost: {site.vhost}\n{text}".encode()


def send(site: Site) -> None:
    """Publish three reports and two bills."""
    producer = site.producer()
    for kind in ("report", "bill", "report", "bill", "report"):
        assert producer.send_settled(
            "letters", "k", headers=encode_table(arguments({"type": kind, "person": "hidden"}))
        ).acked


@pytest.mark.broker
def test_live_traffic_is_compared_and_still_delivered(site: Site) -> None:
    status, began = ask(site, "POST", candidate(site))
    assert (status, began["compared"]) == (200, 0)
    assert json.loads(site.sidecar.get("/status"))["shadow"] == began["candidate"]
    send(site)
    until(lambda: ask(site, "GET")[1]["compared"] == 5)
    status, report = ask(site, "DELETE")
    assert (status, report["equal"], report["different"], report["skipped"]) == (200, 3, 2, 0)
    (exchange,) = report["exchanges"]
    (kind,) = exchange["differences"]
    assert (kind["live"]["queues"], kind["candidate"]["queues"]) == (["bills"], ["all", "bills"])
    assert kind["example"] == {"routing_key": "k", "headers": {"type": "bill"}}
    assert "hidden" not in json.dumps(report)
    assert {binding["binding"]: binding["matches"] for binding in report["bindings"]} == {
        "reports": 3, "bills": 2, "everything": 2,
    }  # fmt: skip
    assert [len(bodies) for bodies in site.bodies("reports", "bills", "all")] == [3, 2, 0]
    assert ask(site, "GET")[0] == 404


@pytest.mark.broker
def test_delivered_messages_are_identical_with_a_shadow(site: Site) -> None:
    send(site)
    plain = [[message[1:] for message in site.take(queue)] for queue in ("reports", "bills")]
    ask(site, "POST", candidate(site))
    send(site)
    shadowed = [[message[1:] for message in site.take(queue)] for queue in ("reports", "bills")]
    ask(site, "DELETE")
    assert plain == shadowed


@pytest.mark.broker
def test_an_invalid_candidate_is_refused_and_nothing_is_compared(site: Site) -> None:
    status, report = ask(site, "POST", candidate(site, RULES.replace("queue: bills", "quue: bills")))
    assert status == 422
    assert "candidate:8" in report["errors"][0]
    assert ask(site, "GET")[0] == 404


def command(site: Site, folder: Path, *more: str, text: str = CANDIDATE) -> list[str]:
    file = folder / "next.yaml"
    file.write_bytes(candidate(site, text))
    return ["shadow", str(file), "--admin", site.sidecar.admin, *more]


@pytest.mark.broker
def test_the_command_reports_when_it_is_interrupted_and_ends_the_comparison(site: Site, tmp_path: Path) -> None:
    with (
        subprocess.Popen([PROGRAM, *command(site, tmp_path)], stdout=subprocess.PIPE, text=True) as running,
        ExitStack() as stack,
    ):
        stack.callback(running.kill)
        until(lambda: json.loads(site.sidecar.get("/status"))["shadow"] is not None)
        send(site)
        until(lambda: ask(site, "GET")[1]["compared"] == 5)
        running.send_signal(signal.SIGINT)
        output, _ = running.communicate(timeout=30)
    assert running.returncode == 1
    assert "5 publishes compared, 3 equal, 2 different" in output
    assert "exchange letters: 2 publishes: live" in output
    assert ask(site, "GET")[0] == 404


@pytest.mark.broker
def test_without_differences_the_command_prints_json_with_status_0(site: Site, tmp_path: Path) -> None:
    done = oxproxy_here(*command(site, tmp_path, "--seconds", "0.1", "--json", text=RULES))
    assert (done.returncode, json.loads(done.stdout)["different"]) == (0, 0)


@pytest.mark.broker
def test_the_command_reports_errors_in_a_candidate(site: Site, tmp_path: Path) -> None:
    done = oxproxy_here(*command(site, tmp_path, text="a: 1\n" + "\n" * 8 + "b: 2\ntests: 5\n"))
    assert done.returncode == 2
    places = [line.partition(": ")[0] for line in done.stderr.splitlines()]
    assert places == [f"{tmp_path / 'next.yaml'}:{place}" for place in ("2:1", "11:1", "12:8")]
