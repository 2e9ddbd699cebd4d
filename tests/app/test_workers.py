"""Two workers before a real broker: one sidecar to producers, operators and Prometheus."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pamqp import commands

from proxy.net.tls import certificate_end
from tests.app.test_sidecar import RULES, Running
from tests.broker.world import Outside
from tests.certificates import Authority
from tests.private_broker import free_port
from tests.producer import Producer, until
from tests.rabbitmq import Broker
from tests.sidecar import PROGRAM

WORKERS = 2
OTHER_RULES = RULES.replace("all letters", "every letter")
BAD_RULES = RULES.replace("queue: a", "quee: a")


class Pair(Outside):
    """A sidecar of two workers.

    Args:
        broker: the broker.
        vhost: virtual host of the rules.
        running: the sidecar.
        rules: its rules file.
    """

    def __init__(self, broker: Broker, vhost: str, running: Running, rules: Path) -> None:
        super().__init__(broker, vhost)
        self.running = running
        self.rules = rules
        self.opened: list[Producer] = []

    def write_rules(self, text: str) -> None:
        self.rules.write_text(f"vhost: {self.vhost}\n{text}")

    def status(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.running.get("/status")[1])
        return found

    def processes(self) -> list[int]:
        """Process ids of the workers; 0 for one that is being started."""
        workers = self.status()["workers"]
        assert isinstance(workers, list)
        return [one["process"] or 0 for one in workers]

    def metric(self, name: str, **labels: str) -> float:
        """Give the number of a series; 0 where there is none."""
        wanted = {f'{key}="{text}"' for key, text in labels.items()}
        for line in self.running.get("/metrics")[1].splitlines():
            start, _, number = line.rpartition(" ")
            found, _, rest = start.partition("{")
            if found == f"oxproxy_{name}" and wanted == set(filter(None, rest.rstrip("}").split(","))):
                return float(number)
        return 0.0

    def published(self) -> float:
        return self.metric("publishes_total", vhost=self.vhost, exchange="letters", outcome="routed")

    def connected(self) -> float:
        return self.metric("connections", side="downstream")

    def matches(self, binding: str) -> float:
        return self.metric("binding_matches_total", exchange="letters", binding=binding)

    def reload(self) -> tuple[int, dict[str, object]]:
        request = urllib.request.Request(f"http://127.0.0.1:{self.running.admin}/-/reload", b"", method="POST")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def producers(self, count: int) -> list[Producer]:
        made = [Producer(self.running.port, self.vhost).open(confirm=True) for _ in range(count)]
        self.opened += made
        return made


#: Runs first in each process of a sidecar: the file `fork` lets one start of a worker fail as on a system that has no
#: process left, `odd` makes each worker's /readyz fail as long as it is there.
FAULTS = """
import asyncio, os, pathlib, sys

folder = pathlib.Path(os.environ["FAULTS"])
if "--worker" in sys.orig_argv:
    from proxy.admin.server import AdminServer
    answer = AdminServer._get_readyz
    async def get_readyz(self, request):
        if (folder / "odd").exists():
            raise RuntimeError("a fault of the test")
        return await answer(self, request)
    AdminServer._get_readyz = get_readyz
elif "serve" in sys.orig_argv:
    start = asyncio.create_subprocess_exec
    async def start_or_fail(*arguments, **more):
        if (folder / "fork").exists():
            (folder / "fork").unlink()
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return await start(*arguments, **more)
    asyncio.create_subprocess_exec = start_or_fail
