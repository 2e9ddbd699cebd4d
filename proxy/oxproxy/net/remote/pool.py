"""Manages the links to other brokers, which all producers share.

Messages for the same broker and login share a link, on which each channel of a producer has its own lane. If a link is
full, only the producers that use this link must wait.

Source: the messenger-addressing specification, sections 3.2 (pooling) and 3.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from oxproxy.addressing.targets import Remote
from oxproxy.net.remote.connection import IDLE_SECONDS, RemoteConnection
from oxproxy.net.remote.endpoints import Endpoint, RemoteBroker, endpoint
from oxproxy.net.tasks import Tasks
from oxproxy.net.tls import TlsContexts
from oxproxy.relay.counters import Counters, RemoteCounters
from oxproxy.relay.remote_link import Lane, RemoteMessage, RemotePublisher
from oxproxy.yamlfile.hosts import HostPort, is_own_address

#: Maximum number of concurrent links, not counting those that a reload has replaced. A limit is needed because a rule
#: may take the host from the address.
_MOST_LINKS = 256
#: Maximum number of brokers with separate metrics; all others are counted together.
_MOST_LABELS = 100
_OTHER = "other"


class RemotePool:
    """The links to other brokers.

    Args:
        brokers: configured brokers, by virtual host and name.
        tasks: runs the links.
    """

    def __init__(
        self,
        brokers: Mapping[str, Mapping[bytes, RemoteBroker]],
        counters: Counters,
        version: str,
        tasks: Tasks,
        contexts: TlsContexts,
    ) -> None:
        self._contexts = contexts
        self.brokers = brokers
        self._counters = counters
        self._version = version
        self._tasks = tasks
        self._connections: dict[Endpoint, RemoteConnection] = {}
        self._running: dict[Endpoint, asyncio.Task[Any]] = {}
        self._ports: set[ProducerRemotes] = set()
        #: our listening addresses
        self.listening: Sequence[HostPort] = ()

    def port(self, vhost: str, full: Callable[[bool], None]) -> ProducerRemotes:
        """Return the object through which one producer's connection uses other brokers. This object calls `full`."""
        port = ProducerRemotes(self, vhost, full)
        self._ports.add(port)
        return port

    def connection(self, remote: Remote, vhost: str) -> RemoteConnection | str:
        """Return the link to a broker, or the reason why there is none. The link is started if necessary."""
        target = endpoint(remote, self.brokers.get(vhost, {}), vhost)
        if isinstance(target, str):
            return target
        if is_own_address(target.host, target.port, self.listening):
            return "leads back to this sidecar"
        connection = self._connections.get(target)
        if connection is None:
            self._drop_idle()
            # Replaced links, which end when they are unused, do not count. Otherwise, a reload could reach the limit.
            if sum(not connection.replaced for connection in self._connections.values()) >= _MOST_LINKS:
                return "too many links to other brokers"
            counters = self._counters_of(target.label)
            connection = RemoteConnection(
                target, counters, self._version, self._contexts, self._is_ourselves, self._changed
            )
            counters.wanted += 1
            self._connections[target] = connection
            self._running[target] = self._tasks.start(connection.run(), f"link to {target.label}")
        connection.endpoint = target  # the endpoint's limits may have changed
        connection.replaced = False
        return connection

    def use(self, brokers: Mapping[str, Mapping[bytes, RemoteBroker]]) -> None:
        """Put configured brokers into use. Open channels and waiting messages move to a broker's new endpoint."""
        self.brokers = brokers
        for connection in self._connections.values():
            connection.replaced = True  # until one of its publishers requests the same link again
        for port in tuple(self._ports):
            port.renew()
        self._drop_idle()

    def status(self) -> list[dict[str, object]]:
        """Return the broker, connection state, error and number of unconfirmed messages for each link."""
        return [
            {
                "broker": key.label,
                "connected": not connection.failure,
                "error": connection.failure,
                "under_way": connection.load.messages,
            }
            for key, connection in self._connections.items()
        ]

    @property
    def under_way(self) -> int:
        return sum(connection.load.messages for connection in self._connections.values())

    async def drain(self, seconds: float) -> None:
        end = monotonic() + seconds
        while self.under_way and monotonic() < end:  # noqa: ASYNC110 -- a number, not an event
            await asyncio.sleep(0.05)

    def give_up(self) -> None:
        """Report all messages in progress as lost, so that connected producers get nacks."""
        for connection in tuple(self._connections.values()):  # reporting a result may remove a link
            connection.give_up()

    def _counters_of(self, label: str) -> RemoteCounters:
        remotes = self._counters.remotes
        if label not in remotes and len(remotes) >= _MOST_LABELS:
            label = _OTHER
        return remotes.setdefault(label, RemoteCounters())

    def _drop_idle(self) -> None:
        now = monotonic()
        for key, connection in tuple(self._connections.items()):
            since = connection.unused_since
            if since is not None and (connection.replaced or now - since > IDLE_SECONDS):
                del self._connections[key]
                self._counters_of(key.label).wanted -= 1
                self._running.pop(key).cancel()

    def _is_ourselves(self, own_name: object, peer_name: object) -> bool:
        """Return True if a socket is connected to one of our own listeners."""
        if not (isinstance(own_name, tuple) and isinstance(peer_name, tuple)):
            return False
        ports = {own.port for own in self.listening if own.host in (peer_name[0], "0.0.0.0", "::")}  # noqa: S104
        return peer_name[1] in ports and own_name[0] == peer_name[0]

    def _changed(self) -> None:
        for port in self._ports:
            port.report_full()
        self._drop_idle()

    def close_port(self, port: ProducerRemotes) -> None:
        self._ports.discard(port)


