"""How does one publish leave as several? Only where one-in-one-out cannot hold.

Too many tokens for one header frame, or, in queue delivery, destinations that are exchanges. The body is repeated,
so it is kept until it is whole (bounded, see `Limits.replay_bytes`); the channel's ledger joins the confirms.

Source: architecture, "One in, one out"; delivery notes, "The ledger where there are no confirms".
"""

from __future__ import annotations

from proxy.amqp.channel import Channel, Collected
from proxy.amqp.confirms import Ledger
from proxy.amqp.conversation import Conversation
from proxy.amqp.frames import body_frames
from proxy.amqp.outgoing import Copy
from proxy.amqp.plan import ExchangePlan, publish_frame


def ledger_of(conversation: Conversation, channel: Channel) -> Ledger:
    """Give the channel's ledger; the first call takes over all publishes before the current one."""
    if channel.ledger is None:
        before = channel.published - 1
        channel.ledger = Ledger(channel.settled.outstanding(before), before)
        conversation.shape += 1
    return channel.ledger


def send_collected(conversation: Conversation, collected: Collected) -> None:
    """Send every copy of a publish whose body is whole; the channel has counted the publish already."""
    publish = collected.publish
    plan = publish.plan
    assert plan is not None  # noqa: S101 -- only publishes with a plan are collected
    frames: list[tuple[bytes, bytes]] = []
    limit = conversation.tuning.frame_max_upstream
    for copy in collected.outgoing.copies:
        for part in _fitting(plan, publish.routing_key, collected.header, copy, limit):
            key, header = plan.further(publish.routing_key, collected.header, part)
            method = publish_frame(publish.frame, part.exchange, key) if part.moved else publish.frame
            frames.append((method, header))
    channel = publish.channel
    if channel.confirming:
        ledger_of(conversation, channel).add(channel.published, len(frames), publish.mandatory)
    body = body_frames(channel.number, bytes(collected.body), limit)
    for method, header in frames:
        conversation.to_upstream += (method, header, *body)


def _fitting(plan: ExchangePlan, routing_key: bytes, header: bytes, copy: Copy, limit: int) -> list[Copy]:
    """Divide the tokens of a copy so that no header frame exceeds the limit in bytes."""
    whole = len(plan.further(routing_key, header, copy)[1])
    if whole <= limit or not copy.bcc:
        return [copy]
    # Only the first part keeps what comes first, the exchanges: the broker removes duplicates within one publish.
    bare = len(plan.further(routing_key, header, copy._replace(bcc=()))[1])
    each = 5 + max(map(len, copy.bcc))
    per_part = max(1, (limit - bare - 16) // each)
    return [copy._replace(bcc=copy.bcc[at : at + per_part]) for at in range(0, len(copy.bcc), per_part)]
