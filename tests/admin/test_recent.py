"""``GET /api/recent`` and ``oxproxy tail``: what is kept of publishes that failed, and what is not shown."""

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
"""


@pytest.fixture(scope="module")
def site(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    settings = {"audit": {"headers": ["amount"]}, "limits": {"message_size": 1000}}
    with standing(broker, tmp_path_factory.mktemp("recent"), RULES, settings, small_queue) as running:
        recent(running)  # unroutable publishes are recorded from the first request on
        yield running


def small_queue(outside: Any) -> None:  # of tests.broker.world
    address = outside.broker.url(outside.vhost)
    with pika.BlockingConnection(pika.URLParameters(address)) as connection:
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        connection.channel().queue_declare("small", arguments=arguments)


def publish(site: Site, amount: int, key: str = "k", body: bytes = b"12345", *, mandatory: bool = False) -> None:
    """Publish one message, and wait for the broker's answer, whatever it is."""
    properties = pika.BasicProperties(headers={"amount": amount, "secret": "hunter2"})
    with pika_channel(site.sidecar.port, site.vhost) as channel, contextlib.suppress(pika.exceptions.AMQPError):
        channel.basic_publish("orders", key, body, properties, mandatory=mandatory)


def recent(site: Site, after: object = 0) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(site.sidecar.get(f"/api/recent?after={after}"))
    return answer


def new(site: Site, amount: int, **more: Any) -> list[dict[str, Any]]:
    """What one publish adds."""
    before = recent(site)["count"]
    publish(site, amount, **more)
    found: list[dict[str, Any]] = recent(site, before)["publishes"]
    return found


def test_a_publish_that_reaches_a_queue_is_not_kept(site: Site) -> None:
    assert new(site, 1) == []


def test_one_that_no_binding_takes_is_kept_without_undisclosed_values(site: Site) -> None:
    (kept,) = new(site, 4, key="a.b")
    assert {name: kept[name] for name in ("result", "reason", "exchange", "routing_key", "size", "vhost", "user")} == {
        "result": "unroutable",
        "reason": "no binding matches",
        "exchange": "orders",
        "routing_key": "a.b",
        "size": 5,
        "vhost": site.vhost,
        "user": "guest",
    }
    assert kept["header_names"] == ["amount", "secret"]
    assert kept["headers"] == {"amount": 4}
    assert "hunter2" not in site.sidecar.get("/api/recent")


def test_one_whose_destinations_do_not_exist_is_kept(site: Site) -> None:
    (kept,) = new(site, 3)
    assert (kept["result"], kept["reason"]) == ("unroutable", "no destination exists")


def test_one_that_is_too_large_is_rejected(site: Site) -> None:
    (kept,) = new(site, 1, body=b"x" * 1001)
    assert (kept["result"], kept["size"], kept["header_names"]) == ("rejected", 1001, ["amount", "secret"])
    assert kept["reason"] == "406 message size 1001 is larger than configured max size 1000"


def test_one_that_comes_back_is_unroutable_and_returned(site: Site) -> None:
    first, second = new(site, 4, mandatory=True, key="back")
    assert (first["result"], second["result"], second["reason"]) == ("unroutable", "returned", "312 NO_ROUTE")
    assert (second["exchange"], second["routing_key"], second["size"]) == ("orders", "back", 5)
    assert {"amount", "secret"} <= set(second["header_names"])


def test_one_that_the_broker_refuses_is_nacked_and_has_no_address(site: Site) -> None:
    publish(site, 2)
    (kept,) = new(site, 2)
    assert (kept["result"], kept["exchange"], kept["size"], kept["header_names"]) == ("nacked", None, None, None)
    assert kept["reason"] == "the broker refused publish 1 of the channel"


def test_the_last_two_hundred_are_kept_and_numbers_go_on(site: Site) -> None:
    before = recent(site)["count"]
    with site.producer() as producer:
        for number in range(250):
            producer.publish("orders", str(number))
        producer.settle_all(250)
    until(lambda: recent(site)["count"] == before + 250)
    kept = recent(site)["publishes"]
    assert [publish["routing_key"] for publish in kept] == [str(number) for number in range(50, 250)]
    assert [publish["number"] for publish in kept] == list(range(before + 51, before + 251))
    assert [each["routing_key"] for each in recent(site, before + 248)["publishes"]] == ["248", "249"]


def test_a_number_that_is_none_is_refused(site: Site) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        recent(site, "x")
    assert refused.value.code == 422
    assert json.loads(refused.value.read()) == {"errors": ["after: seen 'x', expected a number"]}


def test_tail_follows_until_ctrl_c_and_escapes_what_could_steer_a_terminal(site: Site) -> None:
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


def test_tail_is_there_for_machines(site: Site) -> None:
    publish(site, 4, key="json")
    lines = oxproxy("tail", "--json", "--admin", site.sidecar.admin, check=True).stdout.splitlines()
    assert json.loads(lines[-1])["routing_key"] == "json"
