"""Tests two workers with a real broker: a shared address for producers, and an admin port for each worker."""

from __future__ import annotations

import json
import os
import re
import resource
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml
from pamqp import commands

from proxy.net.tls import certificate_end
from tests.certificates import Authority
from tests.private_broker import free_port, free_ports
from tests.producer import Producer, until
from tests.rabbitmq import Broker
from tests.served import RULES, WORKERS, Pair, Running, Serve, alive, two_workers
from tests.sidecar import PROGRAM, oxproxy, oxproxy_here, request_page

OTHER_RULES = RULES.replace("all letters", "every letter")
BAD_RULES = RULES.replace("queue: a", "quee: a")


@pytest.fixture(scope="module")
def lasting(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two workers for all tests that neither end them nor count from zero."""
    vhost = f"workers-{secrets.token_hex(6)}"
    broker.create_vhost(vhost)
    with two_workers(broker, vhost, tmp_path_factory.mktemp("workers")) as pair:
        pair.running.await_ready()
        yield pair
    broker.delete_vhost(vhost)


@pytest.fixture
def shared(lasting: Pair) -> Iterator[Pair]:
    """These two workers, with RULES and without producers."""
    rules = lasting.rules_in_force()
    yield lasting
    while lasting.opened:
        lasting.opened.pop().disconnect()
    lasting.write_rules(RULES)
    for worker in range(WORKERS):
        assert lasting.reload(worker)[0] == 200
    assert lasting.rules_in_force() == rules


def test_both_workers_forward_messages_and_their_metrics_add_up(pair: Pair) -> None:
    producers = pair.producers(16)  # distributed by the kernel; the probability that one worker gets all is 1 in 32,768
    for number, producer in enumerate(producers):
        assert producer.send_settled("letters", "k", body=b"%d" % number) == (True, [])
    with Producer(pair.broker.port, pair.vhost).open() as direct:
        assert {int(message.body) for message in direct.take("a")} == set(range(16))
    assert pair.published() == 16
    assert pair.connected() == 16
    assert pair.matches("all letters") == 16
    assert all(pair.metrics("connections", side="downstream"))
    assert pair.metrics("workers") == [WORKERS] * WORKERS
    assert [status["worker"] for status in pair.statuses()] == list(range(WORKERS))
    assert pair.metrics("rules_info", version=pair.status()["rules"]) == [1] * WORKERS
    assert pair.metric("confirms_total", result="acked") == 16
    for producer in producers:
        producer.disconnect()
    until(lambda: pair.connected() == 0)
    assert pair.running.end() == 0
    audited = pair.rules.parent / "audit"
    instances = {f"pair-{number}" for number in range(WORKERS)}
    assert {name for name in instances if any(name in path.name for path in audited.rglob("*"))} == instances


def test_sighup_reloads_valid_rules_in_all_workers_and_invalid_ones_in_none(shared: Pair) -> None:
    (before,) = shared.rules_in_force()
    shared.write_rules(BAD_RULES)
    shared.running.process.send_signal(signal.SIGHUP)
    shared.running.await_log('event="reload failed" reason=signal errors=')
    assert "quee: unknown key" in shared.running.log.read_text()
    assert shared.rules_in_force() == {before}
    matches = shared.matches("all letters")
    for producer in shared.producers(8):
        assert producer.send_settled("letters", "k") == (True, [])
        producer.disconnect()
    assert shared.matches("all letters") == matches + 8
    shared.write_rules(OTHER_RULES)
    shared.running.process.send_signal(signal.SIGHUP)
    until(lambda: before not in shared.rules_in_force())
    assert len(shared.rules_in_force()) == 1
    matches = shared.matches("every letter")
    for producer in shared.producers(8):
        assert producer.send_settled("letters", "k") == (True, [])
        producer.disconnect()
    assert shared.matches("every letter") == matches + 8


def test_a_changed_file_is_reloaded_by_all_workers(shared: Pair) -> None:
    (before,) = shared.rules_in_force()
    reloads = shared.metrics("rules_reload_total", result="ok")
    shared.write_rules(OTHER_RULES)
    until(lambda: before not in shared.rules_in_force())
    after = shared.metrics("rules_reload_total", result="ok")
    assert all(count > count_before for count, count_before in zip(after, reloads, strict=True))


def test_a_request_reloads_the_worker_that_receives_it(shared: Pair) -> None:
    shared.write_rules(BAD_RULES)
    status, answer = shared.reload(1)
    assert (status, answer["result"]) == (422, "error")
    assert "quee" in str(answer["errors"])
    assert shared.status(1)["last_reload"]["errors"] == answer["errors"]


def explained(pair: Pair, request: dict[str, str], accept: str) -> tuple[int, str]:
    """Return status and content of a response to POST /explain."""
    return request_page(f"http://127.0.0.1:{pair.running.admin}/explain", json.dumps(request).encode(), Accept=accept)


def test_explain_uses_the_rules_in_force_for_json_and_text(shared: Pair) -> None:
    request = {"vhost": shared.vhost, "exchange": "letters"}
    status, text = explained(shared, request, "application/json")
    explanation = json.loads(text)
    assert (status, explanation["queues"], explanation["rules"]) == (200, ["a"], shared.status()["rules"])
    status, text = explained(shared, request, "text/plain")
    assert status == 200
    assert "all letters" in text
    assert not text.startswith("{")
    assert not text.endswith("\n\n")
    shared.write_rules(OTHER_RULES)
    assert shared.reload()[0] == 200
    assert "every letter" in explained(shared, request, "text/plain")[1]
    # Bindings of clients are included, whichever worker declared them.
    producer = shared.producers(1)[0]
    queue = producer.declare("theirs", exclusive=True)
    producer.ask(commands.Queue.Bind(queue=queue, exchange="letters", arguments={}))
    until(lambda: set(json.loads(explained(shared, request, "application/json")[1])["queues"]) == {"a", queue})


def test_explain_queries_all_workers_and_names_one_that_does_not_respond(pair: Pair, tmp_path: Path) -> None:
    message = tmp_path / "message.yaml"
    message.write_text(f"vhost: {pair.vhost}\nexchange: letters\n")
    command = ["explain", "--config", str(pair.running.configuration), "--message", str(message)]
    done = oxproxy_here(*command, "--expect", "a")
    assert (done.returncode, done.stdout.count("all letters")) == (0, 1), done.stderr
    assert json.loads(oxproxy_here(*command, "--json").stdout)["rules"] == pair.status()["rules"]
    assert oxproxy_here(*command, "--expect", "elsewhere").returncode == 1
    pair.write_rules(BAD_RULES)
    os.kill(pair.processes()[1], signal.SIGKILL)
    pair.running.await_log("worker can't be started: files are invalid")
    done = oxproxy_here(*command)
    assert (done.returncode, done.stdout.count("all letters")) == (1, 1)
    assert f"http://127.0.0.1:{pair.running.admin + 1}/explain: " in done.stderr


def test_a_shadow_compares_the_publishes_of_each_worker(shared: Pair, tmp_path: Path) -> None:
    candidate = tmp_path / "candidate.yaml"
    candidate.write_text(
        f"vhost: {shared.vhost}\nexchanges: [{{name: letters, bindings: [{{queue: x, name: all}}]}}]\n"
    )
    admins = [f"http://127.0.0.1:{shared.running.admin + worker}" for worker in range(WORKERS)]
    arguments = [str(PROGRAM), "shadow", str(candidate), "--json", "--seconds", "60"]
    arguments += [part for admin in admins for part in ("--admin", admin)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as shadow:
        until(lambda: all(status["shadow"] for status in shared.statuses()))
        producers = shared.producers(8)
        for producer in producers:
            assert producer.send_settled("letters").acked
        shadow.send_signal(signal.SIGINT)
        reports = json.loads(shadow.communicate(timeout=30)[0])
    assert list(reports) == admins
    assert sum(report["different"] for report in reports.values()) == len(producers)
    assert shadow.returncode == 1
    assert [status["shadow"] for status in shared.statuses()] == [None] * WORKERS


@pytest.mark.parametrize("accept", ["application/json", "text/plain"])
def test_an_invalid_explain_request_is_an_error(shared: Pair, accept: str) -> None:
    status, text = explained(shared, {"exchanges": "letters"}, accept)
    assert status == 422
    assert any("exchanges: unknown key" in error for error in json.loads(text)["errors"])


def test_sigterm_drains_every_worker(pair: Pair) -> None:
    producers = pair.producers(6)
    ids = pair.processes()
    pair.running.process.send_signal(signal.SIGTERM)
    for producer in producers:
        closed = producer.closed(0)
        assert (closed.code, closed.text) == (320, "CONNECTION_FORCED - the proxy is shutting down")
        producer.disconnect()
    assert pair.running.process.wait(30) == 0
    assert not any(map(alive, ids))
    assert pair.running.log.read_text().count("event=stopped") == WORKERS + 1


def test_sigterm_ends_a_check_of_the_files(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k" * 32)
    running = serve(workers=WORKERS, audit={"hash": ["rk"], "hash_key_file": "key"})
    running.await_ready()
    (tmp_path / "key").unlink()
    os.mkfifo(tmp_path / "key")  # the check waits until a key is written
    running.process.send_signal(signal.SIGHUP)
    with (tmp_path / "key").open("w"):
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(20) == 0
    assert "event=stopped" in running.log.read_text()


def test_an_address_in_use_is_exit_status_2(shared: Pair) -> None:
    second = shared.running.configuration.with_name("second.yaml")
    settings = yaml.safe_load(shared.running.configuration.read_text())
    settings["admin"] = {"address": f"127.0.0.1:{free_ports(WORKERS)}"}
    second.write_text(yaml.safe_dump(settings))
    done = oxproxy("serve", "--config", second)
    assert done.returncode == 2
    assert f"listen on 127.0.0.1:{shared.running.port}: " in done.stderr


def test_refused_credentials_of_the_control_user_are_exit_status_2(broker: Broker, tmp_path: Path) -> None:
    upstream = broker.upstream | {"control": {"username": "nobody", "password": secrets.token_hex(4)}}
    (tmp_path / "rules.yaml").write_text(f"vhost: /\n{RULES}")
    running = Running(tmp_path, {"workers": WORKERS, "upstream": upstream, "rules": ["rules.yaml"]})
    assert running.process.wait(30) == 2


def test_an_invalid_configuration_of_another_broker_is_exit_status_2_before_any_worker(
    broker: Broker, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_text("none")
    (tmp_path / "rules.yaml").write_text("brokers:\n  far:\n    address: far:1\n    tls: {ca: ca.pem}\n")
    running = Running(tmp_path, {"workers": WORKERS, "rules": ["rules.yaml"]})
    assert running.process.wait(30) == 2
    log = running.log.read_text()
    assert f"{tmp_path / 'rules.yaml'}:4:11: brokers.far.tls.ca: {tmp_path / 'ca.pem'}: no " in log
    assert "worker started" not in log


def test_workers_need_no_temporary_directory(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(f"vhost: /\n{BAD_RULES}")
    (tmp_path / "oxproxy.yaml").write_text(yaml.safe_dump({"workers": WORKERS, "rules": ["rules.yaml"]}))
    # If no file may grow, no directory is usable for temporary files, as with a read-only file system.
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (0, 0))
    done = oxproxy("serve", "--config", tmp_path / "oxproxy.yaml", preexec_fn=limit)
    assert done.returncode == 2, done.stderr
    assert "quee: unknown key" in done.stderr


def test_all_workers_use_a_new_certificate_and_none_uses_one_without_its_key(broker: Broker, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    port = free_port()
    listen = [{"address": f"127.0.0.1:{port}", "tls": {"certificate": "cert.pem", "key": "key.pem"}}]
    first, second = authority.certificate("first.example"), authority.certificate("second.example")

    def install(certificate: Path, key: Path) -> None:
        (tmp_path / "cert.pem").write_bytes(certificate.read_bytes())
        (tmp_path / "key.pem").write_bytes(key.read_bytes())

    def certificate_names() -> set[str]:
        """Return the names in the certificates of 16 connections, almost certainly to both workers."""
        context = authority.client()
        context.check_hostname = False
        names = set()
        for _ in range(16):
            with (
                socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
                context.wrap_socket(plain) as secure,
            ):
                names |= set(re.findall(r"\w+\.example", str((secure.getpeercert() or {})["subjectAltName"])))
        return names

    install(*first)
    running = Running(tmp_path, {"workers": WORKERS, "listen": listen, "upstream": broker.upstream})
    running.port = port
    pair = Pair(broker, "/", running, tmp_path / "rules.yaml")
    try:
        running.await_ready()
        assert certificate_names() == {"first.example"}
        install(second[0], first[1])
        running.process.send_signal(signal.SIGHUP)
        running.await_log('event="reload failed" reason=signal')
        assert certificate_names() == {"first.example"}
        install(*second)
        running.process.send_signal(signal.SIGHUP)
        until(lambda: certificate_names() == {"second.example"})
        ends = {"side": "downstream", "file": str(tmp_path / "cert.pem")}
        until(
            lambda: (
                pair.metrics("certificate_expiry_timestamp_seconds", **ends)
                == [certificate_end(second[0].read_bytes())] * WORKERS
            )
        )
    finally:
        assert running.end() == 0
