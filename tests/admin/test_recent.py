"""Tests ``GET /api/recent`` and ``oxproxy tail``: recorded failed publishes, and values that are not disclosed."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import urllib.error
from collections.abc import Iterator
from typing import Any

import pika
import pika.exceptions
import pytest
from pamqp import commands

from tests.broker.delivery.site import Site, standing
from tests.producer import until
from tests.rabbitmq import Broker
from tests.sidecar import PROGRAM, oxproxy, pika_channel

RULES = """\
queues: [good]
exchanges:
  - name: orders
    bindings:
      - {queue: good, arguments: {"x-?hkv= amount": 1}}
      - {queue: small, arguments: {"x-?hkv= amount": 2}}
      - {queue: nowhere, arguments: {"x-?hkv= amount": 3}}
  - name: asking
    bindings: [{queue: good, arguments: {x-msg-addq-ontrue: ""}}]
"""


@pytest.fixture(scope="module")
def site(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    settings = {"audit": {"headers": ["amount"]}, "limits": {"message_size": 1000}}
    with standing(broker, tmp_path_factory.mktemp("recent"), RULES, settings, small_queue) as running:
        recent(running)  # recording starts with the first request
        yield running


def small_queue(outside: Any) -> None:  # of tests.broker.observed
    address = outside.broker.url(outside.vhost)
    with pika.BlockingConnection(pika.URLParameters(address)) as connection:
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        connection.channel().queue_declare("small", arguments=arguments)


def publish(site: Site, amount: int, key: str = "k", body: bytes = b"12345", *, mandatory: bool = False) -> None:
    """Publish one message and wait for the broker's reply."""
    properties = pika.BasicProperties(headers={"amount": amount, "secret": "hunter2"})
    with pika_channel(site.sidecar.port, site.vhost) as channel, contextlib.suppress(pika.exceptions.AMQPError):
        channel.basic_publish("orders", key, body, properties, mandatory=mandatory)


def recent(site: Site, after: object = 0) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(site.sidecar.get(f"/api/recent?after={after}"))
    return answer


def new(site: Site, amount: int, **more: Any) -> list[dict[str, Any]]:
    """Return the records that one publish adds."""
    before = recent(site)["count"]
    publish(site, amount, **more)
    publishes: list[dict[str, Any]] = recent(site, before)["publishes"]
    return publishes


def test_a_routed_publish_is_not_recorded(site: Site) -> None:
    assert new(site, 1) == []


def test_an_unroutable_publish_is_recorded_without_undisclosed_values(site: Site) -> None:
    (record,) = new(site, 4, key="a.b")
    assert {
        name: record[name] for name in ("result", "reason", "exchange", "routing_key", "size", "vhost", "user")
    } == {
        "result": "unroutable",
        "reason": "no binding matches",
        "exchange": "orders",
        "routing_key": "a.b",
        "size": 5,
        "vhost": site.vhost,
        "user": "guest",
    }
    assert record["header_names"] == ["amount", "secret"]
    assert record["headers"] == {"amount": 4}
    assert "hunter2" not in site.sidecar.get("/api/recent")


def test_a_publish_to_missing_destinations_is_recorded(site: Site) -> None:
    (record,) = new(site, 3)
    assert (record["result"], record["reason"]) == ("unroutable", "none of the selected destinations exists")


def test_a_publish_that_is_too_large_is_recorded_as_rejected(site: Site) -> None:
    (record,) = new(site, 1, body=b"x" * 1001)
    assert (record["result"], record["size"], record["header_names"]) == ("rejected", 1001, ["amount", "secret"])
    assert record["reason"] == "406 message size 1001 is larger than configured max size 1000"


