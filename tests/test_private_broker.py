"""Tests that the private broker is isolated from other brokers, and ends with the process that started it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import private_broker
from tests.private_broker import BrokerFailed, BrokerMissing, PrivateBroker
from tests.rabbitmq import broker_of_environment

ROOT = Path(__file__).resolve().parents[1]

#: Timeout in seconds for the end of the broker.
GONE_SECONDS = 20.0

STARTER = """
import sys, time
from tests.private_broker import PrivateBroker
with PrivateBroker() as broker:
    print(broker.folder, broker.port, broker._epmd_port, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def starter() -> Iterator[subprocess.Popen[str]]:
    """Another process that starts a private broker and prints its directory and ports."""
    if not private_broker.program("rabbitmq-server"):
        pytest.skip("rabbitmq-server is not installed (run `make setup`)")
    process = subprocess.Popen(
        [sys.executable, "-c", STARTER], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.broker
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.matrix)])
def test_the_broker_ends_when_its_starter_is_killed_or_interrupted(
    starter: subprocess.Popen[str], number: signal.Signals
) -> None:
    assert starter.stdout is not None
    folder, *numbers = starter.stdout.readline().split()
    ports = [int(text) for text in numbers]
    assert all(map(listens, ports))
    starter.send_signal(number)
    deadline = time.monotonic() + GONE_SECONDS
    while time.monotonic() < deadline and (Path(folder).exists() or any(map(listens, ports))):
        time.sleep(0.05)
    assert not Path(folder).exists()
    assert not any(map(listens, ports))


@pytest.mark.broker
def test_a_broker_that_cannot_start_reports_the_reason_and_leaves_nothing() -> None:
    if not private_broker.program("rabbitmq-server"):
        pytest.skip("rabbitmq-server is not installed (run `make setup`)")
    broker = PrivateBroker(["no.such.key = 1"])
    with pytest.raises(BrokerFailed, match=r"no\.such\.key"):
        broker.start()
    assert not broker.folder.exists()


def test_a_missing_installation_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_broker, "program", lambda name, root: [])
    with pytest.raises(BrokerMissing, match="make setup"):
        PrivateBroker().start()


def test_environment_variables_of_another_broker_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RABBITMQ_NODENAME", "theirs@localhost")
    monkeypatch.setenv("ERL_EPMD_PORT", "4369")
    monkeypatch.setenv("RABBITMQ_ALLOW_INPUT", "1")
    environment = PrivateBroker()._environment()
    assert environment["RABBITMQ_NODENAME"] != "theirs@localhost"
    assert environment["ERL_EPMD_PORT"] != "4369"
    assert "RABBITMQ_ALLOW_INPUT" not in environment


def test_the_url_of_a_running_broker_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RABBITMQ_URL", "amqp://me:p%40ss@broker.example:5673/ignored")
    monkeypatch.delenv("RABBITMQ_MANAGEMENT_URL", raising=False)
    broker = broker_of_environment()
    assert broker is not None
    assert (broker.address, broker.username, broker.password) == ("broker.example:5673", "me", "p@ss")
    assert broker.management == "http://broker.example:15672"
    assert broker.url("a/b") == "amqp://me:p%40ss@broker.example:5673/a%2Fb"


def test_without_a_url_no_running_broker_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RABBITMQ_URL", "")
    assert broker_of_environment() is None


def test_a_url_with_another_scheme_is_rejected_without_showing_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RABBITMQ_URL", "http://me:hidden@broker.example")
    with pytest.raises(ValueError, match="expected amqp") as caught:
        broker_of_environment()
    assert "hidden" not in str(caught.value)


def test_workers_use_disjoint_ports() -> None:
    shares = [
        private_broker.own_ports({"PYTEST_XDIST_WORKER": f"gw{number}", "PYTEST_XDIST_WORKER_COUNT": "3"})
        for number in range(3)
    ]
    assert sorted(port for share in shares for port in share) == list(private_broker.ALL_PORTS)
    assert private_broker.own_ports({}) == private_broker.ALL_PORTS


def test_no_port_is_chosen_twice_before_all_others() -> None:
    chosen = [private_broker.free_port() for _ in range(500)]
    assert len(set(chosen)) == len(chosen)
