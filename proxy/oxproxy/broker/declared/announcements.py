"""Announces changed client declarations to other sidecars, so that they need not wait for their next regular pass.

Announcements are sent to a fanout exchange on the broker, to which each sidecar binds a queue. A message contains only
the sender's ID and the names of the changed exchanges; the changes themselves are read from the broker. Changes made
within a short time are announced in one message. If an announcement is lost, other sidecars detect the change in their
next regular pass. Each regular pass checks that the queue is still bound, since the exchange may have been deleted.
Source: RabbitMQ's guide on exchanges.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress

import structlog
from aio_pika import ExchangeType, Message
from aio_pika.abc import AbstractChannel, AbstractExchange, AbstractIncomingMessage
from aio_pika.exceptions import AMQPError

from oxproxy.amqp.frames import shortstr
from oxproxy.broker.connection import ControlConnection, cause_of
from oxproxy.broker.management_api import ManagementApi, NotListed
from oxproxy.broker.task_supervisor import Supervisor
from oxproxy.errors import UpstreamError
from oxproxy.values import RESERVED_PREFIX

EXCHANGE = (RESERVED_PREFIX + b"announce").decode()
#: Changes made within this time are announced in one message.
_GATHER_SECONDS = 0.05
#: Maximum number of names in one message. If there are more, the message contains no names, which means "everything".
_NAMES = 100
_SENDER_BYTES = 8
#: Timeout for subscribing, for a publish, and for closing a channel.
_DEADLINE_SECONDS = 10.0

log = structlog.get_logger(__name__)


class Announcements:
    """Sends and receives announcements in one virtual host.

    Args:
        heard: called with the exchanges that another sidecar has changed, or with None for "everything".
    """

    def __init__(
        self,
        connection: ControlConnection,
        vhost: str,
        heard: Callable[[set[bytes] | None], None],
        supervisor: Supervisor,
    ) -> None:
        self._connection = connection
        self._vhost = vhost
        self._heard = heard
        self._supervisor = supervisor
        self._sender = secrets.token_bytes(_SENDER_BYTES)
        self._channel: AbstractChannel | None = None
        self._exchange: AbstractExchange | None = None
        self._queue = ""
        self._error = ""
        self._pending: set[bytes] = set()
        self._sending: asyncio.Task[None] | None = None

    async def subscribe(self) -> None:
        """Subscribe on a new channel. A failure is logged; announcements are then neither sent nor received.

        Raises:
            UpstreamError: the connection was lost.
        """
        self._exchange = None
        if self._channel is not None and not self._channel.is_closed:
            with suppress(AMQPError, RuntimeError, OSError, TimeoutError):
                async with asyncio.timeout(_DEADLINE_SECONDS):
                    await self._channel.close()
        self._channel = channel = await self._connection.channel()
        try:
            async with asyncio.timeout(_DEADLINE_SECONDS):
                exchange = await channel.declare_exchange(EXCHANGE, ExchangeType.FANOUT, durable=True)
                queue = await channel.declare_queue(exclusive=True, auto_delete=True)
                await queue.bind(exchange)
                await queue.consume(self._received, no_ack=True)
        except (AMQPError, RuntimeError, OSError, TimeoutError) as error:
            self._failed(error)
        else:
            self._exchange, self._queue, self._error = exchange, queue.name, ""

    async def check(self, management: ManagementApi) -> bool:
        """Return True if the queue is still bound, which means that no announcement was missed.

        Otherwise, subscribe again and return False. If the management API fails, return False without subscribing.

        Raises:
            UpstreamError: the connection was lost.
        """
        try:
            bound = await management.destinations(self._vhost, EXCHANGE)
        except NotListed:
            bound = set()
        except UpstreamError:
            return False
        if self._exchange is not None and self._queue in bound:
            return True
        await self.subscribe()
        return False

    def announce(self, exchange: bytes) -> None:
        """Schedule the announcement of a changed exchange."""
        if self._exchange is None:
            return
        self._pending.add(exchange)
        if self._sending is None or self._sending.done():
            work = self._supervisor.keep("announcements", self._send, self._vhost)
            self._sending = asyncio.get_running_loop().create_task(work)

    async def close(self) -> None:
        """Send pending announcements and stop."""
        if self._sending is not None:
            await asyncio.gather(self._sending, return_exceptions=True)

    async def _send(self) -> None:
        while self._pending:
            await asyncio.sleep(_GATHER_SECONDS)
            names, self._pending = self._pending, set()
            exchange = self._exchange
            if exchange is None:
                return
            try:
                async with asyncio.timeout(_DEADLINE_SECONDS):
                    await exchange.publish(Message(encode_announcement(self._sender, names)), "")
            except (AMQPError, RuntimeError, OSError, TimeoutError, UpstreamError) as error:
                self._exchange = None
                self._failed(error)

    async def _received(self, message: AbstractIncomingMessage) -> None:
        heard = decode_announcement(message.body)
        if heard is not None and heard[0] != self._sender:
            self._heard(heard[1])

    def _failed(self, error: BaseException) -> None:
        last, self._error = self._error, cause_of(error)
        if self._error != last:
            log.warning("client declarations are not announced to other sidecars", vhost=self._vhost, error=self._error)


def encode_announcement(sender: bytes, names: set[bytes]) -> bytes:
    return sender + b"".join(map(shortstr, sorted(names))) if len(names) <= _NAMES else sender


def decode_announcement(body: bytes) -> tuple[bytes, set[bytes] | None] | None:
    """Return a message's sender and exchanges (None means all exchanges); None if the message is invalid."""
    sender, rest = body[:_SENDER_BYTES], body[_SENDER_BYTES:]
    if len(sender) < _SENDER_BYTES:
        return None
    names: set[bytes] = set()
    while rest:
        end = 1 + rest[0]
        if len(rest) < end:
            return None
        names.add(rest[1:end])
        rest = rest[end:]
    return sender, names or None
