"""Tests the commands of `make demo` and `make run`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pika
import pytest

from deploy.local.demo import (
    CONFIRMED,
    OUTPUT,
    REFUSED,
    RETURNED,
    RULES,
    Message,
    changed_counters,
    describe,
    reasons,
    sample,
)
from deploy.local.run import overrides
from tests.rabbitmq import Broker

ROOT = Path(__file__).resolve().parents[2]


def run(module: str, url: str, management: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"RABBITMQ_URL": url, "RABBITMQ_MANAGEMENT_URL": management}
    return subprocess.run(
        [sys.executable, "-m", module], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )


def delivered(queues: list[str], outcome: str = CONFIRMED) -> Message:
    message = Message("a message", {"exchange": "documents"}, CONFIRMED, ["one", "two"], "")
    message.seen_queues, message.seen_outcome, message.explained = queues, outcome, True
    return message


@pytest.mark.timeout(300)  # starting Spark takes a long time on a busy machine
def test_the_demo_succeeds_and_leaves_nothing_on_a_given_broker(broker: Broker) -> None:
    before = broker.api("GET", "vhosts?columns=name")
    done = run("deploy.local.demo", broker.url(), broker.management)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All results are as expected" in done.stdout
    report = done.stdout.rpartition("returns_total")[2]
    assert f"{len(sample(RULES))} publishes in 1 segment" in report
    assert (OUTPUT / "report/report.html").exists()
    assert broker.api("GET", "vhosts?columns=name") == before


@pytest.mark.timeout(300)
def test_a_demo_with_keep_runs_until_ctrl_c_and_leaves_nothing(broker: Broker) -> None:
    before = broker.api("GET", "vhosts?columns=name")
    environment = os.environ | {"RABBITMQ_URL": broker.url(), "RABBITMQ_MANAGEMENT_URL": broker.management, "KEEP": "1"}
    command = [sys.executable, "-m", "deploy.local.demo"]
    with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        printed = ""
        try:
            for line in demo.stdout:
                printed += line
                if "oxproxy status --admin" in line:
                    break
            lines = dict(re.findall(r"^   (\w+) +(\S+?),?(?: .*)?$", printed.partition("KEEP=1")[2], re.MULTILINE))
            with pika.BlockingConnection(pika.URLParameters(lines["producers"])) as connection:
                connection.channel().exchange_declare("documents", passive=True)
            with urllib.request.urlopen(lines["console"] + "readyz", timeout=10) as answer:
                assert answer.status == 200
        finally:  # otherwise the test would hang after a failure
            demo.send_signal(signal.SIGINT)
        rest = demo.stdout.read()
    assert demo.returncode == 0, printed + rest
    assert "Nothing is left running." in rest
    assert broker.api("GET", "vhosts?columns=name") == before


@pytest.mark.parametrize("module", ["deploy.local.demo", "deploy.local.run"])
def test_an_invalid_broker_url_is_a_usage_error(module: str) -> None:
    done = run(module, "amqps://elsewhere")
    assert done.returncode == 2
    assert "expected amqp://" in done.stderr


def test_run_without_a_broker_names_the_environment_variable() -> None:
    done = run("deploy.local.run", "")
    assert done.returncode == 2
    assert "RABBITMQ_URL" in done.stderr


def test_run_overrides_the_broker_of_the_configuration() -> None:
    variables = overrides(Broker("broker.example", 5679, "http://broker.example:15672", "me", "secret"))
    assert variables == {
        "OXPROXY_UPSTREAM__ADDRESS": "broker.example:5679",
        "OXPROXY_UPSTREAM__MANAGEMENT": "http://broker.example:15672",
        "OXPROXY_UPSTREAM__CONTROL__USERNAME": "me",
        "OXPROXY_UPSTREAM__CONTROL__PASSWORD": "secret",
    }


def test_the_sample_has_each_outcome_of_a_message() -> None:
    assert {message.outcome for message in sample(RULES)} == {CONFIRMED, RETURNED, REFUSED}


@pytest.mark.parametrize("queues", [["one"], ["one", "two", "two"], ["one", "two", "three"], []])
def test_a_missing_or_extra_copy_is_reported(queues: list[str]) -> None:
    assert not delivered(queues).right
    assert "WRONG" in describe(1, delivered(queues))


def test_the_order_of_queues_does_not_matter() -> None:
    assert delivered(["two", "one"]).right
    assert not delivered(["two", "one"], RETURNED).right


def test_reasons_name_the_matching_bindings_and_operators() -> None:
    operators = [
        {"operator": "x-?rk=", "expected": "a", "verdict": "match"},
        {"operator": "x-?hkex", "expected": "b", "verdict": "mismatch"},
    ]
    matching = {"binding": "first", "result": True, "operators": operators}
    other = {"binding": "second", "result": False, "operators": operators}
    assert list(reasons({"walk": [{"filters": [], "bindings": [matching, other]}]})) == ['binding "first" (x-?rk=: a)']
    assert list(reasons({"walk": [{"filters": [], "bindings": [other]}]})) == ["no binding matches"]


def test_only_counters_above_zero_are_shown() -> None:
    metrics = 'oxproxy_publishes_total{a="b"} 2.0\noxproxy_returns_total 0.0\noxproxy_channels 3.0\n'
    assert changed_counters(metrics) == ['oxproxy_publishes_total{a="b"} 2.0']
