"""Two workers before a real broker: one address for producers, an admin port for each worker."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
from pathlib import Path

import pytest
import yaml
from pamqp import commands

from proxy.net.tls import certificate_end
from tests.certificates import Authority
from tests.private_broker import free_port, free_ports
from tests.producer import Producer, until
from tests.rabbitmq import Broker
from tests.served import RULES, WORKERS, Pair, Running, alive
from tests.sidecar import PROGRAM, oxproxy, request_page

OTHER_RULES = RULES.replace("all letters", "every letter")
BAD_RULES = RULES.replace("queue: a", "quee: a")


def test_messages_go_through_both_workers_and_their_pages_of_metrics_add_up(pair: Pair) -> None:
    producers = pair.producers(16)  # distributed by the kernel: all to one of two would be a chance of 1 in 32,768
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
        producer.vanish()
    until(lambda: pair.connected() == 0)
    assert pair.running.end() == 0
    audited = pair.rules.parent / "audit"
    instances = {f"pair-{number}" for number in range(WORKERS)}
    assert {name for name in instances if any(name in path.name for path in audited.rglob("*"))} == instances


def test_a_hangup_makes_good_rules_hold_in_all_workers_and_bad_ones_in_none(pair: Pair) -> None:
    (before,) = pair.rules_in_force()
    pair.write_rules(BAD_RULES)
    pair.running.process.send_signal(signal.SIGHUP)
    pair.running.await_log('event="reload failed" reason=signal errors=')
    assert "quee: unknown key" in pair.running.log.read_text()
    assert pair.rules_in_force() == {before}
    for producer in pair.producers(8):
        assert producer.send_settled("letters", "k") == (True, [])
        producer.vanish()
    assert pair.matches("all letters") == 8
    pair.write_rules(OTHER_RULES)
    pair.running.process.send_signal(signal.SIGHUP)
    until(lambda: before not in pair.rules_in_force())
    assert len(pair.rules_in_force()) == 1
    for producer in pair.producers(8):
        assert producer.send_settled("letters", "k") == (True, [])
        producer.vanish()
    assert pair.matches("every letter") == 8


def test_a_changed_file_is_taken_by_all_workers(pair: Pair) -> None:
    (before,) = pair.rules_in_force()
    pair.write_rules(OTHER_RULES)
    until(lambda: before not in pair.rules_in_force())
    assert all(count >= 1 for count in pair.metrics("rules_reload_total", result="ok"))


def test_a_request_reloads_the_worker_that_it_is_sent_to(pair: Pair) -> None:
    pair.write_rules(BAD_RULES)
    status, answer = pair.reload(1)
    assert (status, answer["result"]) == (422, "error")
    assert "quee" in str(answer["errors"])
    assert pair.status(1)["last_reload"]["errors"] == answer["errors"]


def explained(pair: Pair, question: dict[str, str], accept: str) -> tuple[int, str]:
    """Status and text of an answer."""
    return request_page(f"http://127.0.0.1:{pair.running.admin}/explain", json.dumps(question).encode(), Accept=accept)


def test_explain_answers_by_the_rules_in_force_in_both_forms(pair: Pair) -> None:
    question = {"vhost": pair.vhost, "exchange": "letters"}
    status, text = explained(pair, question, "application/json")
    found = json.loads(text)
    assert (status, found["queues"], found["rules"]) == (200, ["a"], pair.status()["rules"])
    status, text = explained(pair, question, "text/plain")
    assert status == 200
    assert "all letters" in text
    assert not text.startswith("{")
    assert not text.endswith("\n\n")
    pair.write_rules(OTHER_RULES)
    assert pair.reload()[0] == 200
    assert "every letter" in explained(pair, question, "text/plain")[1]
    # What clients declared is among it, whichever worker they came through.
    producer = pair.producers(1)[0]
    queue = producer.declare("theirs")
    producer.ask(commands.Queue.Bind(queue=queue, exchange="letters", arguments={}))
    until(lambda: set(json.loads(explained(pair, question, "application/json")[1])["queues"]) == {"a", queue})


def test_explain_asks_all_workers_and_names_one_that_does_not_answer(pair: Pair, tmp_path: Path) -> None:
    message = tmp_path / "message.yaml"
    message.write_text(f"vhost: {pair.vhost}\nexchange: letters\n")
    command = ["explain", "--config", str(pair.running.configuration), "--message", str(message)]
    done = oxproxy(*command, "--expect", "a")
    assert (done.returncode, done.stdout.count("all letters")) == (0, 1), done.stderr
    assert json.loads(oxproxy(*command, "--json").stdout)["rules"] == pair.status()["rules"]
    assert oxproxy(*command, "--expect", "elsewhere").returncode == 1
    pair.write_rules(BAD_RULES)
    os.kill(pair.processes()[1], signal.SIGKILL)
    pair.running.await_log("worker can't be started: files are invalid")
    done = oxproxy(*command)
    assert (done.returncode, done.stdout.count("all letters")) == (1, 1)
    assert f"http://127.0.0.1:{pair.running.admin + 1}/explain: " in done.stderr


def test_a_shadow_compares_what_each_worker_carries(pair: Pair, tmp_path: Path) -> None:
    candidate = tmp_path / "candidate.yaml"
    candidate.write_text(f"vhost: {pair.vhost}\nexchanges: [{{name: letters, bindings: [{{queue: x, name: all}}]}}]\n")
    admins = [f"http://127.0.0.1:{pair.running.admin + worker}" for worker in range(WORKERS)]
    arguments = [str(PROGRAM), "shadow", str(candidate), "--json", "--seconds", "60"]
    arguments += [part for admin in admins for part in ("--admin", admin)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as shadow:
        until(lambda: all(status["shadow"] for status in pair.statuses()))
        producers = pair.producers(8)
        for producer in producers:
            assert producer.send_settled("letters").acked
        shadow.send_signal(signal.SIGINT)
        reports = json.loads(shadow.communicate(timeout=30)[0])
    assert list(reports) == admins
    assert sum(report["different"] for report in reports.values()) == len(producers)
    assert shadow.returncode == 1
    assert [status["shadow"] for status in pair.statuses()] == [None] * WORKERS


@pytest.mark.parametrize("accept", ["application/json", "text/plain"])
def test_a_question_that_is_none_is_said_to_be_none(pair: Pair, accept: str) -> None:
    status, text = explained(pair, {"exchanges": "letters"}, accept)
    assert status == 422
    assert any("exchanges: unknown key" in error for error in json.loads(text)["errors"])


def test_sigterm_drains_every_worker(pair: Pair) -> None:
    producers = pair.producers(6)
    ids = pair.processes()
    pair.running.process.send_signal(signal.SIGTERM)
    for producer in producers:
        closed = producer.closed(0)
        assert (closed.code, closed.text) == (320, "CONNECTION_FORCED - the proxy is shutting down")
        producer.vanish()
    assert pair.running.process.wait(30) == 0
    assert not any(map(alive, ids))
    assert pair.running.log.read_text().count("event=stopped") == WORKERS + 1


def test_an_address_that_is_taken_ends_the_start_with_2(pair: Pair) -> None:
    second = pair.running.configuration.with_name("second.yaml")
    settings = yaml.safe_load(pair.running.configuration.read_text())
    settings["admin"] = {"address": f"127.0.0.1:{free_ports(WORKERS)}"}
    second.write_text(yaml.safe_dump(settings))
    done = oxproxy("serve", "--config", second)
    assert done.returncode == 2
    assert f"listen on 127.0.0.1:{pair.running.port}: " in done.stderr


def test_a_broker_that_refuses_the_control_user_ends_the_start_with_2(broker: Broker, tmp_path: Path) -> None:
    upstream = broker.upstream | {"control": {"username": "nobody", "password": secrets.token_hex(4)}}
    (tmp_path / "rules.yaml").write_text(f"vhost: /\n{RULES}")
    running = Running(tmp_path, {"workers": WORKERS, "upstream": upstream, "rules": ["rules.yaml"]})
    assert running.process.wait(30) == 2


def test_another_broker_that_can_not_be_used_ends_the_start_with_2_before_any_worker(
    broker: Broker, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_text("none")
    (tmp_path / "rules.yaml").write_text("brokers:\n  far:\n    address: far:1\n    tls: {ca: ca.pem}\n")
    running = Running(tmp_path, {"workers": WORKERS, "rules": ["rules.yaml"]})
    assert running.process.wait(30) == 2
    said = running.log.read_text()
    assert f"{tmp_path / 'rules.yaml'}:4:11: brokers.far.tls.ca: {tmp_path / 'ca.pem'}: no " in said
    assert "worker started" not in said


def test_a_new_certificate_is_shown_by_all_workers_and_one_without_its_key_by_none(
    broker: Broker, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "authority")
    port = free_port()
    listen = [{"address": f"127.0.0.1:{port}", "tls": {"certificate": "cert.pem", "key": "key.pem"}}]
    first, second = authority.certificate("first.example"), authority.certificate("second.example")

    def install(certificate: Path, key: Path) -> None:
        (tmp_path / "cert.pem").write_bytes(certificate.read_bytes())
        (tmp_path / "key.pem").write_bytes(key.read_bytes())

    def shown() -> set[str]:
        """Names in the certificates that sixteen connections are shown: those of both workers, all but surely."""
        context = authority.client()
        context.check_hostname = False
        found = set()
        for _ in range(16):
            with (
                socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
                context.wrap_socket(plain) as secure,
            ):
                found |= set(re.findall(r"\w+\.example", str((secure.getpeercert() or {})["subjectAltName"])))
        return found

    install(*first)
    running = Running(tmp_path, {"workers": WORKERS, "listen": listen, "upstream": broker.upstream})
    running.port = port
    pair = Pair(broker, "/", running, tmp_path / "rules.yaml")
    try:
        running.await_ready()
        assert shown() == {"first.example"}
        install(second[0], first[1])
        running.process.send_signal(signal.SIGHUP)
        running.await_log('event="reload failed" reason=signal')
        assert shown() == {"first.example"}
        install(*second)
        running.process.send_signal(signal.SIGHUP)
        until(lambda: shown() == {"second.example"})
        ends = {"side": "downstream", "file": str(tmp_path / "cert.pem")}
        until(
            lambda: (
                pair.metrics("certificate_expiry_timestamp_seconds", **ends)
                == [certificate_end(second[0].read_bytes())] * WORKERS
            )
        )
    finally:
        assert running.end() == 0