@pytest.mark.parametrize(
    ("regex", "explanation"),
    [
        ("(hunter2", ": missing closing parenthesis at offset 8"),
        ("(hunter2': hunter2" + "x" * 194, ""),
        ("(hunter2': hunter2" + "x" * 400, ""),
    ],
)
def test_a_regex_from_a_header_is_not_shown(site: Site, regex: str, explanation: str) -> None:
    before = recent(site)["count"]
    with site.producer() as producer:
        producer.publish("asking", table={"x-addqre-ontrue": regex})
        assert "hunter2" in producer.closed().text
    (record,) = recent(site, before)["publishes"]
    assert record["reason"] == f"406 Invalid regex{explanation}"


def test_an_unroutable_mandatory_publish_is_recorded_once_with_its_reason(site: Site) -> None:
    (record,) = new(site, 4, mandatory=True, key="back")
    assert (record["result"], record["reason"]) == ("returned", "312 NO_ROUTE: no binding matches")
    assert (record["exchange"], record["routing_key"], record["size"]) == ("orders", "back", 5)
    assert record["header_names"] == ["amount", "secret"]
    lines = oxproxy("tail", "--admin", site.sidecar.admin, check=True).stdout.splitlines()
    assert sum('routing_key="back"' in line for line in lines) == 1


def test_returns_among_other_unroutable_publishes_are_matched(site: Site) -> None:
    before, returns = recent(site)["count"], site.metric("returns_total")
    with site.producer() as producer:
        for number in range(6):
            producer.publish("orders", "same", {"amount": 4 if number % 2 else 3}, mandatory=number != 3)
        producer.publish("amq.fanout", "passed", mandatory=True)
        until(lambda: site.metric("returns_total") == returns + 6)
    records = recent(site, before)["publishes"]
    assert [(record["exchange"], record["result"]) for record in records] == [
        *[("orders", "returned" if number != 3 else "unroutable") for number in range(6)],
        ("amq.fanout", "returned"),
    ]
    assert [record["reason"] for record in records] == [
        *["312 NO_ROUTE: none of the selected destinations exists", "312 NO_ROUTE: no binding matches"],
        *["312 NO_ROUTE: none of the selected destinations exists", "no binding matches"],
        *["312 NO_ROUTE: none of the selected destinations exists", "312 NO_ROUTE: no binding matches"],
        "312 NO_ROUTE",
    ]


def test_a_nacked_publish_is_recorded_without_exchange(site: Site) -> None:
    publish(site, 2)
    (record,) = new(site, 2)
    assert (record["result"], record["exchange"], record["size"], record["header_names"]) == (
        "nacked",
        None,
        None,
        None,
    )
    assert record["reason"] == "the broker refused publish 1 of the channel"


def test_a_publish_to_a_missing_exchange_is_recorded_with_the_error_of_the_broker(site: Site) -> None:
    before, counted = recent(site)["count"], site.metric("broker_closes_total", reply_code="404")
    with site.producer() as producer:
        producer.publish("ordres", "k", {"secret": "hunter2"})
        assert producer.closed().code == 404
    until(lambda: site.metric("broker_closes_total", reply_code="404") == counted + 1)
    (record,) = recent(site, before)["publishes"]
    reason = f"404 NOT_FOUND - no exchange 'ordres' in vhost '{site.vhost}'"
    assert (record["result"], record["channel"], record["exchange"]) == ("closed", 1, None)
    assert record["reason"] == f"the broker closed channel 1: {reason}, after Basic.Publish"
    (line,) = site.logged("no exchange 'ordres'")
    assert 'level=warning event="the broker closed a channel"' in line
    assert f'reason="{reason}" method=Basic.Publish unconfirmed=1' in line
    tailed = oxproxy("tail", "--admin", site.sidecar.admin, check=True).stdout.splitlines()[-1]
    assert f"  closed      vhost={site.vhost}  the broker closed channel 1: {reason}" in tailed


def test_a_publish_before_the_close_of_its_channel_is_recorded_with_the_error_of_the_broker(site: Site) -> None:
    before = recent(site)["count"]
    with site.producer(confirm=False) as producer:
        producer.publish("ordres")
        producer.call(commands.Channel.Close(200, "done", 0, 0))
        until(lambda: recent(site)["count"] > before)
    (record,) = recent(site, before)["publishes"]
    assert (record["result"], "no exchange 'ordres'" in record["reason"]) == ("closed", True)


