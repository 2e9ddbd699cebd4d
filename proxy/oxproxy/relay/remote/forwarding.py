"""Sends a publish to other brokers and combines their results with the result from the producer's own broker.

Each target gets one message. A failed translation counts as a copy that is refused immediately. The channel's `Ledger`
and `Returns` combine the results of all copies. `link` sends the messages.

Source: the messenger-addressing specification, 3.3 and 3.4; architecture, "One publish in, one publish out".
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

from oxproxy.addressing.targets import Remote, Target
from oxproxy.relay.channel import Channel, CollectedPublish, PendingPublish
from oxproxy.relay.channel_state import CONFIRM, CONFIRMABLE
from oxproxy.relay.connection_state import ConnectionState, Phase
from oxproxy.relay.plan.outgoing import RemoteTargets, remote_header
from oxproxy.relay.remote_link import RemoteMessage, RemotePublisher, RemoteResult

#: Results for which the producer gets an ack.
_TAKEN = frozenset((RemoteResult.ACKED, RemoteResult.RETURNED))


def send_alone(
    connection: ConnectionState,
    channel: Channel,
    publisher: RemotePublisher,
    target: Target,
    header: bytes,
    body: bytes,
) -> None:
    """Send a complete publish whose only target is on another broker. The channel has already counted the publish.

    The confirm for this message settles the publish.
    """
    tag = channel.confirms.published if channel.mode is CONFIRM else 0

    def settled(result: RemoteResult) -> None:
        if tag and connection.lifecycle.phase is Phase.OPEN and channel.state in CONFIRMABLE:
            connection.send_confirm(channel, tag, result in _TAKEN)
            connection.remotes.notify()

    publisher.send(RemoteMessage(*target.publication, False, header, body, connection.traffic.now, settled))


def copy_ids(remote_targets: RemoteTargets, producer_tag: int) -> list[Hashable]:
    """Create identifiers for the copies sent to other brokers; `Returns` uses them instead of fingerprints."""
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
    body = bytes(collected.body)
    settle = partial(_settle, connection, publish, tag, (collected.header, body) if publish.mandatory else None)
    for target, name in zip(remote_targets.targets, names, strict=False):
        publisher = remote_publisher(connection, channel, target.remote)
        if publisher is None:
            settle(name, None)
            continue
        header = remote_header(target, remote_targets.by_broker, collected.original, collected.header)[7:-1]
        now = connection.traffic.now
        publisher.send(RemoteMessage(*target.publication, publish.mandatory, header, body, now, partial(settle, name)))
    for name in names[len(remote_targets.targets) :]:
        connection.plans.counters.failed_translations += 1
        settle(name, None)


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


def _settle(
    connection: ConnectionState,
    publish: PendingPublish,
    tag: int,
    content: tuple[bytes, bytes] | None,
    copy: Hashable,
    result: RemoteResult | None,
) -> None:
    """Record the result of one copy of a publish.

    Args:
        content: header and body of a mandatory publish; None otherwise.
        result: None if the copy could not be sent.
    """
    channel = publish.channel
    if connection.lifecycle.phase is not Phase.OPEN or channel.state not in CONFIRMABLE:
        return
    confirms = channel.confirms
    comes_back = result in (RemoteResult.RETURNED, None) or (not tag and result is not RemoteResult.ACKED)
    if content is not None and comes_back:
        if not confirms.returns or confirms.returns.returned(copy):
            connection.send_return(publish, *content)
    elif confirms.returns:
        confirms.returns.kept(copy)
    if tag and confirms.ledger is not None:
        done = confirms.ledger.settle_remote(tag, result in _TAKEN)
        if done is not None:
            connection.send_confirm(channel, tag, done)
    connection.remotes.notify()
