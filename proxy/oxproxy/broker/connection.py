"""The control user's AMQP connection to one virtual host, and the settings for the control plane.

When the broker refuses a declaration, it closes the channel. Each pooled channel is therefore used for only one method
or one batch of binds at a time, and is discarded after a refusal, so that other declarations are not affected. `log_in`
recognizes refused logins. If the client has announced the capability ``authentication_failure_close``, the broker
closes the connection with 403; otherwise, it just drops the connection.

The connection is a plain aio-pika connection, and `vhost_loop` reconnects after a loss. A robust aio-pika connection
would redeclare objects that may be obsolete. aiormq, on which aio-pika is based, is used directly only here and in
`methods`, for these reasons:

- `_Transport`: aiormq does not report why the broker refuses a virtual host, and drops a Channel.CloseOk if ten frames
  are already waiting to be written. The broker then refuses this channel number until the connection is closed.
  aio-pika has no option for the length of this write buffer, nor for the server name expected in a certificate. It also
  does not support virtual hosts whose names are ``..`` or contain ``%2F``, since it puts the name into a URL.
- `_Channel`: aio-pika adds a callback to the connection for each channel and never removes it. Each refusal therefore
  costs 3 KiB until the connection is closed. aio-pika also does not open channels while the broker blocks publishers.
- `methods.send` sends argument tables as raw bytes, and permits names that pamqp refuses.
- `methods.make_all` sends several binds in one write and waits for one reply.

Sources: AMQP 0-9-1 spec, 2.2.4 (opening a connection), 2.2.7 and 4.8 (a channel exception closes the channel);
RabbitMQ's guides on channels and on authentication failures.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, TypeVar

import aio_pika
import aiormq
from aio_pika.abc import AbstractChannel, TimeoutType, UnderlayChannel, UnderlayConnection
from aio_pika.connection import make_url
from aio_pika.tools import OneShotCallback
from aiormq import spec
from aiormq.channel import EXCEPTION_MAPPING
from aiormq.exceptions import (
    AMQPError,
    ChannelClosed,
    ChannelInvalidStateError,
    ConnectionClosed,
    ProbableAuthenticationError,
)

from oxproxy.broker.methods import LOCKED, NOT_FOUND, Bind, Find, Method, Refusal, make, make_all
from oxproxy.broker.task_supervisor import end_if_cancelled, gather_all
from oxproxy.broker.versions import BrokerVersion, announced
from oxproxy.errors import UpstreamError, UpstreamFailure
from oxproxy.relay.tokens import Secrets
from oxproxy.relay.vhost import ClientRoutes
from oxproxy.values import Destination, shown_user


@dataclass(frozen=True, slots=True)
class DeclaredSettings:
    """Settings for client declarations.

    Args:
        client_routes: which routes clients' bindings may have.
        announce: whether sidecars announce changes to each other through a fanout exchange on the broker.
        secrets: the secrets that sign data stored on the broker.
    """

    client_routes: ClientRoutes = ClientRoutes.OWN
    announce: bool = False
    secrets: Secrets = field(default_factory=Secrets)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS settings of a connection.

    Args:
        context: returns the context for a new connection.
        server_name: expected name in the certificate; None for the host name.
        words: returns a description of a TLS error.
    """

    context: Callable[[], ssl.SSLContext]
    server_name: str | None = None
    words: Callable[[BaseException], str] = str


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """Address of the broker, credentials, and all limits of the control plane: independent values of the configuration.

    Args:
        hosts: (host, port) of each AMQP listener, tried in this order.
        username: the control user.
        password: the control user's password; never shown.
        tls: TLS settings for the AMQP listeners; None for plain TCP.
        management: base URL of the management API; None to work without this API.
        management_tls: TLS settings for an ``https`` management API; None to trust the system's CA certificates.
        refresh_seconds: interval between reconcile passes.
        deadline_seconds: timeout for a reply, and for binding a destination.
        listing_seconds: timeout for listing the bindings of an exchange. RabbitMQ sends nothing until the list is
            complete, and listing 100,000 bindings takes longer than `deadline_seconds`.
        heartbeat_seconds: AMQP heartbeat interval of the control connections.
        retry_seconds: first pause before a reconnect. It doubles after each failure, up to `retry_limit_seconds`.
        retry_limit_seconds: maximum pause before a reconnect.
        bind_limit: maximum number of destinations per virtual host that are bound on demand.
        remember_limit: maximum number of cached destinations that could not be bound on demand.
        retries_per_pass: maximum number of failed actions retried in one pass, and of destinations verified in one
            pass.
        listing_bytes: maximum size of a response from the management API. A list of 10,000 queues takes 0.5 MB.
        remove_foreign: whether foreign bindings on a carrier are removed, which requires the management API.
        patience_seconds: time for which startup waits for the management API before it continues without client
            declarations.
        declared: settings for client declarations.
    """

    hosts: tuple[tuple[str, int], ...]
    username: str
    password: str = field(repr=False)
    tls: TlsSettings | None = None
    management: str | None = None
    management_tls: TlsSettings | None = None
    refresh_seconds: float = 5.0
    deadline_seconds: float = 10.0
    listing_seconds: float = 120.0
    heartbeat_seconds: int = 30
    retry_seconds: float = 0.5
    retry_limit_seconds: float = 30.0
    bind_limit: int = 10_000
    remember_limit: int = 10_000
    retries_per_pass: int = 256
    listing_bytes: int = 256 * 1024 * 1024
    remove_foreign: bool = False
    patience_seconds: float = 10.0
    declared: DeclaredSettings = field(default_factory=DeclaredSettings)