def test_a_missing_exchange_in_a_passive_declare_is_logged_but_not_recorded(site: Site) -> None:
    before = recent(site)["count"]
    with site.producer() as producer:
        producer.call(commands.Queue.Declare(queue="asked for", passive=True))
        assert producer.closed().code == 404
    until(lambda: bool(site.logged("no queue 'asked for'")))
    assert "level=info" in site.logged("no queue 'asked for'")[0]
    assert recent(site, before)["publishes"] == []


@pytest.mark.parametrize(
    ("properties", "shown"),
    [({"user_id": b"hunter2"}, "user_id property set to ***"), ({"expiration": b"hunter2"}, "invalid expiration ***")],
)
def test_properties_in_an_error_of_the_broker_are_not_shown(site: Site, properties: dict[str, Any], shown: str) -> None:
    before = recent(site)["count"]
    with site.producer() as producer:
        producer.publish("amq.fanout", **properties)
        assert "hunter2" in producer.closed().text
    until(lambda: recent(site)["count"] > before)
    (record,) = recent(site, before)["publishes"]
    assert record["reason"].startswith(f"the broker closed channel 1: 406 PRECONDITION_FAILED - {shown}")
    assert "hunter2" not in site.sidecar.get("/api/recent")
    assert site.logged("hunter2") == []


def test_a_connection_closed_by_the_broker_is_recorded(site: Site) -> None:
    before = recent(site)["count"]
    user = f"user-of-{site.vhost}"
    site.broker.create_user(user, "guest")
    try:
        site.broker.grant(user, site.vhost)
        producer = site.producer(user)
    finally:
        site.broker.delete_user(user)
    assert producer.closed(0).code == 320  # the user was deleted
    until(lambda: recent(site)["count"] > before)
    (record,) = recent(site, before)["publishes"]
    assert (record["result"], record["channel"], record["user"]) == ("closed", 0, user)
    assert record["reason"].startswith("the broker closed the connection: 320 CONNECTION_FORCED - user '***'")


def test_the_last_200_publishes_are_kept_with_consecutive_numbers(site: Site) -> None:
    before = recent(site)["count"]
    with site.producer() as producer:
        for number in range(250):
            producer.publish("orders", str(number))
        producer.settle_all(250)
    until(lambda: recent(site)["count"] == before + 250)
    record = recent(site)["publishes"]
    assert [publish["routing_key"] for publish in record] == [str(number) for number in range(50, 250)]
    assert [publish["number"] for publish in record] == list(range(before + 51, before + 251))
    assert [publish["routing_key"] for publish in recent(site, before + 248)["publishes"]] == ["248", "249"]


def test_an_invalid_number_is_refused(site: Site) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        recent(site, "x")
    assert refused.value.code == 422
    assert json.loads(refused.value.read()) == {"errors": ["after: got 'x', expected a number"]}


def test_tail_follows_until_ctrl_c_and_escapes_control_characters(site: Site) -> None:
    command = [str(PROGRAM), "tail", "--follow", "--admin", site.sidecar.admin]
    publish(site, 4, key="first")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        assert any('routing_key="first"' in line for line in tail.stdout)
        publish(site, 4, key="\x1b[2J\u202e<script>")
        line = next(line for line in tail.stdout if "<script>" in line)
        tail.send_signal(signal.SIGINT)
        assert tail.wait(20) == 0
    assert "\x1b" not in line
    assert "\u202e" not in line
    assert "headers=[amount=4, secret]" in line


def test_tail_prints_json(site: Site) -> None:
    publish(site, 4, key="json")
    lines = oxproxy("tail", "--json", "--admin", site.sidecar.admin, check=True).stdout.splitlines()
    assert json.loads(lines[-1])["routing_key"] == "json"
