"""Thousands of destinations of one message: as many tokens as fit into one header frame, and more."""

from __future__ import annotations

from pathlib import Path

import pytest
from pamqp import commands

from tests import client
from tests.broker.delivery.site import standing
from tests.broker.observed import Outside
from tests.producer import Producer
from tests.rabbitmq import Broker

COUNT = 3000
QUEUES = [f"q{number}" for number in range(COUNT)]
RULES = f"""
exchanges:
  - name: all
    bindings: [{{queue: q0, arguments: {{x-addq-ontrue: [{", ".join(QUEUES)}]}}}}]
"""


def prepare(outside: Outside) -> None:
    with Producer(outside.broker.port, outside.vhost).open() as producer:
        producer.send(*(client.method(1, commands.Queue.Declare(queue=name, nowait=True)) for name in QUEUES))
        producer.declare(QUEUES[-1])


@pytest.mark.matrix
@pytest.mark.timeout(240)
def test_three_thousand_tokens_need_one_publish_or_several_with_smaller_frames(broker: Broker, tmp_path: Path) -> None:
    with standing(broker, tmp_path, RULES, prepare=prepare) as site:
        for frame_max, publishes in ((131072, 1), (65536, 2)):
            producer = site.producer(frame_max=frame_max)
            assert producer.send_settled("all", "k", {"n": 1}, b"%d" % frame_max) == (True, [])
            assert producer.silent()
            upstream = site.upstream()
            assert len(upstream.named("Basic.Publish")) == publishes
            assert max(len(frame.raw) for frame in upstream.frames) > 50_000
            assert all(len(frame.raw) <= frame_max for frame in upstream.frames)
        with Producer(broker.port, site.vhost).open() as direct:
            for _ in range(2):
                direct.send(*(client.method(1, commands.Basic.Get(queue=name, no_ack=True)) for name in QUEUES))
            bodies = [direct.message(direct.expect("Basic.GetOk")).body for _ in range(2 * COUNT)]
            assert bodies == [b"131072"] * COUNT + [b"65536"] * COUNT
            direct.send(*(client.method(1, commands.Queue.Delete(queue=name, nowait=True)) for name in QUEUES))
            direct.declare("last")
