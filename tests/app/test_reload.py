"""Tests reloads in a running sidecar: each publish uses one version, and invalid files change nothing."""

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

#: Two queues per version. A publish decided by two versions would be in queues of both, or in only one queue.
RULES = """
queues: [a1, a2, b1, b2]
exchanges:
  - name: letters
    bindings: [{queue: %s1}, {queue: %s2}]
"""
#: Number of reloads under load, one every half second, and maximum number of unconfirmed publishes.
RELOADS, WINDOW = 8, 64
#: Timeout in seconds for the sidecar to notice a changed file, which takes two polls.
SEEN_SECONDS = 15.0


def rules(site: Site, version: str) -> str:
    return f"vhost: {site.vhost}\n" + RULES % (version, version)


def write(site: Site, text: str) -> None:
    """Replace the rules file atomically, as editors and ConfigMaps do."""
    fresh = site.sidecar.folder / "rules.fresh"
    fresh.write_text(text)
    fresh.rename(site.sidecar.folder / "rules.yaml")


def post(site: Site, path: str, body: bytes = b"") -> tuple[int, dict[str, object]]:
    code, text = request_page(site.sidecar.admin + path, body)
    return code, json.loads(text)


def status(site: Site) -> dict[str, object]:
    status_page: dict[str, object] = json.loads(site.sidecar.get("/status"))
    return status_page


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
    """Publish one message, and return the version to whose queues it was delivered."""
    producer = site.producer()
    assert producer.send_settled("letters").acked
    held = site.bodies("a1", "a2", "b1", "b2")
    assert held in ([[b"body"]] * 2 + [[]] * 2, [[]] * 2 + [[b"body"]] * 2)
    return "a" if held[0] else "b"


def test_a_request_reloads_the_rules(site: Site) -> None:
    assert routed(site) == "a"
    write(site, rules(site, "b"))
    code, answer = post(site, "/-/reload")
    assert (code, answer["result"], answer["errors"]) == (200, "ok", [])
    assert routed(site) == "b"
    assert site.metric("rules_info", version=str(answer["rules"])) == 1
    assert status(site)["rules"] == answer["rules"]


@pytest.mark.parametrize("text", ["", "# exchanges: []\n"])
def test_an_emptied_file_is_refused(site: Site, text: str) -> None:
    write(site, text)
    code, answer = post(site, "/-/reload")
    assert (code, answer["result"]) == (422, "error")
    assert "the file is empty" in str(answer["errors"])
    assert routed(site) == "a"


def test_a_changed_file_is_reloaded(site: Site) -> None:
    before = status(site)["rules"]
    write(site, rules(site, "b"))
    until(lambda: status(site)["rules"] != before, SEEN_SECONDS)
    assert routed(site) == "b"


def test_a_replaced_link_of_a_config_map_is_reloaded(broker: Broker, tmp_path: Path) -> None:
    """The kubelet creates the file as a link through ``..data``, and replaces ``..data`` atomically."""
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


def test_sighup_reloads_the_rules(site: Site) -> None:
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
def test_an_invalid_file_is_reported_and_changes_nothing(site: Site, text: str, error: str) -> None:
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


def test_a_conflicting_exchange_changes_nothing(site: Site) -> None:
    site.make_exchange("taken", "topic")
    write(site, rules(site, "b") + "  - {name: taken, bindings: [{queue: b1}]}\n")
    code, answer = post(site, "/-/reload")
    assert code == 422
    assert "exchange taken exists on the broker as a topic exchange" in str(answer["errors"])
    assert routed(site) == "a"
    site.delete_exchange("taken")


def test_declarations_of_clients_are_kept_at_a_reload(site: Site) -> None:
    producer = site.producer()
    queue = producer.declare("theirs")
    producer.ask(commands.Queue.Bind(queue=queue, exchange="letters", arguments={"x-?hkv= to": "theirs"}))
    write(site, rules(site, "b"))
    assert post(site, "/-/reload")[0] == 200
    assert producer.send_settled("letters", "", {"to": "theirs"}).acked
    assert len(site.take(queue)) == 1
    site.delete_queue(queue)


def await_acks(producer: Producer, tags: set[int]) -> None:
    """Read until all these publishes are acked."""
    while tags:
        arguments = producer.expect("Basic.Ack").arguments
        tag = arguments["delivery_tag"]
        assert isinstance(tag, int)
        tags -= {unsettled for unsettled in tags if unsettled == tag or (arguments["multiple"] and unsettled < tag)}


def test_under_load_each_publish_is_decided_by_one_version(broker: Broker, tmp_path: Path) -> None:
    """Two reloads per second during publishes. The audit log names the version that selected the queues."""
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


def test_rules_for_a_new_virtual_host_apply_after_a_reload(site: Site, vhost: str) -> None:
    with Producer(site.sidecar.port, vhost).open(confirm=True) as producer:
        assert producer.send_settled("").acked  # the producer connects before the reload
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
