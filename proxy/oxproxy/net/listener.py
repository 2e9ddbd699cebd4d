"""Accepts producers: listening sockets, TLS handshakes, limits on connections, and the drain at shutdown.

A connection counts towards the limits from the moment it is accepted, before TLS and before its first byte. Otherwise,
silent peers would exhaust the file descriptors that the admin pages and the control plane need. For the same reason,
the maximum number of connections is lowered at startup if RLIMIT_NOFILE does not suffice.

A TLS handshake has a deadline and uses the context that is current when the connection is accepted.

Drain: stop accepting, wait for confirms until the deadline, close every producer connection with 320, then abort
connections that are still open.

Sources: asyncio "Event Loop", `connect_accepted_socket`; RFC 8446, 6.2 (alerts); getrlimit(2), RLIMIT_NOFILE.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import structlog

from oxproxy.errors import ConfigError
from oxproxy.net.context import SessionContext
from oxproxy.net.link import peer_address
from oxproxy.net.session import Session
from oxproxy.net.tasks import Tasks
from oxproxy.net.tls import ContextProvider, words

_log = structlog.get_logger(__name__)
#: Interval between checks for unconfirmed publishes during a drain.
_CHECK_SECONDS = 0.05
#: Maximum number of producers that are being refused with a reason at the same time (part of `RESERVED_DESCRIPTORS`).
#: Others are closed without a reason, so that a flood of connections does not exhaust file descriptors.
REFUSED_AT_ONCE = 64
_BACKLOG = 1024
#: Maximum number of connections that a listening socket accepts in one iteration of the event loop.
_ACCEPTED_AT_ONCE = 64
#: Pause after an accept has failed, for example because too many files are open. asyncio uses the same value.
_ACCEPT_PAUSE_SECONDS = 1.0
#: Errors that occur if the machine has no address of the requested address family.
_NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
#: Each producer needs one socket to the producer and one socket to the broker.
DESCRIPTORS_PER_PRODUCER = 2
#: Descriptors for everything else: 64 refused producers (`REFUSED_AT_ONCE`), 64 connections to the admin address
#: (`admin.server.MOST_CONNECTIONS`), and 128 for listeners, the control plane, the audit log and remote brokers.
RESERVED_DESCRIPTORS = 256


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Limits of the listener.

    Args:
        connections: maximum number of producers; further producers are refused with 530.
        connections_per_peer: maximum number per client address; 0: no separate limit.
        settle_seconds: how long a drain waits for unconfirmed publishes.
        close_seconds: how long the drain then waits for close-oks.
    """

    connections: int = 10000
    connections_per_peer: int = 0
    settle_seconds: float = 10.0
    close_seconds: float = 5.0


class ListenError(OSError):
    """Listening failed on one of the addresses; `index` is the position of that address."""

    def __init__(self, index: int, error: OSError) -> None:
        super().__init__(error.errno, error.strerror)
        self.index = index


