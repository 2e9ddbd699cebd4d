"""New rules in a running sidecar: each publish by one version, and nothing changed by files that are not good."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp import commands

from tests.broker.delivery.site import Site, standing
from tests.broker.delivery.test_audit import records
from tests.producer import Producer, until
from tests.rabbitmq import Broker
from tests.sidecar import request_page

#: Two queues a version: a publish that two versions had judged would be in queues of both, or in one alone.
RULES = """
queues: [a1, a2, b1, b2]
exchanges:
  - name: letters
    bindings: [{queue: %s1}, {queue: %s2}]
"""
#: Reloads under load, half a second apart, and publishes that may be unsettled meanwhile.
RELOADS, WINDOW = 8, 64
#: Seconds until the sidecar has seen a changed file: two looks.
SEEN_SECONDS = 15.0


def rules(site: Site, version: str) -> str:
    return f"vhost: {site.vhost}\n" + RULES % (version, version)


def write(site: Site, text: str) -> None:
    """Replace the rules file at once, as editors and ConfigMaps do."""
    fresh = site.sidecar.folder / "rules.fresh"
    fresh.write_text(text)
    fresh.rename(site.sidecar.folder / "rules.yaml")


def post(site: Site, path: str, body: bytes = b"") -> tuple[int, dict[str, object]]:
    code, text = request_page(site.sidecar.admin + path, body)
    return code, json.loads(text)


def status(site: Site) -> dict[str, object]:
    found: dict[str, object] = json.loads(site.sidecar.get("/status"))
    return found


@pytest.fixture(scope="module")
def shared(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with standing(broker, tmp_path_factory.mktemp("reload"), RULES % ("a", "a")) as site:
        yield site


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:
    write(shared, rules(shared, "a"))
    assert post(shared, "/-/reload")[0] == 200
    yield shared
    shared.bodies("a1", "a2", "b1", "b2")
    shared.tidy()


def routed(site: Site) -> str:
    """Publish one message; say which version's queues it is in."""
    producer = site.producer()
    assert producer.send_settled("letters").acked
    held = site.bodies("a1", "a2", "b1", "b2")
    assert held in ([[b"body"]] * 2 + [[]] * 2, [[]] * 2 + [[b"body"]] * 2)
    return "a" if held[0] else "b"


def test_a_request_makes_new_rules_hold(site: Site) -> None:
    assert routed(site) == "a"
    write(site, rules(site, "b"))
    code, answer = post(site, "/-/reload")
    assert (code, answer["result"], answer["errors"]) == (200, "ok", [])
    assert routed(site) == "b"
    assert site.metric("rules_info", version=str(answer["rules"])) == 1
    assert status(site)["rules"] == answer["rules"]


def test_a_changed_file_is_noticed(site: Site) -> None:
    before = status(site)["rules"]
    write(site, rules(site, "b"))
    until(lambda: status(site)["rules"] != before, SEEN_SECONDS)
    assert routed(site) == "b"


def test_a_config_map_s_turned_link_is_noticed(broker: Broker, tmp_path: Path) -> None:
    """The folder as the kubelet makes it: the file is a link through ``..data``, which is replaced at once."""
    for version in ("one", "two"):
        (tmp_path / f"..{version}").mkdir()
    (tmp_path / "..data").symlink_to("..one")
    (tmp_path / "rules.yaml").symlink_to(Path("..data", "rules.yaml"))
    with standing(broker, tmp_path, RULES % ("a", "a"), {"rules": [str(tmp_path / "rules.yaml")]}) as site:
        assert routed(site) == "a"
        (tmp_path / "..two" / "rules.yaml").write_text(rules(site, "b"))
        (tmp_path / "..fresh").symlink_to("..two")
        (tmp_path / "..fresh").rename(tmp_path / "..data")
        before = status(site)["rules"]
        until(lambda: status(site)["rules"] != before, SEEN_SECONDS)
        assert routed(site) == "b"


def test_a_hangup_reloads(site: Site) -> None:
    before = site.metric("rules_reload_total", result="ok")
    os.kill(site.sidecar.process_id, signal.SIGHUP)
    until(lambda: site.metric("rules_reload_total", result="ok") > before)
    assert routed(site) == "a"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("exchanges: [{name: letters, bindings: [{queue: a1, arguments: {x-order: 0}}]}]", "x-order"),
        ("exchanges: [", "rules.yaml:3:1: YAML syntax"),
        ("tests: [{name: never, publish: {exchange: letters}, expect: {}}]", "never"),
        ("exchanges: [{name: amq.direct.x, type: topic, delivery: carrier}]", "amq."),
    ],
    ids=["refused binding", "broken YAML", "test that fails", "refused name"],
)
def test_a_bad_file_changes_nothing_but_what_is_said(site: Site, text: str, error: str) -> None:
    before, errors = status(site)["rules"], site.metric("rules_reload_total", result="error")
    write(site, f"vhost: {site.vhost}\n{text}\n")
    code, answer = post(site, "/-/reload")
    assert (code, answer["result"], answer["rules"]) == (422, "error", before)
    assert error in str(answer["errors"])
    last = status(site)["last_reload"]
    assert isinstance(last, dict)
    assert last["errors"] == answer["errors"]
    assert site.metric("rules_reload_total", result="error") > errors
    assert site.logged("reload failed")
    assert routed(site) == "a"