# Whenever these libraries log a warning, they also raise an exception, which is logged with the virtual host.
for _library in ("aiormq", "aio_pika"):
    logging.getLogger(_library).setLevel(logging.CRITICAL)


class VhostNotFound(UpstreamError):  # noqa: N818 - a reply, not an error
    """According to the broker, the virtual host does not exist."""


class _Transport(aiormq.Connection):
    """aiormq's connection; see the module docstring."""

    FRAME_BUFFER_SIZE = 1024  # each of our channels has at most one frame in the buffer

    @staticmethod
    async def _rpc(request: Any, *arguments: Any, **options: Any) -> Any:  # Any: as aiormq calls it
        if isinstance(request, spec.Connection.Open):
            vars(request)["valid_responses"] = [*request.valid_responses, spec.Connection.Close.name]
        return await aiormq.Connection._rpc(request, *arguments, **options)


class _Channel(aio_pika.Channel):
    """aio-pika's channel, except that its callback is removed when the channel closes; see the module docstring."""

    async def _open(self) -> None:
        transport = self._connection.transport
        if transport is None:
            raise AMQPError("connection closed")
        channel = await transport.connection.channel(self._channel_number, publisher_confirms=False)
        closed = OneShotCallback(self._on_close)
        channel.closing.add_done_callback(closed)
        self._channel = UnderlayChannel(channel=channel, close_callback=closed)
        await self._on_open()


class AmqpConnection(aio_pika.Connection):
    """A connection to one virtual host."""

    CHANNEL_CLASS = _Channel

    def __init__(self, settings: ControlSettings, vhost: str, host: str, port: int) -> None:
        tls = settings.tls
        super().__init__(
            make_url(
                host=host,
                port=port,
                login=settings.username,
                password=settings.password,
                ssl=tls is not None,
                heartbeat=settings.heartbeat_seconds,
            ),
            ssl_context=tls.context() if tls is not None else None,
            client_properties={"connection_name": "oxproxy control", "product": "oxproxy"},
        )
        self._vhost = vhost
        if tls is not None and tls.server_name:
            self.kwargs["server_hostname"] = tls.server_name
        #: Set when the connection is closed or a reply is overdue. Heartbeats would take minutes to detect a loss.
        self.lost = asyncio.Event()
        self.close_callbacks.add(lambda *_: self.lost.set())

    async def connect(self, timeout: TimeoutType = None) -> None:  # noqa: ASYNC109 - aio-pika's signature
        transport = _Transport(self.url, **self.kwargs)
        transport.vhost = self._vhost
        try:
            # `wait_for` is not used: in Python 3.11, it loses a cancellation that coincides with a failed attempt.
            async with asyncio.timeout(timeout):
                await transport.connect()
        except BaseException:
            await self.close()  # otherwise, aio-pika closes the connection at garbage collection, in an unawaited task
            raise
        closed = OneShotCallback(self._on_connection_close)
        transport.closing.add_done_callback(closed)
        self.transport = UnderlayConnection(connection=transport, close_callback=closed)
        await self._on_connected()

    @property
    def opened(self) -> aiormq.abc.AbstractConnection:
        """The underlying aiormq connection. If it was closed, AMQPError is raised."""
        if self.transport is None:
            raise AMQPError("connection closed")
        return self.transport.connection


