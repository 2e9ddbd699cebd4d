"""Tests two sidecars with a real broker, which listen on the same address for producers (`reuse_port`)."""

from __future__ import annotations

import contextlib
import gzip
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from tests.broker.observed import Outside
from tests.private_broker import free_port
from tests.producer import Producer, until
from tests.rabbitmq import Broker
from tests.served import END_SECONDS, RULES, Running, Serve
from tests.sidecar import PROGRAM, oxproxy_here, request_page

OTHER_RULES = RULES.replace("all letters", "every letter")


class Pair(Outside):
    """Two sidecars with the same rules file, address for producers and audit directory, as `sidecars`."""

    def __init__(self, broker: Broker, vhost: str, folder: Path) -> None:
        super().__init__(broker, vhost)
        self.folder = folder
        self.port = free_port()
        self.rules = folder / "rules.yaml"
        self.write_rules(RULES)
        (folder / "audit").mkdir()
        self.sidecars = [self.start(name) for name in ("first", "second")]
        self.opened: list[Producer] = []

    def start(self, name: str) -> Running:
        """Start a sidecar with its own admin address and name in the audit log."""
        (self.folder / name).mkdir(exist_ok=True)
        settings = {
            "listen": [{"address": f"127.0.0.1:{self.port}", "reuse_port": True}],
            "upstream": self.broker.upstream,
            "rules": [str(self.rules)],
            "audit": {"directory": str(self.folder / "audit"), "instance": name},
        }
        return Running(self.folder / name, settings)

    @property
    def admins(self) -> list[str]:
        return [f"http://127.0.0.1:{sidecar.admin}" for sidecar in self.sidecars]

    @property
    def admin_arguments(self) -> list[str]:
        return [part for admin in self.admins for part in ("--admin", admin)]

    def write_rules(self, text: str) -> None:
        self.rules.write_text(f"vhost: {self.vhost}\n{text}")

    def statuses(self) -> list[dict[str, Any]]:  # Any: JSON
        return [json.loads(sidecar.get("/status")[1]) for sidecar in self.sidecars]

    def connections(self) -> list[int]:
        """Return the number of producers of each sidecar."""
        sample = 'oxproxy_connections{side="downstream"} '
        pages = [sidecar.get("/metrics")[1] for sidecar in self.sidecars]
        return [int(float(page.partition(sample)[2].partition("\n")[0])) for page in pages]

    def producers(self, count: int) -> list[Producer]:
        """Connect producers. The probability that the kernel assigns all to one sidecar is 2 ** (1 - count)."""
        made = [Producer(self.port, self.vhost).open(confirm=True) for _ in range(count)]
        self.opened += made
        return made


@pytest.fixture
def pair(broker: Broker, vhost: str, tmp_path: Path) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        pair = Pair(broker, vhost, tmp_path)
        for sidecar in pair.sidecars:
            stack.callback(sidecar.process.wait, END_SECONDS)
            stack.callback(sidecar.process.kill)
        for sidecar in pair.sidecars:
            sidecar.await_ready()
        yield pair
        for producer in pair.opened:
            producer.disconnect()


def test_both_sidecars_forward_messages_and_write_audit_segments_of_their_own(pair: Pair) -> None:
    producers = pair.producers(16)
    for number, producer in enumerate(producers):
        assert producer.send_settled("letters", "k", body=b"%d" % number) == (True, [])
    with Producer(pair.broker.port, pair.vhost).open() as direct:
        assert {int(message.body) for message in direct.take("a")} == set(range(16))
    counts = pair.connections()
    assert sum(counts) == 16
    assert all(counts)
    for sidecar in pair.sidecars:
        sidecar.process.send_signal(signal.SIGTERM)
    for producer in producers:
        closed = producer.closed(0)
        assert (closed.code, closed.text) == (320, "CONNECTION_FORCED - the proxy is shutting down")
        producer.disconnect()
    assert [sidecar.process.wait(END_SECONDS) for sidecar in pair.sidecars] == [0, 0]
    segments = (gzip.decompress(path.read_bytes()) for path in (pair.folder / "audit").rglob("[!_.]*.gz"))
    records = [json.loads(line) for segment in segments for line in segment.splitlines()]
    writers = [record["proxy"] for record in records if record["kind"] == "publish"]
    assert [writers.count("first"), writers.count("second")] == counts


def closed_by_peer(producer: Producer) -> bool:
    """Return whether the sidecar has closed the socket; the kernel does so before the process has ended."""
    with contextlib.suppress(ConnectionResetError):
        return not producer.silent()
    return True


