"""Contracts on the publish path: replies, forwarded publishes, counters, audit records and recent publishes."""

from __future__ import annotations

import json

import pytest

from oxproxy.relay.plan.tap import FailedPublish
from oxproxy.relay.vhost import VhostState
from oxproxy.rules.loader import compile_rules
from oxproxy.values import Table, Value
from tests.client import split
from tests.relay.test_connection_audit import Log
from tests.relay.wire import Wire, owned, publish, state

SECRET = "customer 4711"
VALID: Table = ((b"tenant", Value("S", SECRET.encode())), (b"amount", Value("I", 5)))
INVALID: Table = ((b"tenant", Value("I", 4711)), (b"amount", Value("I", 5)))


class Failures(list[FailedPublish]):
    """Records failed publishes."""

    watched = True

    def add(self, failed: FailedPublish) -> int:
        self.append(failed)
        return len(self)

    def returned(self, number: int, reason: str) -> None:
        raise AssertionError("no publish is returned")


def vhost(violations: str) -> VhostState:
    text = f"""
    exchanges:
      - name: xo
        require: {{tenant is: string, amount >=: 1, key not in: [forbidden]}}
        violations: {violations}
        arguments: {{max-payload-size: 100}}
        bindings: [{{queue: q}}]
    """
    exchange = compile_rules([("a.yaml", text.encode())]).routers["/"].exchanges[b"xo"]
    return state((exchange, owned(exchange)))


def wire(violations: str = "reject") -> tuple[Wire, Failures, Log]:
    made, failures, log = Wire(vhost(violations)), Failures(), Log()
    counters = made.counters.traffic
    counters.name(counters.labels([("/", b"xo")], [], [], [("/", b"xo")]))
    made.plans.failures = failures
    made.plans.journal = log.made
    made.relay.connection.start_audit("c")
    return made.open(1, 2), failures, log


def violations(made: Wire) -> int:
    for _ in made.counters.traffic.folding():
        pass
    ((_, _, count),) = made.counters.traffic.violations()
    return count


@pytest.mark.parametrize("headers", [INVALID, None])
def test_a_message_that_violates_the_contract_is_rejected(headers: Table | None) -> None:
    made, failures, log = wire()
    seen = "an integer" if headers else "nothing"
    for channel in (1, 2):  # decided, then cached
        made.produce(publish("k", headers, channel=channel))
        (close,) = [frame for frame in split(made.refused(channel)) if frame.name == "Channel.Close"]
        assert close.arguments["reply_code"] == 406
        assert close.arguments["reply_text"] == (
            f"PRECONDITION_FAILED - Contract violated: tenant is: got {seen}, expected string"
        )
    assert violations(made) == 2
    assert [(failed.result, "4711" in failed.reason) for failed in failures] == [("rejected", False)] * 2
    assert log.records[0]["violates"] == ["tenant is"]
    assert (log.records[0]["outcome"], log.records[0]["reason"]) == ("rejected", "contract_violation")


def test_a_valid_message_is_routed() -> None:
    made, failures, _ = wire()
    assert made.produce(publish("k", VALID)) != b""
    assert (violations(made), failures) == (0, [])
    assert made.publishes() == [(b"xo", "routed", 1, 4)]


@pytest.mark.parametrize(
    ("message", "violated"),
    [
        (publish("k", INVALID), ["tenant is"]),
        (publish("forbidden", None), ["tenant is", "amount >=", "key not in"]),
        (publish("k", VALID, body=bytes(101)), ["max-payload-size"]),
    ],
)
def test_observed_violations_do_not_change_the_publish(message: bytes, violated: list[str]) -> None:
    made, failures, log = wire("observe")
    first, second = made.produce(message), made.produce(message)
    assert first == second
    assert split(first)[0].name == "Basic.Publish"
    assert violations(made) == 2
    assert made.publishes()[0][:3] == (b"xo", "routed", 2)
    assert [(failed.result, failed.reason) for failed in failures] == [
        ("violating", f"violates {', '.join(violated)}")
    ] * 2
    record = log.records[0]
    assert (record["outcome"], record["reason"]) == ("routed", "contract_violation")
    assert record["violates"] == violated


def test_without_violations_the_record_has_no_such_field() -> None:
    made, _, log = wire("observe")
    made.produce(publish("k", VALID))
    (record,) = log.records
    assert "violates" not in record
    assert SECRET not in json.dumps(record)
