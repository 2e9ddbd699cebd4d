"""Producer to broker: the publish path. One pass over the read buffer, no object per frame.

Frames that pass as they came are copied once per read, as one slice. A publish that lies whole in the buffer is looked
up by its raw bytes. Everything rarer goes frame by frame through `producer_frames`.

Source: architecture, "Bodies stream, headers are read in place"; AMQP 0-9-1 spec, 4.2.3 and 4.2.6.
"""

from __future__ import annotations

from typing import Final

from proxy.amqp.frames import (
    BODY,
    CONTENT_HEAD,
    FRAME_END,
    FRAME_HEAD,
    FRAME_SIZE_FUDGE,
    KINDS,
    METHOD,
    OVERHEAD,
    PartialFrame,
    check_head,
)
from proxy.errors import ProtocolError, Scope
from proxy.relay.channel import Channel, PendingPublish
from proxy.relay.channel_state import CONFIRM, DECLARING, OPEN, WAITING, ChannelEvent
from proxy.relay.connection_state import ConnectionState
from proxy.relay.original_address import ADDRESS_HEADER as ORIGINAL
from proxy.relay.publish.known_heads import Head, KnownHeads
from proxy.relay.publish.known_publishes import KnownPublishes
from proxy.relay.publish.producer_frames import ProducerFrames
from proxy.relay.publish.shapes import WHOLE_BYTES, Shape, Shapes, header_may_come, whole_may_come
from proxy.relay.remote.distant import Distant
from proxy.values import RESERVED_PREFIX

#: Publishes remembered by their method frame: an active connection may hold about a MiB, an idle one holds none.
REMEMBERED = 2048
#: Contents up to this size are searched for the reserved prefix together, so many bytes in one go.
_SMALL_BYTES, _SEARCHED_BYTES = 1024, 16384
#: Held frames that are taken in one go; what has to wait is found out at the end of it.
_HELD_AT_ONCE = 64