#: RabbitMQ's reply text if a virtual host does not exist. The reply code is the same if the user has no permission, or
#: if the virtual host is down.
_NOT_FOUND = re.compile("NOT_ALLOWED - vhost .* not found", re.DOTALL)
#: A web server, for example, closes the connection at the end of AMQP's protocol header.
_CLOSED_AT_LOGIN = "connection closed during the login; check that this is the broker's AMQP port"


async def log_in(settings: ControlSettings, vhost: str, host: str, port: int) -> AmqpConnection:
    """Open a connection to one host.

    Raises:
        UpstreamError: REFUSED if the broker refused the user or the virtual host (`VhostNotFound` if the virtual host
            does not exist), TIMEOUT at the deadline, or UNAVAILABLE.
    """
    place = f"{host}:{port}"
    connection = AmqpConnection(settings, vhost, host, port)
    try:
        await connection.connect(settings.deadline_seconds)
    except TimeoutError as error:
        text = f"{place} did not respond within {settings.deadline_seconds:g} s"
        raise UpstreamError(UpstreamFailure.TIMEOUT, text) from error
    except (ProbableAuthenticationError, ConnectionClosed) as error:
        reason = str(error.args[-1])
        if _NOT_FOUND.fullmatch(reason) is not None:
            text = f"{place} refused vhost {vhost!r}: it does not exist"
            raise VhostNotFound(UpstreamFailure.REFUSED, text) from error
        text = f"{place} refused user {shown_user(settings.username)!r} in vhost {vhost!r}: {reason}"
        raise UpstreamError(UpstreamFailure.REFUSED, text) from error
    except StopAsyncIteration as error:  # raised by aiormq if the socket was closed immediately
        raise UpstreamError(UpstreamFailure.UNAVAILABLE, f"{place}: {_CLOSED_AT_LOGIN}") from error
    except (AMQPError, OSError) as error:
        if settings.tls is not None and isinstance(error.__cause__, ssl.SSLError):
            raise UpstreamError(
                UpstreamFailure.UNAVAILABLE, f"{place}: {settings.tls.words(error.__cause__)}"
            ) from error
        cause = _CLOSED_AT_LOGIN if isinstance(error.__cause__, asyncio.IncompleteReadError) else cause_of(error)
        raise UpstreamError(UpstreamFailure.UNAVAILABLE, f"{place}: {cause}") from error
    return connection


def cause_of(error: BaseException) -> str:
    """Return a brief description of an exception raised by aiormq or a socket."""
    if isinstance(error, ChannelInvalidStateError):  # its text contains the memory address of an object
        return "channel closed"
    under = error.__cause__
    if isinstance(under, OSError) and under.errno and under.errno > 0:  # negative numbers are resolver errors
        return os.strerror(under.errno)  # asyncio's text repeats the network address
    text = str(error.args[-1]) if error.args else ""
    return text or type(error).__name__


#: Number of channels reserved for single methods. A client's declare therefore never waits for bulk binds.
_SINGLES = 8
#: Maximum number of concurrent channels for bulk declarations. The broker processes declarations on a channel in
#: sequence and syncs each to disk, so 32 channels bind four times as fast as one.
_LANES = 32
#: Number of idle channels that are kept open; others are closed after a bulk operation.
_KEPT_IDLE = 8
#: Number of binds in a batch, to which the broker sends one reply: large enough to save round trips, but small enough
#: for the reply to arrive before the deadline.
_BINDS_AHEAD = 16
#: AMQP 0-9-1 spec, 1.4.2.6: channel-max 0 means no limit; channel numbers have 16 bits.
_NO_LIMIT = 65535

T = TypeVar("T")

#: Reply codes, by the class of aiormq's exception, since the exceptions themselves do not contain the codes.
_CODES = {kind: code for code, kind in EXCEPTION_MAPPING.items()}


