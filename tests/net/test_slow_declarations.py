from __future__ import annotations

from pamqp import commands

from proxy.net.context import SessionLimits
from proxy.relay.connection_state import RelayLimits
from tests.net.stage import NoControl, staged


async def test_a_connection_is_not_ended_by_the_handshake_timeout_after_open_ok() -> None:
    control = NoControl(answers=False, followed=False)
    limits = SessionLimits(handshake_seconds=0.3, bind_seconds=0.8, relay=RelayLimits())
    async with staged(limits, control=control) as stage:
        producer = await stage.greeted()
        await producer.expect("Connection.OpenOk")  # within handshake_seconds
        link = await stage.broker.link()
        producer.call(commands.Channel.Open())
        await link.expect("Channel.Open")  # after bind_seconds, without the declarations