class Publishing:
    """The producer's side of one connection.

    Args:
        connection: what both directions share.
    """

    def __init__(self, connection: ConnectionState) -> None:
        """Start at a frame boundary."""
        self._connection: Final = connection
        self._frames: Final = ProducerFrames(connection)
        self._frame_max: Final = connection.tuning.frame_max_producer
        #: method and header frame together up to this size can't break the broker's frame-max
        self._safe_bytes: Final = connection.tuning.frame_max_upstream
        #: an unfinished frame or small publish
        self._rest: Final = PartialFrame()
        #: where frames go on after a fault in the bytes that are being taken
        self._after_fault = 0
        self._publishes: Final = KnownPublishes(REMEMBERED)
        self._heads: Final = KnownHeads()
        #: by the fixed part of a content header frame
        self._shapes: Final = Shapes(self._frame_max, REMEMBERED, connection.limits.message_bytes or WHOLE_BYTES)
        self._distant: Final = Distant(connection, self._shapes)
        #: how far in the bytes that are being taken no header holds the reserved prefix
        self._searched = 0
        #: whether a publish has spent a regex budget, so that the frames after it wait for the next `receive`
        self.interrupted = False
        self._shape = -1
        self._epoch = -1

    def resume(self, channel: Channel) -> None:
        """Go on with the frames that a channel held, in front of everything that comes."""
        waits = channel.state is WAITING
        if waits or channel.state is DECLARING:
            self._connection.change(channel, ChannelEvent.RESUME)
        held = channel.held.take()
        rest = self._rest.take()
        self._frames.resuming = True
        if waits:
            self._frames.publish_again(channel, *held[:2])
            del held[:2]
        self._take_held(channel.number, held)
        self._frames.resuming = False
        if rest:
            self._rest.keep(self._rest.take() + rest)

    def _take_held(self, number: int, frames: list[bytes]) -> None:
        """Take frames that a channel held, until one has to wait: those after it are not looked at again."""
        for at in range(0, len(frames), _HELD_AT_ONCE):
            if (channel := self._connection.channels.get(number)) is not None and channel.held:
                return channel.held.keep(frames[at:])
            self.receive(b"".join(frames[at : at + _HELD_AT_ONCE]))
        return None

    def receive(self, data: bytes) -> None:
        """Take bytes from the producer; what leaves gathers in the connection's state.

        Args:
            data: any piece of the stream.
        """
        connection = self._connection
        if connection.audit is not None:
            connection.audit.begin()
        if self._rest:
            data = self._rest.join(data)
        spent = connection.counters.regex_budgets_spent
        while data:
            self._after_fault = len(data)
            try:
                at = self._run(data)
            except ProtocolError as error:
                connection.fail(error)
                data = data[self._after_fault :]  # the producer's close-ok may be among it
                continue
            if at < len(data):
                self._rest.keep(data[at:])
            break
        self.interrupted = connection.counters.regex_budgets_spent != spent

    def _run(self, data: bytes) -> int:  # noqa: C901 -- the publish path is one pass, see the module
        """Take whole frames; answer the offset of what is left."""
        connection = self._connection
        out = connection.to_upstream
        frame_max = self._frame_max + FRAME_SIZE_FUDGE
        end = len(data)
        at = 0
        start = 0  # what passes as it came begins here and has not been copied yet
        unpack_head = FRAME_HEAD.unpack_from
        publishes = self._frames.publishes
        counters = connection.counters
        spent = counters.regex_budgets_spent
        self._searched = 0
        self._forget_if_changed()
        while end - at >= OVERHEAD and counters.regex_budgets_spent == spent:
            kind, number, size = unpack_head(data, at)
            stop = at + size + OVERHEAD
            if stop > end:
                break
            publish = None
            if kind == METHOD:
                publish = self._publishes.get(data[at:stop])
                if publish is None:
                    after = self._distant.take(data, at, stop, end) if self._distant else 0
                    if after and start < at:
                        out.append(data[start:at])
                    if after > 0:
                        start = at = after
                        continue
                    if after < 0:
                        start = at
                        break
                else:
                    if publish.plan is None:
                        after = self._passing(data, at, stop, end, publish)
                        if after > at:
                            at = after
                            continue
                    else:
                        if start < at:
                            out.append(data[start:at])
                        after = self._routed(data, at, stop, end, publish)
                        start = at = after if after > 0 else at
                        if after > 0:
                            continue
                        if after < 0:
                            break
            if data[stop - 1] != FRAME_END or size + OVERHEAD > frame_max or kind not in KINDS:
                break
            if kind == BODY:
                channel = connection.channels.get(number)
                content = channel.content if channel is not None else None
                if content is not None and size < content.remaining and content.collected is None:
                    content.remaining -= size
                    at = stop
                    continue
            if start < at:
                out.append(data[start:at])
            frame = data[at:stop]
            self._after_fault = stop
            if self._frames.take(kind, number, frame):
                start = at
            else:
                start = stop
            at = stop
            self._forget_if_changed()
            if publishes.published is not None:
                known, publish = publish is not None, publishes.published
                publishes.published = None
                self._remember(publish)
                if not known and publish.plan and frame in self._publishes and whole_may_come(data, stop, end):
                    # The method frame is taken back: the whole publish goes through the fast path.
                    publish.channel.content = None
                    at = start = stop - len(frame)
        if start < at:
            out.append(data[start:at] if start or at < end else data)
        if end - at >= FRAME_HEAD.size:
            self._after_fault = end
            self._check(data, at, end)
        return at

    def _check(self, data: bytes, at: int, end: int) -> None:
        """Refuse what can't become a frame as soon as its head is there; whole publishes may wait for more."""
        kind, number, size = FRAME_HEAD.unpack_from(data, at)
        check_head(kind, number, size, self._frame_max, FRAME_SIZE_FUDGE)
        stop = at + size + OVERHEAD
        if stop <= end and data[stop - 1] != FRAME_END:
            raise ProtocolError(501, f"frame on channel {number} does not end with octet 206")

    def _forget_if_changed(self) -> None:
        """Forget what was remembered, if a channel or the rules have changed."""
        connection = self._connection
        if self._shape == connection.shape and self._epoch == connection.state.epoch:
            return
        self._shape = connection.shape
        self._epoch = connection.state.epoch
        self._publishes.clear()
        self._distant.clear()
        self._heads.forget()
        if connection.audit is not None:
            connection.audit.renew()

    def _remember(self, publish: PendingPublish) -> None:
        if self._distant.remember(publish):
            return
        channel = publish.channel
        if channel.state is OPEN and channel.confirms.ledger is None:
            self._publishes.remember(publish)

    def _passing(  # noqa: C901 -- the publish path
        self, data: bytes, at: int, header_at: int, end: int, publish: PendingPublish
    ) -> int:
        """Step over whole publishes to an exchange that is not evaluated here, as long as they have one method frame.

        Returns:
            The offset after them; `at` where the first is not whole, or anything is odd about it.
        """
        channel = publish.channel
        if channel.content is not None or channel.state is not OPEN:
            return at
        publishes = self._publishes
        connection = self._connection
        shapes = self._shapes
        starts, find = data.startswith, data.find
        restores, searched = connection.state.restores, self._searched
        audit = connection.audit
        if audit is not None and audit.ruled_only:
            audit = None
        count = total = 0
        while True:
            head = data[header_at : header_at + CONTENT_HEAD.size]
            shape = shapes[head]
            header_bytes, content_bytes, body_head, body_size = shape
            stop = header_at + content_bytes
            body_at = header_at + header_bytes
            if (
                stop > end
                or not content_bytes
                or data[body_at - 1] != FRAME_END
                or data[stop - 1] != FRAME_END
                or not starts(body_head, body_at)
                or not starts(channel.head, header_at)
            ):
                break
            # CC may name a token, or an original address be forged: frame by frame the table is looked into.
            if body_at > searched:
                if self._search(data, header_at, body_at, stop):
                    break
                searched = self._searched
            if restores and find(ORIGINAL, header_at, body_at) >= 0:
                break
            count += 1
            total += body_size
            if audit is not None:
                ending = audit.passing(publish, data, header_at, body_at, body_size)
                audit.publish(publish, ending, channel.confirms.total + count)
            at = stop
            following = publish.successor
            if following is None or not starts(following.frame, stop):
                following = publishes.following(publish, data, stop, end)
                if following is None:
                    break
            publish = following
            header_at = stop + len(publish.frame)
        if count:
            confirms = channel.confirms
            confirms.published += count
            if confirms.sample is None and channel.mode is CONFIRM and connection.now >= connection.sample_after:
                confirms.sample = (confirms.published, connection.now)
            counters = connection.counters
            counters.publishes_passed += count
            counters.bytes_passed += total
        return at

    def _search(self, data: bytes, header_at: int, body_at: int, stop: int) -> bool:
        """Look for the reserved prefix in a header frame: in one go for many where messages are small.

        Returns:
            Whether it is in the header frame.
        """
        self._searched = header_at + _SEARCHED_BYTES if stop - header_at < _SMALL_BYTES else body_at
        if data.find(RESERVED_PREFIX, header_at, self._searched) < 0:
            return False
        # In a body, perhaps: from here on header by header.
        found = data.find(RESERVED_PREFIX, header_at, body_at) >= 0
        self._searched = header_at if found else body_at
        return found

    def _routed(  # noqa: C901 -- the publish path
        self, data: bytes, at: int, header_at: int, end: int, publish: PendingPublish
    ) -> int:
        """Send whole publishes to an exchange of ours on their way, as long as they have one method frame.

        Returns:
            The offset after them; 0 where the frame-by-frame path must look at the first; -1 where more bytes must
            come for it.
        """
        channel = publish.channel
        if channel.content is not None or channel.state is not OPEN:
            return 0
        if end - header_at < CONTENT_HEAD.size:
            return -1 if header_may_come(data[header_at:end], channel.head) else 0
        shapes = self._shapes
        starts = data.startswith
        connection = self._connection
        out = connection.to_upstream
        audit = connection.audit
        publishes = self._publishes
        confirms = channel.confirms
        confirming = channel.mode is CONFIRM
        first = at
        known = last = None
        repeated = 0
        counters = connection.counters
        spent = counters.regex_budgets_spent
        interrupted = False
        while True:
            if known is not None and starts(known.came, at):
                body_at = at + len(known.came)
                stop = body_at + known.body_bytes
                if stop > end or data[stop - 1] != FRAME_END or not starts(known.body_head, body_at):
                    break
                head = known
                repeated += 1
            else:
                if last is not None:
                    following = publish.successor
                    if following is None or not starts(following.frame, at):
                        following = publishes.following(publish, data, at, end)
                        if following is None:
                            break
                    publish = following
                    header_at = at + len(publish.frame)
                shape = shapes[data[header_at : header_at + CONTENT_HEAD.size]]
                header_bytes, content_bytes, body_head, _ = shape
                stop = header_at + content_bytes
                body_at = header_at + header_bytes
                if not content_bytes or not starts(channel.head, header_at):
                    break
                if stop > end:
                    if last is None:
                        # Wait for the rest only as long as nothing else comes in between.
                        return -1 if body_head.startswith(data[body_at : body_at + 7]) else 0
                    break
                if data[body_at - 1] != FRAME_END or data[stop - 1] != FRAME_END or not starts(body_head, body_at):
                    break
                found = self._form(publish, data, at, header_at, body_at, shape)
                if found is None:
                    break
                head = found
                if last is not None and last.came and head.came:
                    last.successor = head
                interrupted = counters.regex_budgets_spent != spent
            out.append(head.leaves)
            if head.body_size:
                out.append(data[body_at:stop])
            tally = head.tally
            tally.publishes += 1
            tally.body_bytes += head.body_size
            confirms.published += 1
            if audit is not None and head.ending:
                audit.publish(head.publish, head.ending, confirms.before + confirms.published)
            if confirming and confirms.sample is None and connection.now >= connection.sample_after:
                confirms.sample = (confirms.published, connection.now)
            at = stop
            last, known = head, head.successor
            publish = head.publish
            if interrupted:
                break
        if repeated:
            self._heads.found += repeated
            connection.counters.cache_hits += repeated
        return at if at > first else 0

    def _form(
        self, publish: PendingPublish, data: bytes, at: int, header_at: int, body_at: int, shape: Shape
    ) -> Head | None:
        """Find what leaves in place of method and header frame; None where it is not one publish at once."""
        came = b""
        heads = self._heads
        if heads.asks():
            came = data[at:body_at]
            found = heads.get(came)
            if found is not None:
                heads.found += 1
                self._connection.counters.cache_hits += 1
                return found
        plan = publish.plan
        assert plan is not None  # noqa: S101 -- only publishes with a plan come here
        try:
            leaves, outgoing = plan.forward(publish.frame, publish.routing_key, data, header_at, body_at)
        except ProtocolError as error:
            if error.scope is Scope.CONNECTION:
                self._after_fault = body_at
                raise
            return None
        if outgoing.untouched:
            leaves = came or data[at:body_at]
        elif outgoing.waits or outgoing.remote_targets or len(outgoing.copies) != 1 or len(leaves) > self._safe_bytes:
            return None
        header_bytes, content_bytes, body_head, body_size = shape
        tally, ending = outgoing.tally, ""
        audit = self._connection.audit
        if audit is not None and outgoing.record is not None:
            ending = audit.ending(outgoing.record, publish, data, header_at, body_at, body_size)
        if came and outgoing.decision.keep and plan.repeatable:
            body_bytes = content_bytes - header_bytes
            made = Head(came, leaves, tally, ending, publish, body_head, body_bytes, body_size)
            heads.keep(made)
            return made
        return heads.once(leaves, tally, ending, publish, body_size)
