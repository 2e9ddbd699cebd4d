"""Sends a publish to other brokers and joins their results with the result from the producer's own broker.

Each target gets one message. A failed translation counts as a copy that is refused at once. The channel's `Ledger` and
`Returns` join the results of all copies. `link` sends the messages.

Source: the messenger-addressing specification, 3.3 and 3.4; architecture, "One publish in, one publish out".
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from proxy.addressing.targets import Remote, Target
from proxy.relay.channel import Channel, CollectedPublish, PendingPublish
from proxy.relay.channel_state import CONFIRM, CONFIRMABLE
from proxy.relay.connection_state import ConnectionState, Phase
from proxy.relay.publish.outgoing import RemoteTargets, remote_header
from proxy.relay.remote.link import RemoteMessage, RemotePublisher, RemoteResult

#: Results that mean that a broker has accepted responsibility for a message.
_TAKEN = frozenset((RemoteResult.ACKED, RemoteResult.RETURNED))


class _Copy(RemoteMessage):
    """One copy of a publish, which is sent to another broker."""

    __slots__ = ("_connection", "_mark", "_origin", "_publish", "_tag")

    def __init__(
        self, connection: ConnectionState, collected: CollectedPublish, target: Target, tag: int, mark: Hashable
    ) -> None:
        publish = collected.publish
        exchange, key = target.publication
        remote_targets = collected.remote_targets
        plain = remote_targets is not None and remote_targets.plain
        header = remote_header(target, plain, collected.original, collected.header)
        super().__init__(exchange, key, publish.mandatory, header[7:-1], bytes(collected.body), connection.traffic.now)
        self._connection = connection
        self._publish = publish
        self._tag = tag
        self._mark = mark
        #: the unchanged header, if the message may be returned
        self._origin = collected.header if publish.mandatory else b""

    def settled(self, result: RemoteResult) -> None:
        connection = self._connection
        comes_back = result is RemoteResult.RETURNED or (not self._tag and result is not RemoteResult.ACKED)
        content = (self._origin, self.body) if comes_back and self._publish.mandatory else None
        _settle(connection, self._publish, self._tag, self._mark, content, result in _TAKEN)


class _OnlyCopy(RemoteMessage):
    """The only copy of a publish, which is sent to another broker. The confirm for the copy settles the publish."""

    __slots__ = ("_channel", "_connection", "_tag")

    def __init__(
        self, connection: ConnectionState, channel: Channel, target: Target, tag: int, header: bytes, body: bytes
    ) -> None:
        exchange, key = target.publication
        super().__init__(exchange, key, False, header, body, connection.traffic.now)
        self._connection = connection
        self._channel = channel
        self._tag = tag

    def settled(self, result: RemoteResult) -> None:
        connection, channel = self._connection, self._channel
        if self._tag and connection.lifecycle.phase is Phase.OPEN and channel.state in CONFIRMABLE:
            connection.send_confirm(channel, self._tag, result in _TAKEN)
            connection.remotes.notify()


def send_alone(
    connection: ConnectionState,
    channel: Channel,
    publisher: RemotePublisher,
    target: Target,
    header: bytes,
    body: bytes,
) -> None:
    """Send a whole publish whose only target is on another broker. The channel has already counted the publish."""
    tag = channel.confirms.published if channel.mode is CONFIRM else 0
    publisher.send(_OnlyCopy(connection, channel, target, tag, header, body))


def copy_ids(remote_targets: RemoteTargets, producer_tag: int) -> list[Hashable]:
    """Create identifiers by which the copies sent to other brokers are recognised when a broker returns them."""
    return [
        ("remote", producer_tag, index) for index in range(len(remote_targets.targets) + len(remote_targets.failed))
    ]


def send_remote_copies(
    connection: ConnectionState, collected: CollectedPublish, remote_targets: RemoteTargets, names: Sequence[Hashable]
) -> None:
    """Send the copies of a publish to other brokers. The ledger and `Returns` already include these copies."""
    publish = collected.publish
    channel = publish.channel
    tag = channel.confirms.published if channel.mode is CONFIRM else 0
    for target, name in zip(remote_targets.targets, names, strict=False):
        publisher = remote_publisher(connection, channel, target.remote)
        if publisher is None:
            _refuse(connection, collected, tag, name)
        else:
            publisher.send(_Copy(connection, collected, target, tag, name))
    for name in names[len(remote_targets.targets) :]:
        connection.plans.counters.failed_translations += 1
        _refuse(connection, collected, tag, name)


def remote_publisher(connection: ConnectionState, channel: Channel, remote: Remote | None) -> RemotePublisher | None:
    """Return a channel's publisher to another broker; None if there can be no connection to that broker."""
    if remote is None:
        return None
    publisher = channel.remote_publishers.get(remote)
    if publisher is None:
        created = connection.remotes.publisher(remote, channel.number)
        if isinstance(created, str):  # not cached, since an address rule may take the host from the address
            connection.plans.counters.failed_translations += 1
            return None
        publisher = channel.remote_publishers[remote] = created
    return publisher


def _refuse(connection: ConnectionState, collected: CollectedPublish, tag: int, mark: Hashable) -> None:
    publish = collected.publish
    content = (collected.header, bytes(collected.body)) if publish.mandatory else None
    _settle(connection, publish, tag, mark, content, acked=False)


def _settle(
    connection: ConnectionState,
    publish: PendingPublish,
    tag: int,
    mark: Hashable,
    content: tuple[bytes, bytes] | None,
    acked: bool,
) -> None:
    """Record the result of one copy of a publish; `content` is the header and body if the copy counts as returned."""
    channel = publish.channel
    if connection.lifecycle.phase is not Phase.OPEN or channel.state not in CONFIRMABLE:
        return
    confirms = channel.confirms
    if content is not None and (not confirms.returns or confirms.returns.returned(mark)):
        connection.send_return(publish, *content)
    if content is None and confirms.returns:
        confirms.returns.kept(mark)
    if tag and confirms.ledger is not None:
        done = confirms.ledger.settle_remote(tag, acked)
        if done is not None:
            connection.send_confirm(channel, tag, done)
    connection.remotes.notify()
