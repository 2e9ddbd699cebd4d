"""Tests ``oxproxy cleanup``, which removes objects of sidecars from a broker."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from pamqp import commands

from oxproxy.cli import main as cli
from oxproxy.relay.tokens import is_token
from tests.broker.delivery.applications import Application
from tests.broker.delivery.site import Site, standing, vhost_status
from tests.broker.observed import Outside
from tests.certificates import Authority
from tests.producer import Producer, until
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar, oxproxy

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


def test_a_running_sidecar_is_found_if_its_admin_address_requires_tls_and_a_token(
    broker: Broker, vhost: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rules.yaml").write_text(f"vhost: {vhost}\n{RULES}")
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.certificate("localhost")
    (tmp_path / "token").write_text("t" * 32)
    settings = {
        "admin": {
            "tls": {"certificate": str(certificate), "key": str(key)},
            "tokens": [{"name": "otto", "role": "operate", "token_file": "token"}],
        }
    }
    with Sidecar(broker, [tmp_path / "rules.yaml"], settings, tmp_path, tls=authority.client()) as sidecar:
        assert cleanup(sidecar, vhost, "--yes") == 2
        error = f"a sidecar is running at https://127.0.0.1:{sidecar.admin_port} and would redeclare"
        assert error in capsys.readouterr().err
        assert sidecar.stop()
        assert cleanup(sidecar, vhost, "--yes") == 0
        assert "removed\n" in capsys.readouterr().out


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


def test_an_exchange_that_the_control_user_cannot_delete_does_not_prevent_the_removal_of_others(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker.temporary_user("monitoring") as name, standing(broker, tmp_path, RULES) as site:
        with Application(site.sidecar.port, site.vhost) as application:
            application.exchange("a client's")
        assert site.sidecar.stop()
        broker.grant(name, site.vhost, "letters", "", "")
        configuration = site.sidecar.configuration
        configuration.write_text(configuration.read_text().replace("guest", name))
        assert run(site, "--yes") == 1
        assert "not removed: exchange a client's: refused: " in capsys.readouterr().out
        assert (exists(site, "a client's"), exists(site, "letters")) == (True, False)


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
            "refused": [],
        }
        assert run(site, "--json") == 0
        listed = json.loads(capsys.readouterr().out)["exchanges"]
        assert expected in listed
        assert run(site, "--json", "--yes") == 0
        assert json.loads(capsys.readouterr().out) == {"exchanges": [{**row, "removed": True} for row in listed]}
        assert run(site, "--json") == 0
        assert json.loads(capsys.readouterr().out) == {"exchanges": []}


Start = Callable[..., Sidecar]


@pytest.fixture
def start(broker: Broker, vhost: str, tmp_path: Path) -> Iterator[Start]:
    """Start sidecars that list the secrets with the given names, the current one first."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(f"vhost: {vhost}\n{RULES}")
    with ExitStack() as stack:

        def begin(*names: str) -> Sidecar:
            for name in names:
                (tmp_path / name).write_bytes(name.encode().ljust(32, b"!"))
            listed = [{"file": str(tmp_path / name)} for name in names]
            settings = {"declared": {"secrets": listed}, "inventory": {"refresh": "200ms"}}
            return stack.enter_context(Sidecar(broker, [rules], settings))

        yield begin


@pytest.fixture
def outside(broker: Broker, vhost: str) -> Outside:
    return Outside(broker, vhost)


def tokens(outside: Outside, exchange: str) -> Counter[bytes]:
    """Number of tokens of each destination."""
    return Counter(name for _, name, key in outside.bindings(exchange) if is_token(key))


def cleanup(sidecar: Sidecar, vhost: str, *more: str) -> int:
    return cli.main(["cleanup", "--config", str(sidecar.configuration), "--vhost", vhost, *more])


def publish_until(ended: threading.Event, sidecar: Sidecar, vhost: str) -> int:
    """Publish messages that reach the queue a; return their number."""
    count = 0
    with Producer(sidecar.port, vhost) as producer:
        producer.open(confirm=True)
        while not ended.is_set():
            assert producer.send_settled("letters", "k") == (True, [])
            count += 1
    return count


