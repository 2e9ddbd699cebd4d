from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from oxproxy.broker.connection import ControlConnection
from oxproxy.broker.declared.announcements import EXCHANGE, Announcements, decode_announcement, encode_announcement
from oxproxy.broker.task_supervisor import Supervisor
from tests.broker.observed import Outside, has, settings
from tests.producer import until
from tests.rabbitmq import Broker

SENDER = b"12345678"


class Receiver:
    """Records announcements; tests can wait for them."""

    def __init__(self) -> None:
        self.received: list[set[bytes] | None] = []
        self._anything = asyncio.Event()

    def __call__(self, names: set[bytes] | None) -> None:
        self.received.append(names)
        self._anything.set()

    async def everything(self, names: set[bytes]) -> None:
        async with asyncio.timeout(30):
            while not set().union(*(names_received or set() for names_received in self.received)) >= names:
                self._anything.clear()
                await self._anything.wait()


Sidecar = Callable[[Receiver], "asyncio.Future[Announcements]"]


@pytest.fixture
async def sidecar(broker: Broker, vhost: str) -> AsyncIterator[Sidecar]:
    open_ones: list[tuple[Announcements, ControlConnection]] = []

    async def make(receiver: Receiver) -> Announcements:
        connection = ControlConnection(settings(broker), vhost)
        await connection.connect()
        announcements = Announcements(connection, vhost, receiver, Supervisor())
        open_ones.append((announcements, connection))
        await announcements.subscribe()
        return announcements

    yield make  # type: ignore[misc]
    for announcements, connection in open_ones:
        await announcements.close()
        await connection.close()


async def test_ten_thousand_changes_need_few_messages(sidecar: Sidecar) -> None:
    here, there = Receiver(), Receiver()
    first, _ = await sidecar(here), await sidecar(there)
    for _ in range(10_000):
        first.announce(b"ox")
    await there.everything({b"ox"})
    await first.close()
    assert len(there.received) <= 2


async def test_a_closed_subscriber_leaves_no_queue(sidecar: Sidecar, broker: Broker, vhost: str) -> None:
    def queues() -> int:
        return len(broker.api("GET", f"exchanges/{vhost}/{EXCHANGE}/bindings/source"))

    await sidecar(Receiver())
    assert queues() == 1
    connection = ControlConnection(settings(broker), vhost)
    await connection.connect()
    await Announcements(connection, vhost, Receiver(), Supervisor()).subscribe()
    assert queues() == 2
    await connection.close()
    until(lambda: queues() == 1)  # RabbitMQ 4.3 deletes the queue after it has replied to the close


async def test_a_refusal_by_the_broker_is_logged_and_nothing_is_announced(
    sidecar: Sidecar, broker: Broker, vhost: str
) -> None:
    Outside(broker, vhost).make_exchange(EXCHANGE, "topic")
    with capture_logs() as events:
        refused = await sidecar(Receiver())
    refused.announce(b"ox")
    await refused.close()
    assert len(has(events, "client declarations are not announced to other sidecars")) == 1


async def test_a_lost_connection_is_logged_and_nothing_more_is_announced(broker: Broker, vhost: str) -> None:
    connection = ControlConnection(settings(broker), vhost)
    await connection.connect()
    announcements = Announcements(connection, vhost, Receiver(), Supervisor())
    await announcements.subscribe()
    await connection.close()
    with capture_logs() as events:
        announcements.announce(b"ox")
        await announcements.close()
    assert [event["error"] for event in has(events, "client declarations are not announced to other sidecars")] == [
        "channel closed"
    ]


async def test_malformed_messages_are_ignored(sidecar: Sidecar, broker: Broker, vhost: str) -> None:
    receiver = Receiver()
    await sidecar(receiver)
    with Outside(broker, vhost).channel() as channel:
        for body in (b"", b"short", SENDER + b"\x05abc", SENDER + b"\x03end"):
            channel.basic_publish(EXCHANGE, "", body)
    await receiver.everything({b"end"})
    assert receiver.received == [{b"end"}]


@given(st.sets(st.binary(max_size=255), min_size=1, max_size=100))
def test_an_encoded_announcement_is_decoded(names: set[bytes]) -> None:
    assert decode_announcement(encode_announcement(SENDER, names)) == (SENDER, names)


def test_too_many_names_are_encoded_as_all_exchanges() -> None:
    assert decode_announcement(encode_announcement(SENDER, {bytes([number]) for number in range(101)})) == (
        SENDER,
        None,
    )


@given(st.binary(max_size=40))
def test_any_bytes_are_decoded_or_rejected(body: bytes) -> None:
    decoded = decode_announcement(body)
    assert decoded is None or encode_announcement(decoded[0], decoded[1] or set()) is not None
