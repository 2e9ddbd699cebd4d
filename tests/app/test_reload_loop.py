"""When rules are loaded again; `test_reload` has what attempts come to."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import aiohttp
import pytest

from proxy.admin.server import AdminServer
from proxy.app import reload as reloading
from proxy.app.reload import Activation, Reload, ReloadReport, free_exchanges
from proxy.broker.topology import Topology
from proxy.errors import ConfigError, ConfigErrors
from proxy.net.tasks import Tasks
from proxy.observe.exposition import Exposition
from proxy.relay.counters import Counters
from proxy.relay.vhost import VhostState
from proxy.routing.router import Router
from proxy.rules.loader import LoadedRules, load_rules
from tests.routing.building import exchange, to_queue

BEFORE = "exchanges: [{name: letters, bindings: [{queue: a}]}]\n"
AFTER = "exchanges: [{name: letters, bindings: [{queue: b}]}]\n"


class Asked(Reload):
    """Attempts that come to what a test says."""

    def __init__(self, folder: Path) -> None:
        self.file, self.certificate = folder / "rules.yaml", folder / "cert.pem"
        self.file.write_text(BEFORE)
        self.certificate.write_text("first")
        loaded = load_rules([self.file])
        counters = Counters()
        self.counters = counters.rules
        self.counters.version = loaded.rules.version
        self.results: list[ReloadReport] = []
        self.held: list[str] = []
        self.fault: Exception | None = None
        self.at_work = 0
        state, topology = VhostState("/", Router(())), cast("Topology", None)
        super().__init__(
            lambda: [self.file],
            loaded,
            lambda _name: state,
            topology,
            counters,
            Tasks(),
            self.brokers,
            lambda: [self.certificate],
        )

    def brokers(self, loaded: LoadedRules) -> Activation:
        if self.fault is not None:
            raise self.fault
        return lambda: self.held.append(loaded.rules.version)

    async def _activate(self, loaded: LoadedRules, activation: Activation) -> ReloadReport:
        assert not self.at_work
        self.at_work += 1
        await asyncio.sleep(0)
        self.at_work -= 1
        result = self.results.pop(0) if self.results else ReloadReport()
        if not result.errors:
            activation()
            self.loaded = loaded
        return result


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    return Asked(tmp_path)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (ConfigErrors([ConfigError("rules.yaml", 1, "brokers", "no password", 7)]), "rules.yaml:1:7: brokers: no"),
        (ZeroDivisionError("oh"), "ZeroDivisionError while loading: oh"),
    ],
)
async def test_what_can_not_be_prepared_is_an_answer_and_holds_nowhere(
    asked: Asked, fault: Exception, error: str
) -> None:
    asked.fault = fault
    asked.file.write_text(AFTER)
    answer = await asked.reload("request")
    assert answer.errors[0].startswith(error)
    assert answer.invalid
    assert answer.version == asked.counters.version
    assert asked.held == []
    assert asked.counters.reloads == {"ok": 0, "error": 1}


async def test_attempts_do_not_meet(asked: Asked) -> None:
    answers: Sequence[object] = await asyncio.gather(*(asked.reload("request") for _ in range(5)))
    assert len(answers) == len(asked.held) == 5


async def followed(asked: Asked, change: Callable[[], object], attempts: int) -> None:
    """FileWatch until so many attempts have been made."""
    watching = asyncio.ensure_future(asked.watch())
    change()
    try:
        async with asyncio.timeout(30):
            while sum(asked.counters.reloads.values()) < attempts:  # noqa: ASYNC110 -- files are looked at in turns
                await asyncio.sleep(0.01)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_good_rules_that_could_not_hold_are_tried_again(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.app.reload.RETRY_SECONDS", 0.01)
    asked.results = [ReloadReport(["the broker is away"])]
    await followed(asked, lambda: asked.file.write_text(AFTER), 2)
    assert asked.counters.reloads == {"ok": 1, "error": 1}


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (ReloadReport(), 200),
        (ReloadReport(["bad"], invalid=True), 422),
        (ReloadReport(["no broker"]), 503),
    ],
)
async def test_the_status_of_the_page_tells_invalid_files_from_an_unreachable_broker(
    asked: Asked, result: ReloadReport, status: int
) -> None:
    asked.results = [result]
    admin = AdminServer(Exposition(Counters()), tuple, dict, routes=[asked.route])
    host, port = await admin.start("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession() as http, http.post(f"http://{host}:{port}/-/reload") as answer:
            assert asked.last is not None
            assert (answer.status, await answer.json()) == (status, asked.last.as_json())
    finally:
        await admin.stop()


async def test_old_rules_are_freed_once_nothing_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reloading, "POLL_SECONDS", 0.0)
    bindings = [to_queue(f"q{number}") for number in range(200)]
    exchanges = [exchange(*bindings)]
    user, references = exchanges[0], sys.getrefcount(bindings[7])
    freeing = asyncio.ensure_future(free_exchanges(exchanges))
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(user.entries) == 200
    del user
    await freeing
    assert sys.getrefcount(bindings[7]) < references


async def test_old_rules_that_stay_in_use_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reloading, "POLL_SECONDS", 0.0)
    user = exchange(to_queue("q"))
    await free_exchanges([user])
    assert len(user.entries) == 1