def test_the_other_sidecar_continues_when_one_is_killed_and_it_joins_again(pair: Pair) -> None:
    producers = pair.producers(12)
    counts = pair.connections()
    killed = pair.sidecars[0].process
    killed.kill()
    killed.wait(END_SECONDS)
    left = [producer for producer in producers if not closed_by_peer(producer)]
    assert len(left) == counts[1]
    for producer in (*left, *pair.producers(4)):  # the kernel sends all new connections to the other sidecar
        assert producer.send_settled("letters", "k") == (True, [])
    pair.sidecars[0] = pair.start("first")
    try:
        pair.sidecars[0].await_ready()
        pair.producers(12)
        assert all(pair.connections())
    finally:
        assert pair.sidecars[0].end() == 0


def test_a_changed_rules_file_is_reloaded_by_both_sidecars(pair: Pair) -> None:
    before = {status["rules"] for status in pair.statuses()}
    pair.write_rules(OTHER_RULES)
    until(lambda: before.isdisjoint(status["rules"] for status in pair.statuses()))
    assert len({status["rules"] for status in pair.statuses()}) == 1


def explained(pair: Pair, request: dict[str, str], accept: str) -> tuple[int, str]:
    """Return status and content of a response to POST /explain."""
    return request_page(f"{pair.admins[0]}/explain", json.dumps(request).encode(), Accept=accept)


def test_explain_uses_the_rules_in_force_for_json_and_text_and_refuses_invalid_requests(pair: Pair) -> None:
    request = {"vhost": pair.vhost, "exchange": "letters"}
    status, text = explained(pair, request, "application/json")
    explanation = json.loads(text)
    assert (status, explanation["queues"], explanation["rules"]) == (200, ["a"], pair.statuses()[0]["rules"])
    status, text = explained(pair, request, "text/plain")
    assert status == 200
    assert "all letters" in text
    assert not text.startswith("{")
    assert not text.endswith("\n\n")
    for accept in ("application/json", "text/plain"):
        status, text = explained(pair, {"exchanges": "letters"}, accept)
        assert status == 422
        assert any("exchanges: unknown key" in error for error in json.loads(text)["errors"])
    pair.write_rules(OTHER_RULES)
    assert request_page(f"{pair.admins[0]}/-/reload", b"")[0] == 200
    assert "every letter" in explained(pair, request, "text/plain")[1]
    # Bindings of clients are included, whichever sidecar declared them.
    producer = pair.producers(1)[0]
    queue = producer.declare("theirs", exclusive=True)
    producer.ask(commands.Queue.Bind(queue=queue, exchange="letters", arguments={}))
    until(lambda: set(json.loads(explained(pair, request, "application/json")[1])["queues"]) == {"a", queue})


def test_explain_queries_both_sidecars_and_names_one_that_does_not_respond(pair: Pair, tmp_path: Path) -> None:
    message = tmp_path / "message.yaml"
    message.write_text(f"vhost: {pair.vhost}\nexchange: letters\n")
    command = ["explain", *pair.admin_arguments, "--message", str(message)]
    done = oxproxy_here(*command, "--expect", "a")
    assert (done.returncode, done.stdout.count("all letters")) == (0, 1), done.stderr
    assert json.loads(oxproxy_here(*command, "--json").stdout)["rules"] == pair.statuses()[0]["rules"]
    assert oxproxy_here(*command, "--expect", "elsewhere").returncode == 1
    assert pair.sidecars[1].end() == 0
    done = oxproxy_here(*command)
    assert (done.returncode, done.stdout.count("all letters")) == (1, 1)
    assert f"{pair.admins[1]}/explain: " in done.stderr


def test_a_shadow_compares_the_publishes_of_both_sidecars(pair: Pair, tmp_path: Path) -> None:
    candidate = tmp_path / "candidate.yaml"
    candidate.write_text(f"vhost: {pair.vhost}\nexchanges: [{{name: letters, bindings: [{{queue: x, name: all}}]}}]\n")
    arguments = [str(PROGRAM), "shadow", str(candidate), "--json", "--seconds", "60", *pair.admin_arguments]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as shadow:
        until(lambda: all(status["shadow"] for status in pair.statuses()))
        producers = pair.producers(8)
        for producer in producers:
            assert producer.send_settled("letters").acked
        shadow.send_signal(signal.SIGINT)
        reports = json.loads(shadow.communicate(timeout=30)[0])
    assert list(reports) == pair.admins
    assert sum(report["different"] for report in reports.values()) == len(producers)
    assert shadow.returncode == 1
    assert [status["shadow"] for status in pair.statuses()] == [None, None]


@pytest.mark.parametrize("reuse_port", [False, True], ids=["by the other sidecar", "by the second sidecar"])
def test_an_address_is_shared_only_if_both_sidecars_permit_it(serve: Serve, reuse_port: bool, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    serve(listen=[{"address": address, "reuse_port": reuse_port}]).await_log("event=ready")
    (tmp_path / "second").mkdir()
    second = serve(folder=tmp_path / "second", listen=[{"address": address, "reuse_port": not reuse_port}])
    assert second.process.wait(END_SECONDS) == 2
    assert f"listen[0].address: can't listen on {address}: Address already in use" in second.log.read_text()