class ProducerRemotes:
    """The other brokers that one producer uses.

    `full` is called with True to pause the producer, and with False to resume it.
    """

    def __init__(self, pool: RemotePool, vhost: str, full: Callable[[bool], None]) -> None:
        self._pool = pool
        self._vhost = vhost
        self._full = full
        self._was_full = False
        self._closed = False
        #: by broker and number of the producer's channel; a publisher is removed when its lane is closed
        self._publishers: dict[tuple[Remote, int], _LanePublisher] = {}

    def publisher(self, remote: Remote, channel: int) -> RemotePublisher | str:
        """Return a publisher for a new channel of the producer, or the reason why there is none."""
        connection = self._pool.connection(remote, self._vhost)
        if isinstance(connection, str):
            return connection
        key = remote, channel
        publisher = self._publishers.get(key)
        if publisher is None:
            publisher = self._publishers[key] = _LanePublisher(
                connection, lambda: self._look_up(key), lambda: self._remove(key)
            )
        else:
            publisher.reopen()
            publisher.use(connection)
        self.report_full()
        return publisher

    def renew(self) -> None:
        """Move the publishers to the links that result from the configured brokers."""
        for (remote, _), publisher in tuple(self._publishers.items()):
            if publisher.may_send:
                publisher.use(self._pool.connection(remote, self._vhost))
        self.report_full()

    def _look_up(self, key: tuple[Remote, int]) -> None:
        self._publishers[key].use(self._pool.connection(key[0], self._vhost))
        self.report_full()

    def report_full(self) -> None:
        """Check whether any link in use is full, and report a change."""
        if self._closed:
            return
        full = any(publisher.connection.load.full for publisher in self._publishers.values())
        if full != self._was_full:
            self._was_full = full
            self._full(full)

    def close(self) -> None:
        """Release the links when the connection is closed. Accepted messages are still sent."""
        self._closed = True
        self._end()

    def _remove(self, key: tuple[Remote, int]) -> None:
        del self._publishers[key]
        self._end()

    def _end(self) -> None:
        if self._closed and not self._publishers:
            self._pool.close_port(self)


class _LanePublisher:
    """Sends the publishes of one producer's channel over a lane.

    Args:
        look_up: calls `use` with the link that results from the configured brokers.
        ended: called when the lane is closed.
    """

    __slots__ = ("_closed", "_ended", "_lane", "_look_up", "_refusal", "connection")

    def __init__(self, connection: RemoteConnection, look_up: Callable[[], None], ended: Callable[[], None]) -> None:
        self._look_up = look_up
        self._ended = ended
        self._closed = False
        #: reason why the broker can no longer be used; empty if it can be used
        self._refusal = ""
        self.connection = connection
        self._lane = connection.lane(self._lane_closed)

    @property
    def may_send(self) -> bool:
        """True if the channel is open, or messages are waiting to be sent."""
        return not self._closed or bool(self._lane.waiting)

    def send(self, message: RemoteMessage) -> None:
        if self._refusal:
            self._look_up()  # the reason, such as too many links, may no longer apply
        if self._refusal:
            self.connection.refuse(message, self._refusal)
        else:
            self.connection.send(self._lane, message)

    def close(self) -> None:
        self._closed = True
        self.connection.leave(self._lane)

    def reopen(self) -> None:
        """Use the publisher for a new channel with the same number."""
        self._closed = False
        self.connection.stay(self._lane)

    def use(self, connection: RemoteConnection | str) -> None:
        """Use the link that results from the configured brokers. If there is none, refuse messages with the reason."""
        self._refusal = connection if isinstance(connection, str) else ""
        if isinstance(connection, str):
            for message in self.connection.take_waiting(self._lane):
                self.connection.refuse(message, connection)
            if self._closed:
                self.close()
        elif connection is not self.connection:
            self._move(connection)

    def _move(self, connection: RemoteConnection) -> None:
        """Continue on another link with the messages that have not been sent yet; the old link keeps the others."""
        old_connection, old_lane = self.connection, self._lane
        self.connection = connection
        self._lane = connection.lane(self._lane_closed)
        for message in old_connection.take_waiting(old_lane):
            self.send(message)
        old_connection.leave(old_lane)
        if self._closed:
            self.close()

    def _lane_closed(self, lane: Lane) -> None:
        if lane is self._lane:
            self._ended()