def test_an_exchange_in_the_way_changes_nothing(site: Site) -> None:
    site.make_exchange("taken", "topic")
    write(site, rules(site, "b") + "  - {name: taken, bindings: [{queue: b1}]}\n")
    code, answer = post(site, "/-/reload")
    assert code == 422
    assert "exchange taken exists on the broker as a topic exchange" in str(answer["errors"])
    assert routed(site) == "a"
    site.delete_exchange("taken")


def test_what_clients_declared_outlives_a_reload(site: Site) -> None:
    producer = site.producer()
    queue = producer.declare("theirs")
    producer.ask(commands.Queue.Bind(queue=queue, exchange="letters", arguments={"x-?hkv= to": "theirs"}))
    write(site, rules(site, "b"))
    assert post(site, "/-/reload")[0] == 200
    assert producer.send_settled("letters", "", {"to": "theirs"}).acked
    assert len(site.take(queue)) == 1
    site.delete_queue(queue)


def await_acks(producer: Producer, tags: set[int]) -> None:
    """Read until all of these publishes are acked."""
    while tags:
        arguments = producer.expect("Basic.Ack").arguments
        tag = arguments["delivery_tag"]
        assert isinstance(tag, int)
        tags -= {one for one in tags if one == tag or (arguments["multiple"] and one < tag)}


def test_under_load_each_publish_is_judged_by_one_version(broker: Broker, tmp_path: Path) -> None:
    """Two reloads a second while a producer publishes; the audit names the version that chose the queues."""
    directory = tmp_path / "audit"
    directory.mkdir()
    with standing(broker, tmp_path, RULES % ("a", "a"), {"audit": {"directory": str(directory)}}) as site:
        versions = {str(status(site)["rules"]): "a"}
        answers = []

        def reload() -> None:
            for name in "ba" * (RELOADS // 2):
                began = time.monotonic()
                write(site, rules(site, name))
                answers.append(post(site, "/-/reload"))
                versions[str(answers[-1][1]["rules"])] = name
                time.sleep(max(0.0, 0.5 - (time.monotonic() - began)))

        producer, sent = site.producer(), 0
        reloading = threading.Thread(target=reload)
        reloading.start()
        while reloading.is_alive():
            for tag in range(sent + 1, sent + WINDOW + 1):
                producer.publish("letters", str(tag))
            await_acks(producer, set(range(sent + 1, sent + WINDOW + 1)))
            sent += WINDOW
        reloading.join()
        held: dict[str, list[str]] = {str(tag): [] for tag in range(1, sent + 1)}
        for queue in ("a1", "a2", "b1", "b2"):
            for message in site.take(queue):
                held[message.key].append(queue)
    assert [code for code, _ in answers] == [200] * RELOADS
    assert {tuple(queues) for queues in held.values()} == {("a1", "a2"), ("b1", "b2")}
    lines = records(directory)
    assert len(lines) == sent
    assert [
        line for line in lines if held[str(line["rk"])] != [f"{versions[str(line['rules'])]}{n}" for n in (1, 2)]
    ] == []


def test_rules_for_another_virtual_host_hold_after_a_reload(site: Site, vhost: str) -> None:
    with Producer(site.sidecar.port, vhost).open(confirm=True) as producer:
        assert producer.send_settled("").acked  # the producer is there before the rules are
        write(site, f"vhost: {vhost}\n" + RULES % ("a", "b"))
        assert post(site, "/-/reload")[0] == 200
        assert producer.send_settled("letters").acked
        assert producer.take("a1")
        assert producer.take("b2")
    write(site, rules(site, "a"))
    assert post(site, "/-/reload")[0] == 200
    assert routed(site) == "a"


def test_rules_for_a_virtual_host_that_does_not_exist_are_refused_with_the_brokers_reason(site: Site) -> None:
    write(site, "vhost: nowhere\n" + RULES % ("a", "b"))
    code, answer = post(site, "/-/reload")
    assert (code, answer["result"]) == (503, "error")
    assert "refused vhost 'nowhere': it does not exist" in str(answer["errors"])
    assert routed(site) == "a"
