"""Tests when rules are reloaded, and reports of failures. test_reload.py tests the effects in a running sidecar."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from oxproxy.admin.access import Access
from oxproxy.admin.server import AdminServer
from oxproxy.app import reload as reloading
from oxproxy.app.reload import Activation, Reload, ReloadReport, free_exchanges
from oxproxy.app.reload_units import Brokers, ReloadUnit
from oxproxy.broker.reconcile.reconciler import PreparedRules
from oxproxy.broker.topology import Topology
from oxproxy.errors import ConfigError, ConfigErrors
from oxproxy.net.tasks import Tasks
from oxproxy.observe.exposition import Exposition
from oxproxy.relay.counters import Counters
from oxproxy.relay.vhost import VhostState
from oxproxy.routing.router import Router
from oxproxy.rules.loader import joined_rules, load_rules
from tests.routing.building import exchange, to_queue

BEFORE = "exchanges: [{name: letters, bindings: [{queue: a}]}]\n"
AFTER = "exchanges: [{name: letters, bindings: [{queue: b}]}]\n"


class ScriptedReload(Reload):
    """Reloads with results that a test specifies."""

    def __init__(self, folder: Path) -> None:
        self.file, self.certificate = folder / "rules.yaml", folder / "cert.pem"
        self.file.write_text(BEFORE)
        self.certificate.write_text("first")
        loaded = load_rules([self.file])
        counters = Counters()
        self.counters = counters.rules
        self.counters.version = loaded.rules.version
        self.results: list[ReloadReport] = []
        self.activated = 0
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
            lambda _loaded: {},
            self.others,
            lambda: [self.certificate],
        )

    def others(self, _brokers: Brokers) -> Activation:
        if self.fault is not None:
            raise self.fault

        def activate(_outdated: Collection[str]) -> None:
            self.activated += 1

        return activate

    async def _activate(self, units: Sequence[ReloadUnit], activation: Activation) -> ReloadReport:
        assert not self.at_work
        self.at_work += 1
        await asyncio.sleep(0)
        self.at_work -= 1
        result = self.results.pop(0) if self.results else ReloadReport()
        if not result.errors:
            activation(())
            self.loaded = joined_rules([unit.loaded for unit in units])
        return result


@pytest.fixture
def reload(tmp_path: Path) -> ScriptedReload:
    return ScriptedReload(tmp_path)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (ConfigErrors([ConfigError("rules.yaml", 1, "brokers", "no password", 7)]), "rules.yaml:1:7: brokers: no"),
        (ZeroDivisionError("oh"), "ZeroDivisionError while loading: oh"),
    ],
)
async def test_an_error_while_loading_is_reported_and_activates_nothing(
    reload: ScriptedReload, fault: Exception, error: str
) -> None:
    reload.fault = fault
    reload.file.write_text(AFTER)
    answer = await reload.reload("request")
    assert answer.errors[0].startswith(error)
    assert answer.invalid
    assert answer.version == reload.counters.version
    assert reload.activated == 0
    assert reload.counters.reloads == {"ok": 0, "error": 1}


async def test_reloads_do_not_overlap(reload: ScriptedReload) -> None:
    answers: Sequence[object] = await asyncio.gather(*(reload.reload("request") for _ in range(5)))
    assert len(answers) == reload.activated == 5


async def watch_files(reload: ScriptedReload, change: Callable[[], object], attempts: int) -> None:
    """Run the file watch until this number of reloads has been attempted."""
    watching = asyncio.ensure_future(reload.watch())
    change()
    try:
        async with asyncio.timeout(30):
            while sum(reload.counters.reloads.values()) < attempts:  # noqa: ASYNC110 -- files are polled
                await asyncio.sleep(0.01)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.parametrize("reason", ["file", "signal"])
async def test_valid_rules_are_retried_after_a_failed_activation(
    reload: ScriptedReload, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr("oxproxy.app.reload.RETRY_SECONDS", 0.01)
    reload.results = [ReloadReport(["the broker is away"], unavailable=True)] * 2
    if reason == "signal":
        reload.file.write_text(AFTER)
        await reload.reload(reason)
    await watch_files(reload, lambda: reload.file.write_text(AFTER), 3)
    assert reload.counters.reloads == {"ok": 1, "error": 2}


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (ReloadReport(), 200),
        (ReloadReport(["bad"], invalid=True), 422),
        (ReloadReport(["no broker"], unavailable=True), 503),
        (ReloadReport(["bad", "no broker"], invalid=True, unavailable=True), 422),
    ],
)
async def test_the_http_status_distinguishes_invalid_files_from_an_unreachable_broker(
    reload: ScriptedReload, result: ReloadReport, status: int
) -> None:
    reload.results = [result]
    admin = AdminServer(Exposition(Counters()), tuple, dict, Access(), routes=[reload.route])
    host, port = await admin.start("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession() as http, http.post(f"http://{host}:{port}/-/reload") as answer:
            assert reload.last is not None
            assert (answer.status, await answer.json()) == (status, reload.last.as_json())
    finally:
        await admin.stop()


async def test_old_rules_are_freed_when_they_are_no_longer_used(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_old_rules_in_use_are_not_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reloading, "POLL_SECONDS", 0.0)
    user = exchange(to_queue("q"))
    await free_exchanges([user])
    assert len(user.entries) == 1


async def test_a_mount_point_that_is_not_utf_8_does_not_prevent_watching(
    reload: ScriptedReload, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_bytes(b"36 25 8:17 / /media/B\xfcro rw - ext4 /dev/sdb1 rw\n")
    monkeypatch.setattr(reloading, "_MOUNTINFO", mountinfo)
    assert reload._lone_mounts() == []


RULES = "vhost: %s\nexchanges: [{name: letters, bindings: [{queue: %s}]}]\n"


class _Vhosts:
    """A control plane that stops managing the last virtual host, which is deleted on the broker during a reload."""

    def __init__(self, *names: str) -> None:
        self.managed_vhosts: dict[str, _Vhost] = {name: _Vhost(self, name) for name in names}

    def follows(self, vhost: str) -> bool:
        return True

    def managed(self, vhost: str) -> _Vhost:
        return self.managed_vhosts[vhost]


class _Vhost:
    def __init__(self, vhosts: _Vhosts, name: str) -> None:
        self.vhosts, self.name, self.swapped = vhosts, name, False
        self.reconciler = self

    async def prepare(self, *_: object) -> PreparedRules:
        if self.name == "b":
            self.vhosts.managed_vhosts.pop("b")
        return PreparedRules({}, Router(()), ())

    def swap(self, *_: object) -> None:
        self.swapped = True


async def test_a_virtual_host_deleted_during_a_reload_does_not_cause_a_partial_swap(tmp_path: Path) -> None:
    files = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    files[0].write_text(RULES % ("a", "old"))
    loaded = load_rules(files[:1])
    states = {name: VhostState(name, Router(())) for name in "ab"}
    topology: Any = _Vhosts("a", "b")
    first = topology.managed("a")
    reload = Reload(
        lambda: files, loaded, states.__getitem__, topology, Counters(), Tasks(), lambda _: {}, lambda _: lambda _: None
    )
    files[0].write_text(RULES % ("a", "new"))
    files[1].write_text(RULES % ("b", "new"))
    try:
        report = await reload.reload("request")
        assert not report.errors
    finally:
        assert first.swapped is (reload.loaded is not loaded)  # all virtual hosts at once, or none
