"""Tests reloads of several virtual hosts: a reload is all or nothing for each of them.

The first tests use a running sidecar with the rules of two tenants; the others only read files.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from oxproxy.app.reload_units import Brokers, load_units
from oxproxy.errors import ConfigError, ConfigErrors
from oxproxy.rules.loader import LoadedRules, load_rules
from tests.broker.delivery.site import Site, standing
from tests.producer import Producer, until
from tests.rabbitmq import Broker
from tests.sidecar import oxproxy_here, request_page

RULES = """
queues: [old, new]
exchanges: [{name: letters, bindings: [{queue: %s}]}]
"""
#: An unknown key, an unclosed list, a failing test, and an exchange that exists on the broker with another type.
BROKEN = {
    "key": "exchnages: []",
    "syntax": "exchanges: [",
    "test": "tests: [{name: never, publish: {exchange: letters}, expect: {}}]",
    "refused": "exchanges: [{name: taken, bindings: [{queue: old}]}]",
    "broker": "brokers: {far: {address: far.example, username: mover, password_env: NOT_SET}}",
}


@dataclass
class Tenants:
    """A sidecar with two virtual hosts and one file for each."""

    site: Site
    folder: Path
    acme: str
    globex: str

    def write(self, name: str, text: str) -> None:
        """Replace a file atomically."""
        fresh = self.folder / "fresh"
        fresh.write_text(text)
        fresh.rename(self.folder / f"{name}.yaml")

    def reload(self) -> tuple[int, dict[str, Any]]:
        code, text = request_page(f"{self.site.sidecar.admin}/-/reload", b"")
        return code, json.loads(text)

    def queue_of(self, vhost: str) -> str:
        """Publish one message, and return the queue to which it is delivered."""
        with Producer(self.site.sidecar.port, vhost).open(confirm=True) as producer:
            assert producer.send_settled("letters").acked
            queues = [queue for queue in ("old", "new") if producer.take(queue)]
        assert len(queues) == 1
        return queues[0]

    def outdated(self) -> dict[str, float]:
        return {name: self.site.metric("rules_outdated", vhost=name) for name in (self.acme, self.globex)}


@pytest.fixture(scope="module")
def shared(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    folder = tmp_path_factory.mktemp("tenants")
    globex = "globex-of-reload-units"
    broker.create_vhost(globex)
    (folder / "rules").mkdir()
    (folder / "rules" / "globex.yaml").write_text(f"vhost: {globex}\n{RULES % 'old'}")
    patterns = {"rules": [str(folder / "rules.yaml"), str(folder / "rules" / "*.yaml")]}
    try:
        with standing(broker, folder, RULES % "old", patterns) as site:
            site.make_exchange("taken", "topic")
            yield Tenants(site, folder / "rules", site.vhost, globex)
    finally:
        broker.delete_vhost(globex)


@pytest.fixture
def tenants(shared: Tenants) -> Iterator[Tenants]:
    yield shared
    for file in shared.folder.glob("*.yaml"):
        file.unlink()
    shared.write("globex", f"vhost: {shared.globex}\n{RULES % 'old'}")
    (shared.site.sidecar.folder / "rules.yaml").write_text(f"vhost: {shared.acme}\n{RULES % 'old'}")
    assert shared.reload()[0] == 200
    shared.site.tidy()


def acme(tenants: Tenants, text: str) -> None:
    fresh = tenants.folder / "fresh"
    fresh.write_text(f"vhost: {tenants.acme}\n{text}")
    fresh.rename(tenants.site.sidecar.folder / "rules.yaml")


@pytest.mark.parametrize("fault", BROKEN)
def test_invalid_rules_of_one_virtual_host_do_not_block_another(tenants: Tenants, fault: str) -> None:
    acme(tenants, BROKEN[fault])
    tenants.write("globex", f"vhost: {tenants.globex}\n{RULES % 'new'}")
    code, answer = tenants.reload()
    assert (code, answer["result"], answer["outdated"]) == (422, "error", [tenants.acme])
    assert (tenants.queue_of(tenants.acme), tenants.queue_of(tenants.globex)) == ("old", "new")
    assert tenants.outdated() == {tenants.acme: 1, tenants.globex: 0}
    assert tenants.site.metric("rules_info", version=answer["rules"]) == 1
    status = json.loads(tenants.site.sidecar.get("/status"))
    assert (status["rules"], status["last_reload"]["outdated"]) == (answer["rules"], [tenants.acme])
    shown = oxproxy_here("status", "--admin", tenants.site.sidecar.admin).stdout
    assert f"  outdated      {tenants.acme}\n" in shown
    assert answer["errors"][0] in shown
    acme(tenants, RULES % "new")
    assert tenants.reload()[0] == 200
    assert tenants.queue_of(tenants.acme) == "new"
    assert tenants.outdated() == {tenants.acme: 0, tenants.globex: 0}


def test_a_changed_file_and_sighup_reload_the_valid_virtual_host(tenants: Tenants) -> None:
    before = tenants.site.metric("rules_reload_total", result="error")
    acme(tenants, "exchanges: [")
    until(lambda: tenants.site.metric("rules_reload_total", result="error") > before, 15)
    tenants.write("globex", f"vhost: {tenants.globex}\n{RULES % 'new'}")
    os.kill(tenants.site.sidecar.process_id, signal.SIGHUP)
    until(lambda: tenants.queue_of(tenants.globex) == "new")
    assert tenants.queue_of(tenants.acme) == "old"
    assert tenants.acme in tenants.site.logged("reload failed")[-1]
    acme(tenants, RULES % "new")  # no request and no signal
    until(lambda: tenants.outdated() == {tenants.acme: 0, tenants.globex: 0}, 15)
    assert tenants.queue_of(tenants.acme) == "new"


def test_a_removed_virtual_host_has_no_rules_although_another_is_invalid(tenants: Tenants) -> None:
    (tenants.folder / "globex.yaml").unlink()
    tenants.write("more", f"vhost: {tenants.acme}\nexchanges: [{{name: more, bindings: [{{queue: old}}]}}]\n")
    acme(tenants, BROKEN["key"])
    code, answer = tenants.reload()
    assert (code, answer["outdated"]) == (422, [tenants.acme])
    with Producer(tenants.site.sidecar.port, tenants.globex).open(confirm=True) as producer:
        assert producer.send_settled("letters").acked  # passed to the exchange on the broker, which has no binding
        assert not producer.take("old")
    routes = json.loads(tenants.site.sidecar.get("/api/routes"))
    exchanges = {vhost["vhost"]: [item["exchange"] for item in vhost["exchanges"]] for vhost in routes["vhosts"]}
    assert exchanges[tenants.acme] == ["letters"]
    assert not exchanges.get(tenants.globex)


def test_a_file_that_moves_to_another_virtual_host_connects_both(tenants: Tenants) -> None:
    tenants.write("extra", f"vhost: {tenants.acme}\nexchanges: [{{name: extra, bindings: [{{queue: old}}]}}]\n")
    assert tenants.reload()[0] == 200
    tenants.write("extra", f"vhost: {tenants.globex}\nexchanges: [{{name: extra, bindings: [{{queue: old}}]}}]\n")
    tenants.write("globex", f"vhost: {tenants.globex}\n{BROKEN['key']}")
    code, answer = tenants.reload()
    assert (code, answer["outdated"]) == (422, sorted([tenants.acme, tenants.globex]))
    with Producer(tenants.site.sidecar.port, tenants.acme).open(confirm=True) as producer:
        assert producer.send_settled("extra").acked
        assert producer.take("old")
    tenants.write("globex", f"vhost: {tenants.globex}\n{RULES % 'new'}")
    assert tenants.reload()[0] == 200


def test_an_error_of_the_configuration_blocks_all_virtual_hosts(tenants: Tenants) -> None:
    rules = tenants.site.sidecar.folder / "rules.yaml"
    rules.unlink()
    tenants.write("globex", f"vhost: {tenants.globex}\n{RULES % 'new'}")
    code, answer = tenants.reload()
    assert (code, answer["outdated"]) == (422, sorted([tenants.acme, tenants.globex]))
    assert tenants.queue_of(tenants.globex) == "old"


def test_a_virtual_host_that_the_broker_does_not_have_does_not_block_another(tenants: Tenants) -> None:
    tenants.write("nowhere", "vhost: nowhere\nexchanges: []\n")
    tenants.write("globex", f"vhost: {tenants.globex}\n{RULES % 'new'}")
    code, answer = tenants.reload()
    assert (code, answer["outdated"]) == (503, ["nowhere"])
    assert "refused vhost 'nowhere'" in answer["errors"][0]
    assert tenants.queue_of(tenants.globex) == "new"
    assert tenants.site.metric("rules_outdated", vhost="nowhere") == 1


def test_candidate_rules_and_check_are_valid_as_a_whole(tenants: Tenants) -> None:
    files = [["a.yaml", f"vhost: {tenants.acme}\n{RULES % 'old'}"], ["b.yaml", "vhost: b\nexchanges: ["]]
    code, text = request_page(f"{tenants.site.sidecar.admin}/-/shadow", json.dumps({"files": files}).encode())
    assert (code, json.loads(text)["errors"][0].startswith("b.yaml:1:9")) == (422, False)
    acme(tenants, BROKEN["key"])
    done = oxproxy_here("check", tenants.site.sidecar.configuration)
    assert done.returncode == 1 or done.returncode == 2
    assert "exchnages: unknown key" in done.stderr


# -- units of files ----------------------------------------------------------------------------------------------------


def no_brokers(_loaded: LoadedRules) -> Brokers:
    return {}


@dataclass
class Folder:
    """A directory of rules files, by the name of their virtual host."""

    path: Path

    def write(self, **texts: str) -> list[Path]:
        for file in self.path.iterdir():
            file.unlink()
        for name, text in texts.items():
            (self.path / f"{name}.yaml").write_text(text)
        return sorted(self.path.iterdir())

    def units(self, before: dict[str, str], after: dict[str, str]) -> dict[str, bool]:
        """Return, for each unit, the names of its virtual hosts and whether it can be activated."""
        active = load_rules(self.write(**before))
        units = load_units(self.write(**after), active, no_brokers)
        return {"+".join(sorted(unit.vhosts)): not unit.errors for unit in units}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


A, B = "vhost: a\nexchanges: [{name: e, bindings: [{queue: q}]}]\n", "vhost: b\nqueues: [q]\n"
TWO = {"one": A, "two": B}


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (TWO, {"a": True, "b": True}),
        ({"one": A, "two": B + "x: 1\n"}, {"a": True, "b": False}),
        ({"one": A, "two": B + "x: [\n"}, {"a": True, "b": False}),
        ({"one": A}, {"a": True, "b": True}),
        ({"one": A, "two": ""}, {"a": True, "b": False}),
        ({"one": A, "two": "[\n" + B}, {"a": True, "b": False}),
        ({"one": A, "two": "vhost: c\n"}, {"a": True, "b+c": True}),
        ({"one": A, "two": "vhost: c\nx: 1\n", "three": B}, {"a": True, "b+c": False}),
        ({**TWO, "new": "x: [\nvhost: b\n"}, {"a+b": False}),
        ({**TWO, "new": "vhsot: b\n"}, {"a+b": False}),
        ({**TWO, "new": ""}, {"a+b": False}),
        ({**TWO, "new": "vhost: [b]\n"}, {"a+b": False}),
        ({**TWO, "new": "vhost: 7\n"}, {"a+b": False}),
        ({**TWO, "new": "{vhost: c, x: ["}, {"a": True, "b": True, "c": False}),
        ({**TWO, "new": "x: [vhost, b]\nvhost: 'c'\ny: ["}, {"a": True, "b": True, "c": False}),
        ({**TWO, "new": "vhost: b\nvhost: c\n"}, {"a": True, "b+c": False}),
        ({**TWO, "new": "vhost: b\n---\nvhost: c\n"}, {"a": True, "b+c": False}),
        ({**TWO, "new": "queues: [p]\n"}, {"a": True, "b": True, "/": True}),
        ({**TWO, "new": "queues: [p, p]\n"}, {"a": True, "b": True, "/": False}),
    ],
)
def test_each_virtual_host_is_one_unit_unless_a_file_connects_several(
    folder: Folder, after: dict[str, str], expected: dict[str, bool]
) -> None:
    assert folder.units(TWO, after) == expected


def test_a_file_that_cannot_be_read_belongs_to_the_virtual_host_that_it_had(folder: Folder) -> None:
    active = load_rules(folder.write(**TWO))
    (folder.path / "two.yaml").unlink()
    units = load_units([folder.path / "one.yaml", folder.path / "two.yaml"], active, no_brokers)
    assert {tuple(unit.vhosts): unit.errors for unit in units} == {
        ("a",): (),
        ("b",): (f"{folder.path / 'two.yaml'}: can't be read: No such file or directory",),
    }


def test_unusable_brokers_concern_only_their_virtual_host_even_without_a_change(folder: Folder) -> None:
    active = load_rules(paths := folder.write(**TWO))

    def brokers_of(loaded: LoadedRules) -> Brokers:
        if "b" in loaded.rules.vhosts:
            raise ConfigErrors([ConfigError("two.yaml", 1, "brokers", "no password")])
        return {}

    units = load_units(paths, active, brokers_of)
    assert {tuple(unit.vhosts): unit.errors for unit in units} == {
        ("a",): (),
        ("b",): ("two.yaml:1: brokers: no password",),
    }


def test_only_units_with_changes_are_compiled_again(folder: Folder) -> None:
    active = load_rules(folder.write(**TWO))
    units = load_units(folder.write(one=A, two=B + "# changed\n"), active, no_brokers)
    routers = {name: router for unit in units for name, router in unit.loaded.routers.items()}
    assert routers["a"] is active.routers["a"]
    assert routers["b"] is not active.routers["b"]
