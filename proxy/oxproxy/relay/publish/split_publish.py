"""Splits a publish into several upstream publishes if one upstream publish is not sufficient.

This is necessary if there are too many tokens for one header frame, if some destinations of an exchange with queue
delivery are exchanges, or if a destination is on another broker. The body is repeated, so it is buffered until it is
complete (`RelayLimits.replay_bytes` limits its size). The channel's `Ledger` combines the confirms, and its `Returns`
combines the returns.

Source: architecture, "One publish in, one publish out".
"""

from __future__ import annotations

from collections.abc import Hashable

from oxproxy.addressing.targets import Publication
from oxproxy.amqp.frames import body_frames
from oxproxy.amqp.properties import fingerprint
from oxproxy.errors import ProtocolError, Scope
from oxproxy.relay.channel import Channel, CollectedPublish, PendingPublish
from oxproxy.relay.channel_state import CONFIRM, NORMAL, OPEN
from oxproxy.relay.confirm_ledger import Ledger, Returns
from oxproxy.relay.connection_state import ConnectionState
from oxproxy.relay.declare.injected_methods import when_processed
from oxproxy.relay.plan.outgoing import PUBLISH, Copy, Outgoing, copy_frames
from oxproxy.relay.remote.forwarding import copy_ids, send_remote_copies

_CONTENT_TOO_LARGE = 311
#: Sizes in bytes in a BCC entry: the part before the keys (name, type letter, length), and the part before each key
#: (type letter, length).
_AROUND_KEYS, _AROUND_KEY = 9, 5


def fitting(
    connection: ConnectionState, publish: PendingPublish, header: bytes, body_size: int, out: Outgoing
) -> list[Copy]:
    """Split copies so that no header frame exceeds the broker's limit.

    Raises:
        ProtocolError: the body or the headers are too large to be split; 311 on the channel.
    """
    limits = connection.terms.limits
    if body_size > limits.replay_bytes:
        raise _too_large(
            f"body of {body_size} bytes would be sent in several copies; the limit is {limits.replay_bytes} bytes"
        )
    if connection.backlog.collected + body_size > limits.collected_bytes:
        raise _too_large(
            f"body of {body_size} bytes would be sent in several copies; with {connection.backlog.collected} bytes of "
            f"other such bodies in progress, the total would exceed the limit of {limits.collected_bytes} bytes"
        )
    limit = connection.terms.tuning.frame_max_upstream
    original = out.address_of(publish.routing_key)
    return [part for copy in out.copies for part in _divided(original, header, copy, limit)]


def send_collected(connection: ConnectionState, collected: CollectedPublish) -> None:
    """Send all copies of a publish. The body must be complete, and the channel must have counted the publish."""
    publish = collected.publish
    channel = publish.channel
    confirms = channel.confirms
    out = connection.to_upstream
    body = body_frames(channel.number, bytes(collected.body), connection.terms.tuning.frame_max_upstream)
    sent: list[Hashable] = []
    for copy in collected.copies:
        method, header = copy_frames(copy, collected.original, publish.frame, collected.header)
        out += (method, header, *body)
        key = copy.key(collected.original.routing_key)
        sent.append(fingerprint(copy.exchange, key, header))
    remote_targets = collected.remote_targets
    names = [] if remote_targets is None else copy_ids(remote_targets, confirms.total)
    if channel.mode is CONFIRM:
        ledger_of(channel).add(confirms.published, len(sent), len(names))
    if publish.mandatory and len(sent) + len(names) > 1:
        if confirms.returns is None:
            confirms.returns = Returns()
        confirms.returns.expect(confirms.total, sent, names)
        if channel.mode is NORMAL and not confirms.returns.requested:
            _request_answer(connection, channel, confirms.returns)
    if remote_targets is not None:
        send_remote_copies(connection, collected, remote_targets, names)


def _request_answer(connection: ConnectionState, channel: Channel, returns: Returns) -> None:
    """Request a reply that shows when the broker has processed all publishes sent so far.

    Without confirms and transactions, nothing else shows this. At most one such reply is outstanding per channel.
    """
    number = channel.confirms.total

    def answered() -> None:
        returns.processed(number)
        returns.requested = False
        # No method may be sent between the frames of a content (spec, 4.2.6), or on a channel that is being closed.
        # Instead, the next publish that is sent as several copies requests the reply.
        allowed = channel.state is OPEN and not (channel.content is not None and channel.content.begun)
        if returns and channel.confirms.total > number and allowed and not connection.upstream.closing:
            _request_answer(connection, channel, returns)

    returns.requested = True
    when_processed(connection, channel, answered)


def ledger_of(channel: Channel) -> Ledger:
    """Return the channel's ledger. The first call creates it and adds all earlier publishes."""
    confirms = channel.confirms
    if confirms.ledger is None:
        before = confirms.published - 1
        confirms.ledger = Ledger(confirms.settled.outstanding(before), before)
    return confirms.ledger


def _divided(original: Publication, header: bytes, copy: Copy, limit: int) -> list[Copy]:
    """Split the keys of a copy so that no header frame exceeds the limit in bytes."""
    if len(copy_frames(copy, original, b"", header)[1]) <= limit:
        return [copy]
    bare = len(copy_frames(copy._replace(bcc=()), original, b"", header)[1])
    longest = max((_AROUND_KEY + len(key) for key in copy.bcc), default=0)
    if copy.routing_key is not None:  # each part has a different outgoing key, which the address header repeats
        bare += max(map(len, copy.bcc), default=0)
    keys_each = (limit - bare - _AROUND_KEYS) // longest if longest else 0
    if keys_each < 1:
        raise _too_large(f"headers of {len(header)} bytes leave no room for the destinations")
    if copy.routing_key is None or copy.exchange:
        return [copy._replace(bcc=copy.bcc[at : at + keys_each]) for at in range(0, len(copy.bcc), keys_each)]
    # With queue delivery, the keys are queue names. Each of them is in only one part, as the routing key or in BCC,
    # since the broker removes duplicates only within one publish.
    keys = (copy.routing_key, *copy.bcc)
    return [
        copy._replace(routing_key=keys[at], bcc=keys[at + 1 : at + 1 + keys_each])
        for at in range(0, len(keys), keys_each + 1)
    ]


def _too_large(text: str) -> ProtocolError:
    return ProtocolError(_CONTENT_TOO_LARGE, text, Scope.CHANNEL, *PUBLISH)