class ControlConnection:
    """The control user's connection to one virtual host. To reconnect, call `connect` again.

    Methods raise `UpstreamError` if there is no connection, if it is lost, or if no reply arrives in time.
    """

    def __init__(self, settings: ControlSettings, vhost: str) -> None:
        self._settings = settings
        self._vhost = vhost
        self._connection: AmqpConnection | None = None
        self._idle: list[AbstractChannel] = []
        self._singles = asyncio.Semaphore(_SINGLES)
        self._bulk = asyncio.Semaphore(1)
        self._channel_max = 1
        self._last_number = 0

    @property
    def connected(self) -> bool:
        """True if the connection is open and no reply is overdue."""
        connection = self._connection
        return connection is not None and not connection.lost.is_set() and not connection.opened.is_closed

    @property
    def version(self) -> BrokerVersion:
        """The broker's product and version; both are empty while there is no connection."""
        return announced({} if self._connection is None else self._connection.opened.server_properties)

    async def connect(self) -> None:
        """Connect to the first host that responds.

        Raises:
            UpstreamError: REFUSED if a host refused the user or virtual host, otherwise UNAVAILABLE with all errors.
        """
        await self.close()
        failures: list[str] = []
        for host, port in self._settings.hosts:
            try:
                self._connection = await log_in(self._settings, self._vhost, host, port)
            except UpstreamError as error:
                if error.failure is UpstreamFailure.REFUSED:
                    raise
                failures.append(error.message)
            else:
                self._channel_max = self._connection.opened.connection_tune.channel_max or _NO_LIMIT
                self._bulk = asyncio.Semaphore(max(1, min(_LANES, self._channel_max // 4)))
                self._singles = asyncio.Semaphore(max(1, min(_SINGLES, self._channel_max // 4)))
                return
        raise UpstreamError(UpstreamFailure.UNAVAILABLE, "; ".join(failures))

    async def wait_lost(self, timeout_seconds: float, wake: asyncio.Event | None = None) -> bool:
        """Wait for the loss of the connection, the timeout or `wake`; return True if the connection is lost."""
        if self._connection is not None and self.connected:
            events = [self._connection.lost, wake] if wake is not None else [self._connection.lost]
            waiting = [asyncio.ensure_future(event.wait()) for event in events]
            try:
                await asyncio.wait(waiting, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for future in waiting:
                    future.cancel()
        return not self.connected

    async def call(self, method: Method) -> Refusal | None:
        """Send a method and wait for the reply; return the broker's refusal, or None if the method was accepted."""

        async def once() -> Refusal | None:
            async with self._singles:
                return await self._send(partial(make, method))

        return await self._while_open(once())

    async def call_all(self, methods: Sequence[Method]) -> list[Refusal | None]:
        """Send many methods, in no particular order. After an error, some methods may have been carried out.

        Returns:
            For each method, the broker's refusal, or None if it accepted the method.
        """
        refusals: list[Refusal | None] = [None] * len(methods)
        binds = [
            (index, method) for index, method in enumerate(methods) if isinstance(method, Bind) and not method.unbinds
        ]
        batches = [binds[at : at + _BINDS_AHEAD] for at in range(0, len(binds), _BINDS_AHEAD)]
        left = dict(enumerate(methods))
        ahead = iter([batch for batch in batches if len(batch) > 1])

        async def bind_ahead() -> None:
            for batch in ahead:
                if await self._send(partial(make_all, [bind for _, bind in batch])) is None:
                    for index, _ in batch:
                        del left[index]

        async def call_singly() -> None:
            for index, method in singly:
                refusals[index] = await self._send(partial(make, method))

        await self._while_open(self._in_lanes(bind_ahead, len(batches)))
        singly = iter(left.items())
        await self._while_open(self._in_lanes(call_singly, len(left)))
        return refusals

    async def find_missing(self, destinations: Iterable[Destination]) -> dict[Destination, str]:
        """Return the given destinations that do not exist on the broker, with the reason.

        Since RabbitMQ 4.2.6, a user needs configure permission on an object to look it up. A refusal shows nothing.
        """
        asked = list(destinations)
        refusals = await self.call_all([Find(destination) for destination in asked])
        return {
            destination: refusal.reason(destination[0])
            for destination, refusal in zip(asked, refusals, strict=True)
            if refusal is not None and refusal.code == NOT_FOUND
        }

    async def find_existing(self, destinations: Iterable[Destination]) -> set[Destination]:
        """Return the given destinations that certainly exist on the broker. A refusal with 403 shows nothing."""
        asked = list(destinations)
        refusals = await self.call_all([Find(destination) for destination in asked])
        return {
            destination
            for destination, refusal in zip(asked, refusals, strict=True)
            if refusal is None or refusal.code == LOCKED
        }

    async def _in_lanes(self, work: Callable[[], Awaitable[None]], count: int) -> None:
        """Run `work` up to `count` times concurrently, but at most once per lane (a channel for bulk declarations)."""

        async def lane() -> None:
            async with self._bulk:
                await work()

        await gather_all(lane() for _ in range(min(_LANES, count)))
        await self._trim()

    async def channel(self) -> AbstractChannel:
        """Return an open channel for purposes other than sending single methods."""
        return await self._while_open(self._channel())

    async def close(self) -> None:
        """Close the connection, and wait for the broker's close-ok until the deadline."""
        connection, self._connection = self._connection, None
        self._idle.clear()
        if connection is None:
            return
        connection.lost.set()
        try:
            async with asyncio.timeout(self._settings.deadline_seconds):
                await connection.close()
        except (AMQPError, OSError, TimeoutError):
            return

    async def _while_open(self, work: Coroutine[object, None, T]) -> T:
        """Run work that needs the connection, and cancel the work when the connection is lost.

        If the connection closes during a call, aiormq occasionally never completes the call.
        """
        connection = self._connection
        if connection is None or connection.lost.is_set():
            work.close()
            self._unavailable("not connected")
        doing = asyncio.ensure_future(work)
        lost = asyncio.ensure_future(connection.lost.wait())
        try:
            await asyncio.wait((doing, lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
            if not doing.done():
                doing.cancel()
                await asyncio.gather(doing, return_exceptions=True)
        if doing.cancelled():
            self._unavailable("connection closed")
        return doing.result()

    async def _channel(self) -> AbstractChannel:
        while self._idle:
            channel = self._idle.pop()
            if not channel.is_closed:
                return channel
        if self._connection is None:
            self._unavailable("connection closed")
        with self._translated():
            channel = self._connection.channel(self._number(self._connection), publisher_confirms=False)
            async with asyncio.timeout(self._settings.deadline_seconds):
                await channel.initialize()
        return channel

    def _number(self, connection: AmqpConnection) -> int:
        # Numbers are assigned round-robin. Otherwise, aiormq would reuse the number of a closed channel before the
        # close-ok is written.
        for _ in range(self._channel_max):
            self._last_number = self._last_number % self._channel_max + 1
            if self._last_number not in connection.opened.channels:
                return self._last_number
        self._unavailable(f"all {self._channel_max} channels are in use")

    async def _send(self, sending: Callable[[AbstractChannel, float], Awaitable[None]]) -> Refusal | None:
        """Call `sending` with a free channel and the timeout for the reply; return the broker's refusal, if any."""
        channel, refusal = await self._channel(), None
        with self._translated():
            try:
                await sending(channel, self._settings.deadline_seconds)
            except ChannelClosed as error:
                code = _CODES.get(type(error), error.args[0])
                if code is None:  # closed by us, since the connection is shutting down
                    self._unavailable("connection closed", error)
                refusal = Refusal(code, str(error.args[-1]))
        end_if_cancelled()
        self._idle.append(channel)
        return refusal

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate exceptions raised by aio-pika and aiormq into `UpstreamError`."""
        try:
            yield
        except UpstreamError:
            raise
        except TimeoutError as error:
            if self._connection is not None:
                self._connection.lost.set()
            text = f"vhost {self._vhost!r}: no response within {self._settings.deadline_seconds:g} s"
            raise UpstreamError(UpstreamFailure.TIMEOUT, text) from error
        except asyncio.CancelledError as error:
            # aiormq cancels operations that wait for a closed connection. The exception is propagated only if our own
            # task has been cancelled.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._unavailable("connection closed", error)
        except Exception as error:  # noqa: BLE001 - aiormq raises a plain Exception if the connection is closing
            self._unavailable(cause_of(error), error)

    def _unavailable(self, cause: str, error: BaseException | None = None) -> NoReturn:
        raise UpstreamError(UpstreamFailure.UNAVAILABLE, f"vhost {self._vhost!r}: {cause}") from error

    async def _trim(self) -> None:
        # The channels with the lowest numbers, usually the oldest, are kept: the garbage collector never frees objects
        # that existed at the last reload (`app.reload`), so closing old channels would free less memory.
        self._idle.sort(key=lambda channel: channel.number or 0)
        extra, self._idle[:] = self._idle[_KEPT_IDLE:], self._idle[:_KEPT_IDLE]
        for channel in extra:
            if not channel.is_closed:
                with suppress(AMQPError, RuntimeError, OSError, TimeoutError):
                    async with asyncio.timeout(self._settings.deadline_seconds):
                        await channel.close()
