from __future__ import annotations

from pathlib import Path
from typing import Any

from proxy.app.reload import Reload
from proxy.broker.reconcile.reconciler import PreparedRules
from proxy.net.tasks import Tasks
from proxy.relay.counters import Counters
from proxy.relay.vhost import VhostState
from proxy.routing.router import Router
from proxy.rules.loader import load_rules

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
        return PreparedRules({}, Router(()), (), ())

    def swap(self, *_: object) -> None:
        self.swapped = True

    async def retire(self, _tokens: object) -> None:
        pass


async def test_a_virtual_host_deleted_during_a_reload_does_not_cause_a_partial_swap(tmp_path: Path) -> None:
    files = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    files[0].write_text(RULES % ("a", "old"))
    loaded = load_rules(files[:1])
    states = {name: VhostState(name, Router(())) for name in "ab"}
    topology: Any = _Vhosts("a", "b")
    first = topology.managed("a")
    reload = Reload(lambda: files, loaded, states.__getitem__, topology, Counters(), Tasks(), lambda _: lambda: None)
    files[0].write_text(RULES % ("a", "new"))
    files[1].write_text(RULES % ("b", "new"))
    try:
        report = await reload.reload("request")
        assert not report.errors
    finally:
        assert first.swapped is (reload.loaded is not loaded)  # all virtual hosts at once, or none
