"""What clients that bypass the sidecar see of the carrier, and the effect of their actions."""

from __future__ import annotations

from pathlib import Path

from oxproxy.relay.tokens import is_token
from oxproxy.values import Value
from tests.broker.delivery.site import standing
from tests.broker.observed import Outside
from tests.rabbitmq import Broker

RULES = """
queues: [a]
exchanges:
  - name: letters
    arguments: {alternate-exchange: spare}
    bindings: [{queue: a}]
"""


def prepare(outside: Outside) -> None:
    outside.make_exchange("spare", "fanout")
    outside.make_queue("fallback")
    outside.bind("spare", "fallback", "")


def test_the_alternate_exchange_gets_messages_for_a_queue_deleted_on_the_broker(broker: Broker, tmp_path: Path) -> None:
    seldom = {"inventory": {"refresh": "1h"}}
    with standing(broker, tmp_path, RULES, seldom, prepare) as site:
        producer = site.producer()
        assert producer.send_settled("letters", "k", None, b"1") == (True, [])
        assert site.bodies("a", "fallback") == [[b"1"], []]
        site.delete_queue("a")
        assert producer.send_settled("letters", "k", None, b"2", mandatory=True) == (True, [])
        assert site.bodies("fallback") == [[b"2"]]


def test_the_firehose_shows_tokens(broker: Broker, tmp_path: Path) -> None:
    with standing(broker, tmp_path, RULES, None, prepare) as site:
        site.make_queue("firehose")
        site.bind("amq.rabbitmq.trace", "firehose", "publish.letters")
        broker.api("PUT", f"vhosts/{site.vhost}", {"tracing": True})
        site.producer().send_settled("letters", "k", {"n": 1}, b"x")
        keys = site.next("firehose").headers["routing_keys"].value
        assert isinstance(keys, tuple)
        own, token = keys
        assert own == Value("S", b"k")
        assert is_token(token.value)
