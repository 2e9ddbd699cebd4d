"""Tests ``oxproxy cleanup``, which removes objects of sidecars from a broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pamqp import commands

from proxy.cli import main as cli
from tests.broker.delivery.applications import Application
from tests.broker.delivery.site import Site, standing
from tests.rabbitmq import Broker

RULES = """
queues: [a, b]
exchanges:
  - name: letters
    bindings: [{queue: a}, {queue: b, arguments: {x: 1}}]
"""


def run(site: Site, *more: str) -> int:
    return cli.main(["cleanup", "--config", str(site.sidecar.configuration), "--vhost", site.vhost, *more])


def exists(site: Site, exchange: str) -> bool:
    listed = site.broker.api("GET", f"exchanges/{site.vhost}?columns=name")
    return exchange in {row["name"] for row in listed}


def test_everything_is_listed_and_removed_on_request(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with standing(broker, tmp_path, RULES) as site:
        producer = site.producer()
        producer.ask(commands.Queue.Bind(queue="a", exchange="letters", arguments={"y": 2}))
        site.make_exchange("untouched")
        site.tidy()
        assert run(site, "--yes") == 2
        assert f"a sidecar is running at {site.sidecar.admin} and would redeclare" in capsys.readouterr().err
        assert site.sidecar.stop()
        assert run(site) == 0
        listed = capsys.readouterr().out
        assert f"vhost {site.vhost}: exchange letters: 2 tokens, 1 stored binding\n" in listed
        assert "nothing was removed" in listed
        assert exists(site, "letters")
        assert run(site, "--yes") == 0
        assert not exists(site, "letters")
        assert exists(site, "untouched")
        assert site.queue("a")["durable"]
        assert run(site) == 0
        assert "nothing found" in capsys.readouterr().out


def test_objects_of_clients_and_of_sidecars_are_removed(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with standing(broker, tmp_path, RULES, {"declared": {"announce": True}}) as site:
        with Application(site.sidecar.port, site.vhost) as app:
            app.exchange("mine")
            app.exchange("next")
            app.chain("next", "mine")
            app.bind("a", "mine", {"x-addq-ontrue": "b"})
        assert exists(site, "x.o.p.e.n.x.announce")
        assert site.sidecar.stop()
        assert run(site, "--yes") == 0
        assert "exchange x.o.p.e.n.x.announce: " in capsys.readouterr().out
        listed = site.broker.api("GET", f"exchanges/{site.vhost}?columns=name")
        assert [exchange["name"] for exchange in listed if not exchange["name"].startswith("amq.")] == [""]
        bound = site.broker.api("GET", f"bindings/{site.vhost}")
        assert {binding["source"] for binding in bound} == {""}
        queues = site.broker.api("GET", f"queues/{site.vhost}?columns=name")
        assert {queue["name"] for queue in queues} == {"a", "b"}


def test_an_exchange_with_other_bindings_is_kept(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with standing(broker, tmp_path, RULES) as site:
        assert site.sidecar.stop()
        site.bind("letters", "a", "by hand")
        assert run(site, "--yes") == 1
        assert "kept because of a foreign binding to queue a with key 'by hand'" in capsys.readouterr().out
        assert site.bindings("letters") == {("queue", b"a", b"by hand")}


def test_existing_and_removed_objects_are_printed_as_json(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with standing(broker, tmp_path, RULES) as site:
        assert site.sidecar.stop()
        expected = {
            "vhost": site.vhost,
            "exchange": "letters",
            "tokens": 2,
            "stored_bindings": 0,
            "foreign_bindings": [],
            "removed": False,
        }
        assert run(site, "--json") == 0
        listed = json.loads(capsys.readouterr().out)["exchanges"]
        assert expected in listed
        assert run(site, "--json", "--yes") == 0
        assert json.loads(capsys.readouterr().out) == {"exchanges": [{**row, "removed": True} for row in listed]}
        assert run(site, "--json") == 0
        assert json.loads(capsys.readouterr().out) == {"exchanges": []}
