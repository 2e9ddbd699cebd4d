"""Expensive regular expressions: their limits, their effect on other connections, and how they are reported."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from tests import sidecar
from tests.broker.delivery.applications import Application
from tests.broker.delivery.site import standing
from tests.broker.delivery.test_audit import audited, records
from tests.rabbitmq import Broker
from tests.sidecar import request_page

RULES = """
queues: [by.rule, by.key, plain, hostile, neighbour]
exchanges:
  - name: mixed
    bindings:
      - {queue: by.rule, name: by a pattern of the file, arguments: {"x-?hkvre text": "^a+1"}}
"""
#: Each reaches its limit on a long string of one letter, and is false or, negated, true.
HOSTILE = [rf"(a+)+\d{{{number + 3}}}$" for number in range(100)]
MOST = 100


def text(number: int) -> str:
    """A string of 4 kB that no previous decision used."""
    return "a" * 4000 + str(number)


def test_the_number_of_regular_expressions_of_a_client_is_limited(broker: Broker, tmp_path: Path) -> None:
    with standing(broker, tmp_path, RULES) as site, Application(site.sidecar.port, site.vhost) as app:
        app.exchange("own")
        app.bind("hostile", "own", {"x-?hkvre text": [f"^{number}" for number in range(MOST - 1)]})
        app.bind("plain", "mixed", {"x-?rkre": "^one"})
        again = app.binding("plain", "mixed", {"x-?rkre": "^one"})
        app.send(again)  # this binding already exists, so it adds no regular expressions
        app.expect("Queue.BindOk")
        close = app.refused(app.binding("plain", "own", {"x-?rkre": "^more"}))
        assert (close.code, close.text) == (
            406,
            "PRECONDITION_FAILED - the bindings of user 'guest' have 100 regular expressions; 1 more would exceed 100 "
            "(declared.regexes)",
        )
        app.bind("plain", "own", {"x-?hkex": "no pattern"})
        app.unbind("plain", "mixed", {"x-?rkre": "^one"})
        app.bind("plain", "own", {"x-?rkre": "^more"})


def test_expensive_patterns_of_one_client_do_not_affect_others(broker: Broker, tmp_path: Path) -> None:
    directory, settings = audited(tmp_path)
    publishes = 40
    with standing(broker, tmp_path, RULES, settings) as site, Application(site.sidecar.port, site.vhost) as app:
        for pattern in HOSTILE:
            app.bind("hostile", "mixed", {"x-?hkv!re text": pattern})
        app.bind("plain", "mixed", {"x-?hkex": "text"})
        app.bind("by.key", "mixed", {"x-?rk=": "k"})
        neighbour = site.producer()
        hostile = site.producer()
        begin = time.monotonic()
        for number in range(publishes):
            hostile.publish("mixed", "k", {"text": text(number)})
        slowest = 0.0
        for _ in range(50):
            sent = time.monotonic()
            assert neighbour.send_settled("", "neighbour").acked
            slowest = max(slowest, time.monotonic() - sent)
        hostile.settle_all(publishes)
        taken = time.monotonic() - begin
        # The file's pattern has a separate budget, and bindings without a pattern need none.
        expected = {"by.rule": sum(text(number)[4000] == "1" for number in range(publishes)), "plain": publishes}
        assert {queue: len(site.take(queue)) for queue in expected} == expected
        assert len(site.take("by.key")) == publishes
        assert site.metric("regex_budget_spent_total", owner="client") == publishes
        assert site.metric("regex_budget_spent_total", owner="rules") == 0
        assert site.metric("limit_hits_total", limit="regex_budget") >= publishes / 2
        question = json.dumps({"exchange": "mixed", "routing_key": "k", "headers": {"text": text(0)}}).encode()
        answer = json.loads(request_page(site.sidecar.admin + "/explain", question)[1])
    # A decision takes about 10 ms, and its connection then pauses: seconds for this client, but not for others.
    assert taken > 1.0
    assert slowest < taken / 3
    lines = [line for line in records(directory) if line["exchange"] == "mixed"]
    assert [line["reason"] for line in lines] == ["regex_budget"] * publishes
    visits = answer["walk"][0]["bindings"]
    spent = [visit for visit in visits if visit["regex_budget_spent"]]
    assert 90 <= len(spent) <= 100
    assert {(visit["result"], *visit["regex_budget_spent"]) for visit in spent} == {(False, "client")}
    assert sum(visit["result"] for visit in visits if visit["destination"] != "queue hostile") == 2


def test_patterns_in_message_headers_have_a_separate_budget(broker: Broker, tmp_path: Path) -> None:
    names = ", ".join(f"q{'a' * 60}{number}" for number in range(50))
    rules = f"""
queues: [granting, {names}]
exchanges:
  - name: granting
    bindings:
      - {{queue: granting, name: g, arguments: {{"x-?rkre": ^k, x-msg-addqre-ontrue: ""}}}}
"""
    with standing(broker, tmp_path, rules) as site:
        producer = site.producer()
        assert producer.send_settled("granting", "k", {"x-addqre-ontrue": r"(a+)+\D$"}).acked
        assert [len(site.take("granting")), site.metric("regex_budget_spent_total", owner="message")] == [1, 1]
        assert site.metric("regex_budget_spent_total", owner="rules") == 0


#: Denies the program memory that is writable and executable, as systemd's MemoryDenyWriteExecute does, where the kernel
#: can (6.3), and reports whether it did.
DENYING = """#!{python}
import ctypes, mmap, os, sys
ctypes.CDLL(None).prctl(65, 1, 0, 0, 0)  # PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN
try:
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
except PermissionError:
    open("denied", "w").close()
os.execv({program!r}, [{program!r}, *sys.argv[1:]])
"""


def test_without_executable_memory_patterns_are_interpreted_and_this_is_logged(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "denying"
    program.write_text(DENYING.format(python=sys.executable, program=str(sidecar.PROGRAM)))
    program.chmod(0o755)
    monkeypatch.setattr(sidecar, "PROGRAM", program)
    with standing(broker, tmp_path, RULES) as site:
        assert site.producer().send_settled("mixed", "k", {"text": "aaa1"}).acked
        assert len(site.take("by.rule")) == 1
        interpreted = "regular expressions run in PCRE2's interpreter" in site.sidecar.log.read_text()
        assert interpreted is (tmp_path / "denied").exists()