"""


@pytest.fixture
def faulty(broker: Broker, vhost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """A sidecar that is just being started, whose processes have the faults that files in its folder ask for."""
    (tmp_path / "sitecustomize.py").write_text(FAULTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FAULTS", str(tmp_path))
    for name in ("fork", "odd"):
        (tmp_path / name).touch()
    control = {"username": broker.username, "password": broker.password}
    upstream = {"address": broker.address, "control": control, "management": broker.management}
    rules = tmp_path / "rules.yaml"
    rules.write_text(f"vhost: {vhost}\n{RULES}")
    running = Running(tmp_path, {"workers": WORKERS, "upstream": upstream, "rules": ["rules.yaml"]})
    try:
        yield Pair(broker, vhost, running, rules)
    finally:
        if running.process.poll() is None:
            running.end()


@pytest.fixture
def pair(broker: Broker, vhost: str, tmp_path: Path) -> Iterator[Pair]:
    control = {"username": broker.username, "password": broker.password}
    (tmp_path / "audit").mkdir()
    settings = {
        "workers": WORKERS,
        "upstream": {"address": broker.address, "control": control, "management": broker.management},
        "rules": ["rules.yaml"],
        "audit": {"directory": "audit", "instance": "pair"},
    }
    rules = tmp_path / "rules.yaml"
    rules.write_text(f"vhost: {vhost}\n{RULES}")
    running = Running(tmp_path, settings)
    try:
        running.await_ready()
        pair = Pair(broker, vhost, running, rules)
        yield pair
        for producer in pair.opened:
            producer.vanish()
    finally:
        if running.process.poll() is None:
            running.end()


def test_messages_go_through_both_workers_and_the_page_of_metrics_is_that_of_one_process(pair: Pair) -> None:
    producers = pair.producers(16)  # dealt out by the kernel: all to one of two would be a chance of 1 in 32,768
    for number, producer in enumerate(producers):
        assert producer.send_settled("letters", "k", body=b"%d" % number) == (True, [])
    with Producer(pair.broker.port, pair.vhost).open() as beside:
        assert {int(message.body) for message in beside.take("a")} == set(range(16))
    assert pair.published() == 16
    assert pair.connected() == 16
    assert pair.matches("all letters") == 16
    assert pair.metric("workers") == WORKERS
    assert pair.metric("rules_info", version=str(pair.status()["rules"])) == 1
    page = pair.running.get("/metrics")[1]
    headlines = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
    assert len(headlines) == len(set(headlines))
    assert "worker" not in "".join(re.findall(r"\{[^}]*\}", page))
    assert pair.metric("confirms_total", result="acked") == 16
    by_worker = [one["status"] for one in pair.status()["workers"]]  # type: ignore[attr-defined]
    assert all(status["ready"] for status in by_worker)
    for producer in producers:
        producer.vanish()
    until(lambda: pair.connected() == 0)
    assert pair.running.end() == 0
    audited = pair.rules.parent / "audit"
    assert {name for name in ("pair-1", "pair-2") if any(name in path.name for path in audited.rglob("*"))} == {
        "pair-1",
        "pair-2",
    }


def test_a_worker_that_is_killed_comes_back_and_the_other_goes_on_and_no_sum_goes_down(pair: Pair) -> None:
    producers = pair.producers(12)
    for producer in producers:
        assert producer.send_settled("letters", "k") == (True, [])
    assert pair.published() == 12
    killed, other = pair.processes()
    os.kill(killed, signal.SIGKILL)
    until(lambda: killed not in pair.processes())
    alive = [producer for producer in producers if not gone(producer)]
    assert 0 < len(alive) < 12
    for producer in alive:
        assert producer.send_settled("letters", "k") == (True, [])
    until(lambda: pair.running.get("/readyz")[0] == 200 and 0 not in pair.processes())
    assert other in pair.processes()
    assert pair.published() == 12 + len(alive)
    assert pair.metric("worker_restarts_total") == 1
    more = pair.producers(12)
    for producer in more:
        assert producer.send_settled("letters", "k") == (True, [])
    assert pair.published() == 24 + len(alive)
    assert pair.connected() == 12 + len(alive)
    assert "worker ended by itself" in pair.running.log.read_text()
    for producer in (*producers, *more):
        producer.vanish()


def gone(producer: Producer) -> bool:
    """Whether the other side has closed the socket, seen without waiting for what does not come."""
    producer.socket.settimeout(0.2)
    try:
        return producer.socket.recv(65536) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True
    finally:
        producer.socket.settimeout(30)


def test_a_reload_holds_in_all_workers_and_a_bad_file_in_none(pair: Pair) -> None:
    before = pair.status()["rules"]
    pair.write_rules(BAD_RULES)
    status, said = pair.reload()
    assert status == 422
    assert said["rules"] == before
    assert "quee" in str(said["errors"])
    assert pair.metric("rules_reload_total", result="error") >= 1
    last = pair.status()["last_reload"]
    assert isinstance(last, dict)
    assert last["errors"] == said["errors"]
    assert "reload failed" in pair.running.log.read_text()
    for producer in pair.producers(8):
        assert producer.send_settled("letters", "k") == (True, [])
        producer.vanish()
    assert pair.matches("all letters") == 8
    pair.write_rules(OTHER_RULES)
    status, said = pair.reload()
    assert (status, said["errors"]) == (200, [])
    assert said["rules"] != before
    workers = pair.status()["workers"]
    assert isinstance(workers, list)
    assert {one["status"]["rules"] for one in workers} == {said["rules"]}
    for producer in pair.producers(8):
        assert producer.send_settled("letters", "k") == (True, [])
        producer.vanish()
    assert pair.matches("every letter") == 8
    assert pair.metric("rules_reload_total", result="ok") >= 1


def test_a_changed_file_and_sighup_reach_all_workers(pair: Pair) -> None:
    before = pair.status()["rules"]
    pair.write_rules(OTHER_RULES)
    until(lambda: pair.status()["rules"] != before)
    pair.write_rules(RULES)
    pair.running.process.send_signal(signal.SIGHUP)
    until(lambda: pair.status()["rules"] == before)
    workers = pair.status()["workers"]
    assert isinstance(workers, list)
    assert {one["status"]["rules"] for one in workers} == {before}
    for worker in workers:
        os.kill(worker["process"], signal.SIGHUP)  # as a terminal does that is closed: not for them to judge
    assert pair.reload()[0] == 200
    workers = pair.status()["workers"]
    assert isinstance(workers, list)
    assert [one["restarts"] for one in workers] == [0, 0]


def explained(pair: Pair, question: dict[str, str], accept: str) -> tuple[int, str, str]:
    """Status, content type and text of an answer."""
    url = f"http://127.0.0.1:{pair.running.admin}/explain"
    request = urllib.request.Request(url, json.dumps(question).encode(), {"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers.get_content_type(), answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers.get_content_type(), error.read().decode()


def test_explain_answers_by_the_rules_in_force_in_both_forms(pair: Pair) -> None:
    question = {"vhost": pair.vhost, "exchange": "letters"}
    status, kind, text = explained(pair, question, "application/json")
    found = json.loads(text)
    assert (status, kind, found["queues"], found["rules"]) == (200, "application/json", ["a"], pair.status()["rules"])
    status, kind, text = explained(pair, question, "text/plain")
    assert (status, kind) == (200, "text/plain")
    assert "all letters" in text
    assert not text.startswith("{")
    assert not text.endswith("\n\n")
    pair.write_rules(OTHER_RULES)
    assert pair.reload()[0] == 200
    assert "every letter" in explained(pair, question, "text/plain")[2]
    # What clients declared is among it, whichever worker they came through.
    producer = pair.producers(1)[0]
    queue = producer.declare("theirs")
    producer.ask(commands.Queue.Bind(queue=queue, exchange="letters", arguments={}))
    until(lambda: set(json.loads(explained(pair, question, "application/json")[2])["queues"]) == {"a", queue})


@pytest.mark.parametrize("accept", ["application/json", "text/plain"])
def test_a_question_that_is_none_is_said_to_be_none(pair: Pair, accept: str) -> None:
    status, kind, text = explained(pair, {"exchanges": "letters"}, accept)
    assert (status, kind) == (422, "application/json")
    assert any("exchanges: unknown key" in error for error in json.loads(text)["errors"])


def test_a_shadow_compares_what_all_workers_carry(pair: Pair) -> None:
    def ask(method: str, body: bytes | None = None) -> tuple[int, dict[str, object]]:
        request = urllib.request.Request(f"http://127.0.0.1:{pair.running.admin}/-/shadow", body, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    assert ask("POST", b"exchanges: 1")[0] == 422
    assert ask("GET")[0] == 404
    candidate = f"vhost: {pair.vhost}\nexchanges: [{{name: letters, bindings: [{{queue: elsewhere, name: all}}]}}]\n"
    assert ask("POST", candidate.encode())[0] == 200
    producers = pair.producers(8)
    for producer in producers:
        assert producer.send_settled("letters").acked
    status, found = ask("DELETE")
    assert (status, found["compared"], found["different"]) == (200, len(producers), len(producers))
    assert ask("GET")[0] == 404


def test_sigterm_drains_every_worker(pair: Pair) -> None:
    producers = pair.producers(6)
    ids = pair.processes()
    pair.running.process.send_signal(signal.SIGTERM)
    for producer in producers:
        closed = producer.closed(0)
        assert (closed.code, closed.text) == (320, "CONNECTION_FORCED - the proxy is shutting down")
        producer.vanish()
    assert pair.running.process.wait(30) == 0
    until(lambda: not any(map(alive, ids)))
    assert pair.running.log.read_text().count("event=stopped") == WORKERS + 1


def alive(process: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, 0)
        return True
    return False


def test_workers_do_not_outlive_who_started_them(pair: Pair) -> None:
    ids = pair.processes()
    pair.running.process.kill()
    pair.running.process.wait(30)
    until(lambda: not any(map(alive, ids)))


def test_an_address_that_is_taken_ends_the_start_with_2(pair: Pair) -> None:
    second = pair.running.configuration.with_name("second.yaml")
    settings = yaml.safe_load(pair.running.configuration.read_text())
    settings["admin"] = {"address": f"127.0.0.1:{free_port()}"}
    second.write_text(yaml.safe_dump(settings))
    done = subprocess.run(
        [str(PROGRAM), "serve", "--config", str(second)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    assert f"listen on 127.0.0.1:{pair.running.port}: " in done.stderr


def test_a_broker_that_refuses_the_control_user_ends_the_start_with_2(broker: Broker, tmp_path: Path) -> None:
    control = {"username": "nobody", "password": secrets.token_hex(4)}
    upstream = {"address": broker.address, "control": control, "management": broker.management}
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
    assert f"{tmp_path / 'rules.yaml'}:4:11: brokers.far.tls.ca: {tmp_path / 'ca.pem'}: seen no" in said
    assert "worker started" not in said


def test_a_new_certificate_is_shown_by_all_workers_and_one_without_its_key_by_none(
    broker: Broker, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "authority")
    port = free_port()
    listen = [{"address": f"127.0.0.1:{port}", "tls": {"certificate": "cert.pem", "key": "key.pem"}}]
    control = {"username": broker.username, "password": broker.password}
    upstream = {"address": broker.address, "control": control, "management": broker.management}
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
    running = Running(tmp_path, {"workers": WORKERS, "listen": listen, "upstream": upstream})
    running.port = port
    pair = Pair(broker, "/", running, tmp_path / "rules.yaml")
    try:
        running.await_ready()
        assert shown() == {"first.example"}
        install(second[0], first[1])
        assert pair.reload()[0] == 422
        assert shown() == {"first.example"}
        install(*second)
        assert pair.reload()[0] == 200
        assert shown() == {"second.example"}
        ends = {"side": "downstream", "file": str(tmp_path / "cert.pem")}
        until(
            lambda: (
                pair.metric("certificate_expiry_timestamp_seconds", **ends) == certificate_end(second[0].read_bytes())
            )
        )
    finally:
        assert running.end() == 0


# -- what goes wrong once ----------------------------------------------------------------------------------------------


def test_a_worker_that_can_not_be_started_once_is_started_again(faulty: Pair, tmp_path: Path) -> None:
    (tmp_path / "odd").unlink()
    faulty.running.await_log("Resource temporarily unavailable")
    faulty.running.await_ready()
    assert all(faulty.processes())
    (tmp_path / "fork").touch()
    os.kill(faulty.processes()[1], signal.SIGKILL)
    until(lambda: not (tmp_path / "fork").exists())
    until(lambda: all(faulty.processes()) and faulty.running.ready())
    assert faulty.metric("worker_restarts_total") == 1
    assert faulty.metric("workers") == WORKERS


def test_rules_are_followed_though_readyz_has_answered_oddly(faulty: Pair, tmp_path: Path) -> None:
    running = faulty.running
    until(lambda: "answers with status 500" in running.get("/readyz")[1])
    (tmp_path / "odd").unlink()
    running.await_log(f"workers={WORKERS} rules=")
    faulty.write_rules(OTHER_RULES)
    running.await_log("event=reloaded reason=file")
    (tmp_path / "odd").touch()
    assert running.get("/readyz")[0] == 503
    assert running.get("/status")[0] == 200
    assert running.get("/metrics")[0] == 200
    (tmp_path / "odd").unlink()
    running.await_ready()
    faulty.write_rules(RULES)
    until(lambda: running.log.read_text().count("event=reloaded reason=file") == 2)