def admitted_connections(connections: int, kept: int = 0, *, configured: bool = True) -> int:
    """Raise this process's limit on file descriptors as far as needed and permitted; log if it remains too low.

    Args:
        connections: maximum number of producers.
        kept: maximum number of upstream connections kept for reuse.
        configured: whether the maximum was configured. A default that can't be reached deserves no warning.

    Returns:
        The configured number of producers, or a smaller number if the file descriptors do not suffice.
    """
    reserve = RESERVED_DESCRIPTORS + kept
    needed = DESCRIPTORS_PER_PRODUCER * connections + reserve
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections
    limit = max(soft, min(needed, needed if hard == resource.RLIM_INFINITY else hard))
    if limit > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (OSError, ValueError):  # some systems permit less than they report
            limit = soft
    if limit >= needed:
        return connections
    admitted = max(1, (limit - reserve) // DESCRIPTORS_PER_PRODUCER)
    text = "too few file descriptors for limits.connections; the limit is lowered"
    write = _log.warning if configured else _log.info
    write(text, descriptors=limit, needed=needed, permitted=connections, admitted=admitted)
    return admitted


async def listening_sockets(host: str, port: int, backlog: int, *, reuse_port: bool = False) -> list[socket.socket]:
    """Return a listening socket for each address of a host, except those of an address family that the machine lacks.

    Args:
        port: port to bind; 0 for any free port, which differs between the addresses.
        backlog: maximum number of connections that are not accepted yet, for each socket.
        reuse_port: whether other processes may listen on the same addresses (socket(7), SO_REUSEPORT).

    Raises:
        OSError: the host can't be resolved, an address can't be bound, or the machine lacks all address families.
    """
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # uvloop's `getaddrinfo` removes the scope id of an address.
    infos = await asyncio.get_running_loop().run_in_executor(None, look_up)
    sockets: list[socket.socket] = []
    absent: OSError | None = None
    for family, _, _, _, address in dict.fromkeys(infos):
        try:
            listening = socket.create_server(
                address, family=family, backlog=backlog, reuse_port=reuse_port, dualstack_ipv6=False
            )
        except OSError as error:
            if error.errno not in _NO_SUCH_FAMILY:
                for earlier in sockets:
                    earlier.close()
                raise
            absent = error  # `localhost` resolves to an IPv6 address even if IPv6 is disabled
            continue
        listening.setblocking(False)
        sockets.append(listening)
    if absent is not None and not sockets:
        raise absent
    return sockets


class Listener:
    """Accepts producers on all listening addresses.

    Args:
        addresses: (host, port) to listen on; port 0 selects a free port.
        tls: providers of TLS contexts for new connections, by index of the listening address.
        reuse_port: indexes of the addresses that other processes may also listen on.
    """

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        context: SessionContext,
        limits: ListenerLimits,
        tls: Mapping[int, ContextProvider] | None = None,
        reuse_port: Collection[int] = (),
    ) -> None:
        self._tls = tls or {}
        self._reuse_port = reuse_port
        self._addresses = addresses
        self._context = context
        self._limits = limits
        self._sockets: list[socket.socket] = []
        #: tasks that connect accepted sockets to their sessions; with TLS, after the handshake
        self._tasks = Tasks()
        self._sessions: set[Session] = set()
        #: sessions that are not being refused, with their client addresses
        self._admitted: dict[Session, str] = {}
        self._hosts: Counter[str] = Counter()
        self._empty = asyncio.Event()
        self.draining = False

    async def start(self) -> list[tuple[str, int]]:
        """Listen; return the listening addresses.

        Raises:
            ListenError: listening on an address failed.
        """
        bound: list[tuple[str, int]] = []
        for index, address in enumerate(self._addresses):
            try:
                bound += await self._listen(*address, self._tls.get(index), index in self._reuse_port)
            except OSError as error:
                self._close_sockets()
                raise ListenError(index, error) from error
        return bound

    async def _listen(
        self, host: str, port: int, tls: ContextProvider | None, reuse_port: bool
    ) -> list[tuple[str, int]]:
        listening = await listening_sockets(host, port, _BACKLOG, reuse_port=reuse_port)
        self._sockets += listening
        for sock in listening:
            asyncio.get_running_loop().add_reader(sock, self._accept, sock, tls)
        return [sock.getsockname()[:2] for sock in listening]

    def audit_durable(self, sequence: int) -> None:
        for session in tuple(self._sessions):
            session.audit_durable(sequence)

    def audit_failing(self) -> None:
        for session in tuple(self._sessions):
            session.audit_failing()

    def audit_full(self, full: bool) -> None:
        for session in self._sessions:
            session.audit_full(full)

    def _accept(self, listening: socket.socket, tls: ContextProvider | None) -> None:
        """Accept pending connections up to a limit; the others are accepted in the next iteration of the event loop."""
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning("no connection can be accepted", error=error.strerror or str(error), repeat="accept")
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                loop.call_later(_ACCEPT_PAUSE_SECONDS, self._accept_again, listening, tls)
                return
            connection.setblocking(False)
            self._receive(connection, *peer_address(address), tls)

    def _accept_again(self, listening: socket.socket, tls: ContextProvider | None) -> None:
        if not self.draining:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening, tls)

    def _receive(self, connection: socket.socket, host: str, name: str, tls: ContextProvider | None) -> None:
        """Create the session for a new connection, or close the connection if it is refused without a reason."""
        refusal = self._refusal(host, name)
        if refusal == "":
            self._context.counters.downstream.results["refused"] += 1
            connection.close()
            return
        session = Session(self._context, self._ended, refusal)
        self._sessions.add(session)
        if refusal is None:
            self._admitted[session] = host
            self._hosts[host] += 1
        self._tasks.start(self._join(connection, session, name, tls), "accept")

    async def _join(self, connection: socket.socket, session: Session, name: str, tls: ContextProvider | None) -> None:
        """Connect a socket to its session; with TLS, do so after the TLS handshake."""
        protocol = session.producer
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                await self._handshake(connection, protocol, name, tls)
            else:
                await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, connection)
        except BaseException as error:
            connection.close()
            protocol.connection_lost(None)  # the session must always be notified that it has no socket
            if not isinstance(error, OSError):
                raise

    async def _handshake(
        self, connection: socket.socket, protocol: asyncio.Protocol, name: str, tls: ContextProvider
    ) -> None:
        """Perform the TLS handshake and connect the protocol.

        Raises:
            OSError: the handshake failed. The failure has been counted and logged, unless the peer has disconnected.
        """
        limits = self._context.limits
        try:
            async with asyncio.timeout(limits.handshake_seconds):
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: protocol,
                    connection,
                    ssl=tls(),
                    ssl_handshake_timeout=limits.handshake_seconds,
                    ssl_shutdown_timeout=limits.close_seconds,
                )
                return
        except (TimeoutError, ConnectionAbortedError):  # ConnectionAbortedError: `ssl_handshake_timeout` has expired
            result, reason = "timeout", f"no TLS handshake within {limits.handshake_seconds:g} s"
        except (ssl.SSLError, ConfigError) as error:
            result, reason = "tls_error", words(error)
        self._context.counters.downstream.results[result] += 1
        _log.info("producer not connected", peer=name, result=result, reason=reason)
        raise ConnectionAbortedError(reason)

    def _refusal(self, host: str, name: str) -> str | None:
        """Return the reason for refusing a producer; None if it is accepted, "" if it is refused without a reason."""
        if self.draining:
            return ""
        limits = self._limits
        if len(self._admitted) >= limits.connections:
            reason, limit, text = "connections", limits.connections, "connections"
        elif 0 < limits.connections_per_peer <= self._hosts[host]:
            reason, limit = "connections_per_peer", limits.connections_per_peer
            text = f"connections from {host}"
        else:
            return None
        self._context.counters.limits.rejected_connections[reason] += 1
        _log.warning("too many connections", limit=limit, reason=reason, peer=name, repeat=reason)
        if len(self._sessions) - len(self._admitted) >= REFUSED_AT_ONCE:
            return ""
        return f"connection refused: the limit of {limit} {text} has been reached"

    def _ended(self, session: Session) -> None:
        self._sessions.discard(session)
        host = self._admitted.pop(session, None)
        if host is not None:
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]
        if not self._sessions:
            self._empty.set()

    def _settling(self) -> int:
        """Return the number of sessions with unconfirmed publishes, and stop reading from their producers."""
        return sum([session.settling() for session in self._sessions])

    def _close_sockets(self) -> None:
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()

    async def drain(self) -> None:
        """Stop accepting, wait for confirms, close every producer connection with 320, then close the sockets.

        At the deadline, unconfirmed publishes to other brokers are nacked; publishes to our broker stay unconfirmed.
        """
        self.draining = True
        self._close_sockets()
        await self._tasks.ended()
        loop = asyncio.get_running_loop()
        # This runs concurrently, since a broker that does not respond must not prolong the drain.
        stopping = None if self._context.reuse is None else loop.create_task(self._context.reuse.stop())
        end = loop.time() + self._limits.settle_seconds
        while self._settling():
            if loop.time() >= end:
                _log.warning("publishes not confirmed in time", seconds=self._limits.settle_seconds)
                self._context.remotes.give_up()
                break
            await asyncio.sleep(_CHECK_SECONDS)
        for session in tuple(self._sessions):
            session.close(320, "the proxy is shutting down")
        if self._sessions:
            self._empty.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), self._limits.close_seconds)
        for session in tuple(self._sessions):
            session.abort()
        if stopping is not None:
            await stopping
