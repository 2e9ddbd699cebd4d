"""Tests what the relay relies on when it asks the broker for a reply in order: a flow needs no permission.

Source: `relay.declare.injected_methods`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pamqp import base, commands

from tests.producer import Producer
from tests.rabbitmq import Broker

FLOW = commands.Channel.Flow(active=True)
MODES: dict[str, base.Frame | None] = {
    "plain": None,
    "confirm": commands.Confirm.Select(),
    "tx": commands.Tx.Select(),
}


@pytest.fixture
def user(broker: Broker, vhost: str) -> Iterator[str]:
    """A user that may only publish to the default exchange."""
    with broker.temporary_user() as name:
        broker.grant(name, vhost, configure="", write=r"^amq\.default$", read="")
        yield name


@pytest.mark.parametrize("mode", list(MODES))
def test_a_flow_is_answered_after_everything_before_it(broker: Broker, vhost: str, user: str, mode: str) -> None:
    select = MODES[mode]
    with Producer(broker.port, vhost, user, user).open() as producer:
        if select is not None:
            producer.ask(select)
        for _ in range(3):
            producer.publish("", "nowhere", mandatory=True)
            producer.call(FLOW)
            if mode != "tx":  # a transaction returns its messages when it is committed
                assert producer.message(producer.expect("Basic.Return")).key == "nowhere"
            assert producer.expect("Channel.FlowOk", "Basic.Ack").name in ("Channel.FlowOk", "Basic.Ack")
            if mode == "confirm":
                producer.expect("Channel.FlowOk", "Basic.Ack")
        if mode == "tx":
            producer.call(commands.Tx.Commit())
            for _ in range(3):
                producer.message(producer.expect("Basic.Return"))
            producer.expect("Tx.CommitOk")
        assert producer.ask(FLOW).arguments["active"] is True
