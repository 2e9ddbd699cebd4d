"""The publish pass, which reads the producer's bytes once from left to right and writes the bytes for the broker.

Input
    `PublishPass.read_producer` receives the next bytes from the producer, which may begin or end inside a frame.
    `_run` processes only whole frames; an incomplete frame is kept in `_rest` until the next read. A frame consists of
    its type (1 byte), its channel (2 bytes), the size of its payload (4 bytes), the payload, and the frame-end octet
    (206). A publish consists of three kinds of frames on one channel: a method frame with exchange, routing key and
    flags; a content header frame with body size, property flags and properties, which include the header table; and
    body frames. Both the method frame and the header frame are copied. `key_at` is an offset into the method frame;
    `last` and the offsets of the header table and its entries are offsets into the header frame; all other offsets
    are offsets into the read buffer:

        at                                                    header_at                                     body_at
        |                                                     |                                             |
        | 1 channel size 60 40 0 | exchange | key | flags 206 | 2 channel size 60 0 body-size flags ... 206 | 3 ...
        |----------------------- method ----------------------|------------------- header ------------------|
                                   ^          ^                                     ^         ^         ^
                                   13         key_at                                11        19        last

Processing
    Frames that stay unchanged are copied together, as one slice `_start:at`. The header table of a publish to an
    evaluated exchange is scanned once. The scan collects the entries that the rules of the exchange mention, and
    detects entries that may have to be removed (CC, BCC and our own headers). These entries, as raw bytes, and the
    other data that the rules test, such as the routing key, are the facts of the message. `Plan.decisions` maps the
    facts to the outgoing form; if the form is missing, `Plan.decide` computes it. The publish is sent as slices of the
    buffer around the inserted parts.

Other ways out
    1. A publish is refused with a `ProtocolError`, which closes the channel or the connection.
    2. A publish takes the slow path (`_leave`, `ProducerFrames`): it waits for a destination, needs several upstream
       publishes, is rejected by a filter, is sent to another broker, or no longer fits into a header frame.
    3. A publish to an exchange that another sidecar may just have declared waits until the exchange has been looked up.
    4. A publish has exhausted a budget, or the decisions in one read have taken long. The frames after it wait for the
       next `read_producer`, so that other producers are served in the meantime.

Assumptions
    The pass handles publishes and acknowledgements on channels that are open or being opened and expect a method, and
    the body frames of contents that have begun. All other frames are handled one by one in `ProducerFrames`, which may
    change the rules and the state of any channel. A method frame that is not directly followed by its header frame is
    held in the channel; when the header frame arrives, `_take_joined` processes both frames. `_take_joined` also
    processes publishes that have waited. Transactions need no special treatment here: the broker keeps their publishes
    until the commit.

Reading numbers
    Compared with a call to `unpack_from`, reading a four-octet number octet by octet takes a tenth of the time in
    compiled code, and twice the time in interpreted code. In both, comparing several octets as one slice is cheap.
    Therefore, numbers are read inline, and octets that rarely differ, such as the upper octets of a size, are compared
    first, as one slice. The method frame and the header frame are copied, because offsets within a frame are usually
    small numbers. In interpreted code, small numbers are cached, while each larger offset would be a new object.

For most frames, no object other than slices of the input is created. Caches belong to the virtual host; the pass only
refers to them. The module is compiled with mypyc if there is a compiler, and runs unchanged without one.

Source: AMQP 0-9-1 spec, 4.2.3 and 4.2.6; architecture, "The path of one publish".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oxproxy.amqp import methods
from oxproxy.amqp.frames import (
    BODY,
    FRAME_END,
    FRAME_HEAD,
    FRAME_SIZE_FUDGE,
    HEADER,
    HEARTBEAT,
    METHOD,
    OVERHEAD,
    U32,
    U64,
    PartialFrame,
    check_head,
    frame,
)
from oxproxy.amqp.properties import (
    CONTENT_ENCODING,
    CONTENT_TYPE,
    HEADERS,
    header_table,
    refuse_undecodable_header,
)
from oxproxy.amqp.tables import VALUE_SIZES
from oxproxy.errors import ProtocolError, Scope
from oxproxy.relay.channel import HEADER_TO_COME, Channel, ContentUnderWay, PendingPublish
from oxproxy.relay.channel_state import CONFIRM, DECLARING, OPEN, OPENING, WAITING, ChannelEvent
from oxproxy.relay.connection_audit import ConnectionAudit, table_offsets
from oxproxy.relay.connection_state import ConnectionState, Phase
from oxproxy.relay.declare.injected_methods import refuse_in_order
from oxproxy.relay.original_address import ADDRESS_HEADER, refuse_forged
from oxproxy.relay.plan.outgoing import (
    CC_BCC,
    CC_ONLY,
    CUT_BCC,
    CUT_CC,
    CUT_OURS,
    Outgoing,
    refuse_reserved,
    table_entries,
)
from oxproxy.relay.plan.plan import FACT, Plan
from oxproxy.relay.publish.producer_frames import ProducerFrames
from oxproxy.relay.records.facts_record import Properties
from oxproxy.values import RESERVED_PREFIX

if TYPE_CHECKING:
    from mypy_extensions import i64

#: class and method of Basic.Publish
_BASIC_PUBLISH: Final = b"\x00\x3c\x00\x28"
#: class and method of Basic.Ack, Reject and Nack, which consumers send
_SETTLING: Final = frozenset((b"\x00\x3c\x00\x50", b"\x00\x3c\x00\x5a", b"\x00\x3c\x00\x78"))
#: payload size of these methods in bytes
_ACK_BYTES: Final = 13
#: size of a frame's head in bytes: type, channel, size
_FRAME_HEAD_BYTES: Final = 7
#: payload size in bytes of a content header without properties
_LEAST_HEADER: Final = 14
#: payload size in bytes of a Basic.Publish with an empty exchange and an empty routing key
_LEAST_METHOD: Final = 9
#: Number of held frames that are processed together. If one of them has to wait, those after it are held again.
_HELD_AT_ONCE: Final = 64
#: duration of decisions after which the other producers are served before the rest of a read
_READ_SECONDS: Final = 0.01
#: suffix of the names of the headers CC and BCC, which contain further routing keys
_CC_NAME: Final = b"CC"
#: first octet of the reserved prefixes
_RESERVED_FIRST: Final = RESERVED_PREFIX[0]
#: bits of properties in the first octet of the property flags
_CONTENT_TYPE_BIT: Final = CONTENT_TYPE >> 8
_CONTENT_ENCODING_BIT: Final = CONTENT_ENCODING >> 8
_HEADERS_BIT: Final = HEADERS >> 8
#: flag in the last octet of a Basic.Publish
_IMMEDIATE_BIT: Final = 2
#: entries with further routing keys
_CUT_KEYS: Final = CUT_CC | CUT_BCC
#: all entries that may have to be removed
_CUT_ALL: Final = _CUT_KEYS | CUT_OURS
#: value of `took_us` for a cached decision
_KNOWN: Final = -1.0
#: class Basic
_BASIC_CLASS: Final = b"\x00\x3c"
#: class Basic, the weight, and the upper octets of the size of a body of less than 64 KiB
_BASIC_SHORT_BODY: Final = _BASIC_CLASS + bytes(8)
#: type letter and upper octets of the length of a string of less than 256 bytes
_SHORT_STRING: Final = b"S\x00\x00\x00"
#: value in `_WIDTHS` for octets that are not type letters
_UNKNOWN: Final = 255
#: the four octets of each number below 1024; nearly all numbers that the pass writes are in this range
_FOUR_OCTETS: Final = [number.to_bytes(4, "big") for number in range(1024)]
#: total size of a field's type letter and value in bytes, indexed by the octet of the letter; 0 if the letter is
#: followed by a four-byte length
_WIDTHS: Final = [VALUE_SIZES.get(letter, _UNKNOWN) for letter in range(256)]


class PublishPass:
    """Processes the bytes from the producer of one connection.

    What the pass needs for each message is an attribute, since access through another object takes longer.
    """

    __slots__ = (
        "_after_fault",
        "_audit",
        "_broker_exchanges",
        "_connection",
        "_exchanges",
        "_frames",
        "_hits",
        "_known",
        "_largest",
        "_looked_up",
        "_message_bytes",
        "_passes_unknown",
        "_plans",
        "_relaying",
        "_rest",
        "_restores",
        "_sampling",
        "_start",
        "_stops",
        "_stops_at",
        "_upstream",
        "_upstream_largest",
        "interrupted",
        "over_budget",
    )

    def __init__(self, connection: ConnectionState) -> None:
        self._connection: Final = connection
        self._plans: Final = connection.plans
        self._frames: Final = ProducerFrames(connection)
        #: maximum payload size in bytes of a frame from the producer
        self._largest: Final[int] = connection.terms.tuning.frame_max_producer + FRAME_SIZE_FUDGE - OVERHEAD
        #: maximum payload size in bytes of a frame to the broker
        self._upstream_largest: Final[int] = connection.terms.tuning.frame_max_upstream - OVERHEAD
        #: maximum size of a body
        self._message_bytes: Final[int] = connection.terms.limits.message_bytes
        #: an incomplete frame, or a method frame whose header frame is incomplete
        self._rest: Final = PartialFrame()
        #: offset at which to continue after an error in the current bytes
        self._after_fault = 0
        #: the exchange of the resumed publish if that exchange has just been looked up; b"" otherwise
        self._looked_up = b""
        #: whether the frames after a publish wait for the next `read_producer`, because the publish has exhausted a
        #: budget or the decisions in this read have taken `_READ_SECONDS`
        self.interrupted = False
        #: whether a publish has exhausted a budget since the last `read_producer`
        self.over_budget = False
        #: value of `Histogram.total_seconds` above which this read is interrupted
        self._stops_at = 0.0
        #: number of decisions in this read that were cached
        self._hits = 0
        # Set by `_begin` at the start of a read; `_refresh` updates some of these values during the read.
        #: start of the bytes that have been processed but not copied yet
        self._start = 0
        self._stops = False
        self._sampling = False
        self._relaying = False
        #: whether the addresses of publishes may change, so that a forged original address must be refused
        self._restores = False
        self._upstream = connection.to_upstream
        self._audit: ConnectionAudit | None = None
        self._passes_unknown = False
        self._known: dict[bytes, Plan] = {}
        self._exchanges = connection.plans.state.exchanges
        self._broker_exchanges = connection.plans.state.broker_exchanges

    def read_producer(self, data: bytes) -> None:
        """Process the next bytes from the producer; output is collected in the connection's state."""
        self.over_budget = False
        self._read(data)
        if not self.interrupted:
            self._frames.resuming = False

    def _read(self, data: bytes) -> None:
        connection = self._connection
        counters = self._plans.counters
        if self._rest:
            data = self._rest.join(data)
        spent = counters.regex_budgets_spent
        self._stops_at = self._plans.timing.total_seconds + _READ_SECONDS
        while data:
            self._after_fault = len(data)
            try:
                at = self._run(data)
            except ProtocolError as error:
                connection.fail(error)
                data = data[self._after_fault :]  # the rest may include the producer's close-ok
                continue
            if at < len(data):
                self._rest.keep(data[at:])
            break
        counters.cache_hits += self._hits
        self._hits = 0
        over_budget = counters.regex_budgets_spent != spent
        self.over_budget = self.over_budget or over_budget
        self.interrupted = over_budget or self._plans.timing.total_seconds > self._stops_at

    def resume(self, channel: Channel) -> None:
        """Process the frames that a channel held, before any new frames."""
        connection = self._connection
        interrupted = self.interrupted
        number = channel.number
        waits = channel.state is WAITING
        if waits or (channel.state is DECLARING and not channel.held.batches):
            connection.change(channel, ChannelEvent.RESUME)
        self._looked_up = channel.held.looked_up
        held = channel.held.take()
        rest = self._rest.take()
        self._frames.resuming = True
        if waits:
            # After a wait for destinations, those that are still unbound count as missing, and the publish waits again
            # only for others. After the look-up of its exchange, it has not waited for destinations yet.
            self._begin()
            self._stops_at = self._plans.timing.total_seconds + _READ_SECONDS
            spent = self._plans.counters.regex_budgets_spent
            self._take_joined(held[0], held[1], channel, waited=not self._looked_up)
            self.over_budget = self.over_budget or self._plans.counters.regex_budgets_spent != spent
            interrupted = interrupted or self._stops
            del held[:2]
        self._looked_up = b""
        for first in range(0, len(held), _HELD_AT_ONCE):
            current = connection.channels.get(number)
            if current is not None and current.held:
                # One of these frames has to wait, and so do all frames after it.
                current.held.keep(held[first:])
                break
            if interrupted:  # these frames also wait until the pause has ended
                self._rest.keep(self._rest.take() + b"".join(held[first:]))
                break
            self._read(b"".join(held[first : first + _HELD_AT_ONCE]))
            interrupted = self.interrupted
        self.interrupted = interrupted
        # Held frames that have not been processed yet must be processed before the producer's Connection.Close.
        self._frames.resuming = self.interrupted and connection.lifecycle.last_frame is not None
        if rest:
            self._rest.keep(self._rest.take() + rest)

    def _begin(self) -> None:
        """Set the values for the next read."""
        connection = self._connection
        self._start = 0
        self._stops = False
        self._upstream = connection.to_upstream
        self._audit = connection.audit
        if self._audit is not None:
            self._audit.begin()
        self._sampling = connection.traffic.now >= connection.traffic.sample_after
        self._refresh()

    def _refresh(self) -> None:
        """Update the values that may have changed while a frame was handled outside the pass."""
        connection = self._connection
        self._known = self._plans.current()
        self._passes_unknown = self._plans.passes_unknown
        state = self._plans.state
        self._exchanges = state.exchanges
        self._broker_exchanges = state.broker_exchanges
        self._restores = state.restores
        lifecycle = connection.lifecycle
        self._relaying = lifecycle.phase is Phase.OPEN and (lifecycle.last_frame is None or self._frames.resuming)

    def _run(self, data: bytes) -> int:  # noqa: C901 -- the publish path is one pass, see the module
        """Process whole frames; return the offset of the first byte that has not been processed."""
        connection = self._connection
        channels = connection.channels
        largest = self._largest
        self._begin()
        channel: Channel | None = None
        # The first six octets of a frame are the type, the channel and the upper octets of the size. They rarely change
        # from publish to publish, and are decoded only if they do.
        start = b""
        kind = number = 0
        upper_size: i64 = 0
        end: i64 = len(data)
        at: i64 = 0
        while end - at >= OVERHEAD and not self._stops:
            if data[at : at + 6] != start:
                start = data[at : at + 6]
                kind, number = start[0], (start[1] << 8) | start[2]
                upper_size = (start[3] << 24) | (start[4] << 16) | (start[5] << 8)
                if not (METHOD <= kind <= BODY or kind == HEARTBEAT):
                    break  # `_check` rejects the frame
                channel = channels.get(number)
            size: i64 = upper_size | data[at + 6]
            stop: i64 = at + size + OVERHEAD
            if stop > end or size > largest or data[stop - 1] != FRAME_END:
                break  # the frame is incomplete or invalid; `_check` decides which

            if kind == BODY and channel is not None:
                # A content that has begun must be completed, even on a channel that is being closed, since RabbitMQ
                # answers a method within a content with 505.
                content = channel.content
                if content is not None and content.collected is None and 0 < size <= content.remaining:
                    content.remaining -= size
                    if not content.remaining:
                        channel.content = None
                    at = stop
                    continue

            if (
                kind == METHOD
                and self._relaying
                and channel is not None
                and channel.content is None
                and (channel.state is OPEN or channel.state is OPENING)
            ):
                method = data[at:stop]
                called = method[7:11]
                if called == _BASIC_PUBLISH and size >= _LEAST_METHOD:
                    key_at: i64 = 14 + method[13]
                    # The routing key must end directly before the flags.
                    if key_at < size + 7 and key_at + method[key_at] == size + 5:
                        after: i64 = self._publish(data, at, method, key_at, channel, False)
                        if after > end:
                            break  # the rest of the header frame has not arrived yet
                        if after:
                            at = after
                            continue
                # Basic.Ack, Reject and Nack, which consumers send for each message, have a fixed length and are copied.
                elif size == _ACK_BYTES and called in _SETTLING:
                    at = stop
                    continue

            # All other frames are handled individually: each of them may change any channel and the rules, or end
            # relaying.
            if self._start < at:
                self._upstream.append(data[self._start : at])
            self._start = self._after_fault = stop
            if self._take(kind, number, channel, data[at:stop]):
                self._start = at
            at = stop
            start = b""
            self._refresh()
        if self._start < at:
            whole = not self._start and at == end  # compiled code would copy even a slice of all bytes
            self._upstream.append(data if whole else data[self._start : at])
        if end - at >= _FRAME_HEAD_BYTES:
            self._after_fault = end
            self._check(data, at, end)
        return at

    def _check(self, data: bytes, at: int, end: int) -> None:
        """Reject an invalid frame as soon as its head is read, with 501 on the connection."""
        kind, number, size = FRAME_HEAD.unpack_from(data, at)
        check_head(kind, number, size, self._largest - FRAME_SIZE_FUDGE + OVERHEAD, FRAME_SIZE_FUDGE)
        stop = at + size + OVERHEAD
        if stop <= end and data[stop - 1] != FRAME_END:
            raise ProtocolError(501, f"frame on channel {number} does not end with octet 206")

    def _take(self, kind: int, number: int, channel: Channel | None, frame: bytes) -> bool:
        """Handle a frame that `_run` does not process; return whether it is forwarded unchanged."""
        if kind == HEADER and channel is not None and (channel.state is OPEN or channel.state is OPENING):
            content = channel.content
            if content is not None and content.publish is not None and content.remaining == HEADER_TO_COME:
                if self._relaying:
                    # Frames of other channels separated the method frame from this header frame.
                    channel.content = None
                    if self._take_joined(content.publish.frame, frame, channel, waited=False):
                        return False
                    channel.content = content
        return self._frames.take(kind, number, frame)

    def _take_joined(self, method: bytes, header: bytes, channel: Channel, *, waited: bool) -> bool:
        """Process a publish that has waited, or whose method and header frames were not adjacent.

        Return True if it has been sent, held or refused. If the header frame is not valid, do nothing and return False.
        """
        outer_start, self._start = self._start, 0
        joined = method + header
        try:
            at = self._publish(joined, 0, method, 14 + method[13], channel, waited)
        except ProtocolError as error:
            self._connection.fail(error)
            self._start = at = len(joined)
        if self._start < at:
            self._upstream.append(joined[self._start :])
        self._start = outer_start
        return at > 0

    def _publish(  # noqa: C901 -- the publish path is one pass, see the module
        self, data: bytes, at: i64, method: bytes, key_at: i64, channel: Channel, waited: bool
    ) -> i64:
        """Process a publish whose method frame is complete; `waited`: whether it has waited for its destinations.

        Returns:
            The offset after the last processed frame, which is the header or the body. If the header frame is
            incomplete, an offset beyond the buffer; if a different or invalid frame follows, 0. In the last two cases,
            the publish has not been processed. `ProducerFrames` then refuses an invalid frame.
        """
        end: i64 = len(data)
        header_at: i64 = at + len(method)
        header_start = channel.short_header
        if end - header_at < _FRAME_HEAD_BYTES:
            # The few remaining bytes may be the beginning of the header frame.
            return end + 1 if header_start.startswith(data[header_at : header_at + 3]) else 0
        if data[header_at : header_at + 5] == header_start:
            header_size: i64 = (data[header_at + 5] << 8) | data[header_at + 6]
        elif data[header_at : header_at + 3] == header_start[:3]:
            header_size = U32.unpack_from(data, header_at + 3)[0]
        else:
            return 0
        if header_size < _LEAST_HEADER or header_size > self._largest:
            return 0
        body_at: i64 = header_at + header_size + OVERHEAD
        if body_at > end:
            return body_at
        header = data[header_at:body_at]
        last: i64 = header_size + 7
        if header[last] != FRAME_END:
            return 0
        if header[7:17] == _BASIC_SHORT_BODY:
            body_size: int = (header[17] << 8) | header[18]
        elif header[7:9] == _BASIC_CLASS:
            body_size = U64.unpack_from(header, 11)[0]
        else:
            return 0
        self._after_fault = body_at
        exchange = method[14:key_at]
        took_us = _KNOWN
        try:
            if method[key_at + 1] == _RESERVED_FIRST:
                refuse_reserved(method[key_at + 1 : -2], b"")
            if self._message_bytes < body_size:
                self._frames.refuse_size(body_size)

            plan = self._known.get(exchange)
            if plan is None and (exchange in self._exchanges or not self._passes_unknown):
                plan = self._plans.find(exchange, method[key_at + 1 : -2])

            if plan is None:
                broker_exchanges = self._broker_exchanges
                # None: exchanges can't be listed, so an exchange declared through another sidecar can't be recognized.
                if broker_exchanges is None or exchange in broker_exchanges or exchange == self._looked_up:
                    return self._forward(data, body_at, method, key_at, header, body_size, channel)
                if self._start < at:
                    self._upstream.append(data[self._start : at])
                self._start = body_at
                self._frames.look_up(channel, method, exchange, header)
                return body_at

            # The header table follows content type and content encoding. `last` is the offset of the frame-end octet.
            # If this octet is misread as a length, the resulting offset exceeds `last`, so the header is refused below.
            flags = header[19]
            table_at: i64 = 21
            if flags & _CONTENT_TYPE_BIT:
                table_at += 1 + header[table_at]
            if flags & _CONTENT_ENCODING_BIT and table_at <= last:
                table_at += 1 + header[table_at]
            entries_at: i64 = table_at
            table_end: i64 = table_at
            if flags & _HEADERS_BIT:
                entries_at = table_at + 4
                if entries_at <= last:
                    table_end = entries_at + ((header[table_at + 2] << 8) | header[table_at + 3])
                    if header[table_at] or header[table_at + 1]:
                        table_end += (header[table_at] << 24) | (header[table_at + 1] << 16)
            if entries_at > last or table_end > last:
                raise ProtocolError(502, "the header table extends past the end of its frame")

            # The scan. An entry consists of the length of its name, the name, a type letter, and a value. The size of
            # the value depends on the letter or follows the letter. Most names are excluded by their length alone.
            # If a value extends beyond the table, this is detected after the loop. No index exceeds the frame, because
            # the frame-end octet occurs neither in `_SHORT_STRING` nor among the type letters.
            collected = b""
            meanings = 0
            mentioned = plan.mentioned
            name_sizes = plan.name_sizes
            entry_at: i64 = entries_at
            while entry_at < table_end:
                name_size: i64 = header[entry_at]
                value_at = entry_at + 1 + name_size
                size_at = value_at + 4
                if header[value_at:size_at] == _SHORT_STRING:
                    entry_end = size_at + 1 + header[size_at]
                else:
                    width = _WIDTHS[header[value_at]] if value_at < table_end else _UNKNOWN
                    if width == _UNKNOWN:
                        break
                    if width:
                        entry_end = value_at + width
                    elif value_at + 5 <= table_end:
                        entry_end = value_at + 5 + ((header[value_at + 1] << 24) | (header[value_at + 2] << 16))
                        entry_end += (header[value_at + 3] << 8) | header[value_at + 4]
                    else:
                        break
                if name_sizes[name_size]:
                    meaning = mentioned.get(header[entry_at:value_at], 0)
                    if meaning:
                        meanings |= meaning
                        if meaning & FACT:
                            collected += header[entry_at:entry_end]
                entry_at = entry_end
            if entry_at != table_end:
                raise ProtocolError(502, "malformed field table")
            if plan.whole_table:
                collected = header[entries_at:table_end]

            if meanings & _CUT_KEYS:
                # If rules are evaluated, the producer's BCC is usually removed, so it is checked only if it is kept.
                names = CC_BCC if plan.fixed is not None else CC_ONLY
                refuse_reserved(method[key_at + 1 : -2], header[entries_at:table_end], names)
            out = plan.fixed
            properties: Properties = ()
            if out is None:
                # The facts are the length of the routing key, the key, and then whole entries. This encoding is
                # unambiguous: only messages with the same key and entries have the same facts.
                facts: object = collected
                if plan.keyed:
                    facts = method[key_at:-2] + collected
                if not plan.headers_only:
                    properties, others = plan.other_facts(header)
                    facts = (facts, properties, others)
                out = plan.decisions.get(facts)
                if out is None:
                    out, took_us = plan.decide(facts, method[key_at + 1 : -2], collected, header)
                    over_budget = bool(out.decision.spent_budgets)
                    self._stops = over_budget or self._plans.timing.total_seconds > self._stops_at
                else:
                    self._hits += 1
                    plan.hits += 1
            elif plan.reserved:
                refuse_reserved(plan.reserved, b"")  # raises, since the address table translates to a reserved key
            if out.keeps_bcc and meanings & _CUT_ALL:
                refuse_reserved(method[key_at + 1 : -2], header[entries_at:table_end], CC_BCC)
                if out.untouched:
                    refuse_forged(self._plans.state, header[entries_at:table_end])

            if not out.leaves_at_once:
                return self._leave(plan, out, took_us, data, at, body_at, method, header, channel, waited)
            added = kept = b""
            table_bytes = 0
            rewritten = False
            header_bytes: int = header_size
            if not out.untouched:
                # `kept`: the producer's entries; `added`: the inserted entries. If entries have to be removed, `kept`
                # contains both the remaining and the inserted entries.
                kept = header[entries_at:table_end]
                if meanings & out.cuts:
                    kept = table_entries(kept, out.copies[0], out.address_of(method[key_at + 1 : -2]))
                    rewritten = True
                else:
                    fixed = out.fixed_entries
                    added = out.entries(method[key_at + 1 : -2]) if fixed is None else fixed
                    if added or out.address:
                        rewritten = True
                table_bytes = len(kept) + len(added)
                header_bytes += table_bytes - (table_end - entries_at)
                if not flags & _HEADERS_BIT:
                    header_bytes += 4
                if rewritten and header_bytes > self._upstream_largest:
                    return self._leave(plan, out, took_us, data, at, body_at, method, header, channel, waited)
        except ProtocolError as error:
            if self._start < at:
                self._upstream.append(data[self._start : at])
            self._start = body_at
            error.about(methods.BASIC_PUBLISH)
            connection = self._connection
            user = connection.terms.user
            publication = (exchange, method[key_at + 1 : -2])
            self._plans.fail(user, channel.number, "rejected", str(error), publication, header)
            if error.scope is Scope.CONNECTION:
                raise
            refuse_in_order(connection, channel, error)
            return body_at

        if plan.tap is not None:
            plan.observe(plan.tap, exchange, method[key_at + 1 : -2], header, out)
        count = out.count
        count.publishes += 1
        count.body_bytes += body_size
        after = self._count(data, body_at, header, body_size, channel)
        audit = self._audit
        if audit is not None and out.record is not None:
            routing_key = method[key_at + 1 : -2]
            mandatory = method[-2] & 1
            noted = None if plan.facts is None else plan.facts.find(collected, properties)
            audit.publish(
                channel,
                out.record,
                exchange,
                routing_key,
                mandatory,
                header,
                entries_at,
                table_end,
                body_size,
                took_us,
                noted,
            )
        if rewritten:
            # The publish is sent as slices of the input around the new parts. The last slice, which begins at the end
            # of the table, starts at the new `_start`.
            upstream = self._upstream
            if out.address:
                address = out.address + (out.key_field or method[key_at:-2])
                upstream.append(data[self._start : at + 3])
                upstream.append(_FOUR_OCTETS[len(address) + 7])  # at most 519, as both names have at most 255 octets
                upstream.append(method[7:13])
                upstream.append(address)
                self._start = header_at - 2
            upstream.append(data[self._start : header_at + 3])
            upstream.append(_FOUR_OCTETS[header_bytes] if header_bytes < 1024 else header_bytes.to_bytes(4, "big"))
            if flags & _HEADERS_BIT:
                upstream.append(header[7:table_at])
            else:
                upstream.append(header[7:19])
                upstream.append(bytes((flags | _HEADERS_BIT, header[20])))
                upstream.append(header[21:table_at])
            upstream.append(_FOUR_OCTETS[table_bytes] if table_bytes < 1024 else table_bytes.to_bytes(4, "big"))
            upstream.append(kept)
            upstream.append(added)
            self._start = header_at + table_end
        return after

    def _forward(
        self, data: bytes, body_at: int, method: bytes, key_at: int, header: bytes, body_size: int, channel: Channel
    ) -> int:
        """Forward a publish to an exchange that is not evaluated here; return the same offset as `_count`."""
        if header[19] & _HEADERS_BIT and (_CC_NAME in header or (self._restores and ADDRESS_HEADER in header)):
            _, first, last = header_table(header)
            entries = header[first:last]
            refuse_reserved(method[key_at + 1 : -2], entries, CC_BCC)
            if self._restores:
                refuse_forged(self._plans.state, entries)
        counters = self._plans.counters
        counters.publishes_passed += 1
        counters.bytes_passed += body_size
        after = self._count(data, body_at, header, body_size, channel)
        audit = self._audit
        if audit is not None and not audit.ruled_only:
            exchange, routing_key = method[14:key_at], method[key_at + 1 : -2]
            record = self._plans.passed_record(exchange)
            mandatory = method[-2] & 1
            entries_at, table_end = table_offsets(header)
            audit.publish(
                channel, record, exchange, routing_key, mandatory, header, entries_at, table_end, body_size, _KNOWN
            )
        return after

    def _count(self, data: bytes, body_at: i64, header: bytes, body_size: int, channel: Channel) -> i64:
        """Count a publish that results in a single upstream publish; return the offset at which the pass continues.

        This is the offset after the body if the body is one complete frame, otherwise the offset after the header.
        """
        confirms = channel.confirms
        confirms.published += 1
        if confirms.ledger is not None:
            confirms.ledger.add(confirms.published, 1)
        if self._sampling and channel.mode is CONFIRM and confirms.sample is None:
            confirms.sample = (confirms.published, self._connection.traffic.now)
        if not body_size:
            return body_at
        after: i64 = body_at + body_size + OVERHEAD
        if (
            body_size <= self._largest
            and after <= len(data)
            # The size of a single body frame is equal to the lower half of the body size in the content header.
            and data[body_at : body_at + _FRAME_HEAD_BYTES] == channel.body_start + header[15:19]
            and data[after - 1] == FRAME_END
        ):
            return after
        channel.content = ContentUnderWay(None, body_size)
        return body_at

    def _leave(
        self,
        plan: Plan,
        out: Outgoing,
        took_us: float,
        data: bytes,
        at: int,
        body_at: int,
        method: bytes,
        header: bytes,
        channel: Channel,
        waited: bool,
    ) -> int:
        """Process a publish on the slow path; return the offset after its last processed frame, the header or body."""
        if out.remote_targets is not None:
            # The other broker would close the link, which all producers share.
            refuse_undecodable_header(header)
            if method[-2] & _IMMEDIATE_BIT:
                raise ProtocolError(540, "immediate=true")  # RabbitMQ's reply code and text
        if self._start < at:
            self._upstream.append(data[self._start : at])
        key_at = 14 + method[13]
        exchange, routing_key = method[14:key_at], method[key_at + 1 : -2]
        publish = PendingPublish(method, exchange, routing_key, channel, bool(method[-2] & 1))
        self._start = body_at
        if out.remote_alone is not None:
            body_size: int = U64.unpack_from(header, 11)[0]
            body = data[body_at + _FRAME_HEAD_BYTES : body_at + _FRAME_HEAD_BYTES + body_size]
            body_frame = frame(BODY, channel.number, body) if body_size else b""
            # This condition is true if the body is one complete frame.
            if len(body) == body_size <= self._largest and data.startswith(body_frame, body_at):
                if self._frames.leave_for_remote(publish, header, body, plan, out, took_us):
                    self._start = body_at + len(body_frame)
                    return self._start
        self._frames.leave(publish, header, plan, out, took_us, waited=waited)
        return body_at