def test_stale_rows_are_removed_under_traffic_and_live_rows_stay(
    start: Start, outside: Outside, vhost: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = start("leaked")
    with Application(before.port, vhost) as app:
        app.exchange("mine")
        for queue in ("a", "b"):
            app.bind(queue, "mine", {"x-?hkex": "to"})
    assert before.stop()
    first, second = start("current"), start("current")
    with Application(first.port, vhost) as app:
        app.bind("a", "mine", {"x-?hkex": "to"})
    until(lambda: tokens(outside, "letters") == {b"a": 2, b"b": 2})
    until(lambda: tokens(outside, "mine") == {b"a": 2, b"b": 2})
    until(lambda: vhost_status(first, vhost)["stale_tokens"] == {"letters": 2, "mine": 2})
    assert cli.main(["status", "--admin", first.admin]) == 0
    shown = capsys.readouterr().out
    assert "letters: 2 tokens of secrets that are not listed; no message uses them, and oxproxy cleanup" in shown
    until(lambda: len(first.logged("tokens made with secrets that are not listed")) == 2)

    listed = f"vhost {vhost}: exchange letters: 2 tokens, 0 stored bindings\n"
    listed += (
        f"vhost {vhost}: exchange mine: 2 tokens, 2 stored bindings; no other copy: queue b (claimed user 'guest')\n"
    )
    assert cleanup(first, vhost, "--stale") == 0
    output = capsys.readouterr().out
    assert output.startswith(f"{listed}nothing was removed; ")
    assert "every sidecar lists the same secrets" in output
    ended = threading.Event()
    with ThreadPoolExecutor() as pool:
        publishers = [pool.submit(publish_until, ended, sidecar, vhost) for sidecar in (first, second)]
        try:
            assert cleanup(first, vhost, "--stale", "--yes") == 0
            until(lambda: vhost_status(second, vhost)["stale_tokens"] == {})
        finally:
            ended.set()
    assert capsys.readouterr().out == f"{listed}removed\n"
    assert tokens(outside, "letters") == {b"a": 1, b"b": 1}
    assert tokens(outside, "mine") == {b"a": 1, b"b": 1}
    assert outside.client_bindings("mine") == ["a"]
    published = sum(publisher.result() for publisher in publishers)
    with Producer(second.port, vhost) as consumer:
        consumer.open(confirm=True)
        assert len(consumer.take("a")) == published > 0
        until(lambda: vhost_status(second, vhost)["declared"] == {"mine": 1})
        assert consumer.send_settled("mine", "k", {"to": "x"}) == (True, [])
        assert len(consumer.take("a")) == 1
        assert consumer.take("b") == []
    assert cleanup(second, vhost, "--stale", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"exchanges": []}


def test_bindings_are_reported_until_a_copy_is_signed_with_the_current_secret(
    start: Start, outside: Outside, vhost: str
) -> None:
    before = start("leaked")
    with Application(before.port, vhost) as app:
        app.exchange("mine")
        for queue in ("a", "b"):
            app.bind(queue, "mine")
    assert before.stop()
    sidecar = start("current", "leaked")
    until(lambda: vhost_status(sidecar, vhost).get("previous_secret") == {"mine": 2})
    with Application(sidecar.port, vhost) as app:
        app.bind("a", "mine")
        until(lambda: vhost_status(sidecar, vhost)["previous_secret"] == {"mine": 1})
        assert outside.client_bindings("mine") == ["a", "a", "b"]
        app.bind("b", "mine")
        until(lambda: vhost_status(sidecar, vhost)["previous_secret"] == {})
        assert vhost_status(sidecar, vhost)["stale_tokens"] == {}


def test_tokens_that_neither_rules_nor_clients_need_are_removed(
    start: Start, outside: Outside, vhost: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outside.make_queues("c", "d")
    sidecar = start("current")
    with Application(sidecar.port, vhost) as app:
        app.exchange("mine")
        for queue in ("a", "c"):
            app.bind(queue, "mine")
        for queue in ("c", "d"):
            app.bind(queue, "letters", {"x-?hkex": "to"})
        app.unbind("c", "mine")
        app.unbind("c", "letters", {"x-?hkex": "to"})
        assert tokens(outside, "letters") == {b"a": 1, b"b": 1, b"c": 1, b"d": 1}
        assert tokens(outside, "mine") == {b"a": 1, b"c": 1}
        listed = f"vhost {vhost}: exchange letters: 1 token, 0 stored bindings\n"
        listed += f"vhost {vhost}: exchange mine: 1 token, 0 stored bindings\n"
        assert cleanup(sidecar, vhost, "--unused") == 0
        output = capsys.readouterr().out
        assert output.startswith(f"{listed}nothing was removed; ")
        assert "wait until nothing is published or declared" in output
        assert cleanup(sidecar, vhost, "--unused", "--yes") == 0
        assert capsys.readouterr().out == f"{listed}removed\n"
        assert tokens(outside, "letters") == {b"a": 1, b"b": 1, b"d": 1}
        assert tokens(outside, "mine") == {b"a": 1}
        app.bind("c", "mine")
        assert app.reached("mine", {}, "a", "c") == ["a", "c"]


def test_tokens_of_queues_that_messages_may_choose_are_kept(broker: Broker, tmp_path: Path) -> None:
    rules = "queues: [a, b]\nexchanges: [{name: letters, bindings: [{queue: a, arguments: {x-addqre-ontrue: ^b$}}]}]"
    with standing(broker, tmp_path, rules) as site:
        assert site.producer().send_settled("letters", "k") == (True, [])
        assert tokens(site, "letters") == {b"a": 1, b"b": 1}
        configuration = site.sidecar.configuration.read_text()
        done = oxproxy("cleanup", "--config", "-", "--vhost", site.vhost, "--unused", input=configuration)
        assert (done.returncode, done.stdout) == (0, "nothing found\n")
