"""Tests that a long conversation about exchanges without rules is forwarded byte for byte in both directions."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import base, commands

from oxproxy.relay.vhost import Delivery, VhostState
from oxproxy.values import Table, Value
from tests import client
from tests.client import HEARTBEAT, PROTOCOL_HEADER, content, frame, method
from tests.relay.wire import TUNING, QueueEvents, Wire, routed, several

#: Every field type, nested tables and arrays; names that are not UTF-8, duplicate, empty or of maximum length.
EVERYTHING: Table = (
    (b"t", Value("t", True)), (b"b", Value("b", -1)), (b"B", Value("B", 255)), (b"s", Value("s", -2)),
    (b"u", Value("u", 65535)), (b"I", Value("I", -3)), (b"i", Value("i", 2**32 - 1)), (b"l", Value("l", -(2**63))),
    (b"T", Value("T", 2**64 - 1)), (b"f", Value("f", 1.5)), (b"d", Value("d", 0.1)), (b"D", Value("D", (2, 314))),
    (b"S", Value("S", b"\xff\xfe")), (b"x", Value("x", b"\0")), (b"V", Value("V", None)), (b"", Value("S", b"")),
    (b"n" * 255, Value("A", (Value("F", ((b"in", Value("A", ())), (b"in", Value("V", None)))), Value("s", 1)))),
    (b"\xff", Value("S", b"name")), (b"S", Value("S", b"again")), (b"BCC", Value("A", (Value("S", b"more"),))),
    (b"CC", Value("S", b"no array")), (b"x-original-address", Value("F", ((b"exchange", Value("S", b"xo")),))),
    (b"x-death", Value("A", (Value("F", ((b"count", Value("l", 1)), (b"queue", Value("S", b"q")))),))),
)  # fmt: skip
PROPERTIES: dict[str, bytes | int] = {
    "content_type": b"", "content_encoding": b"gzip", "delivery_mode": 2, "priority": 255, "correlation_id": b"c" * 255,
    "reply_to": b"amq.rabbitmq.reply-to", "expiration": b"60000", "message_id": b"\xff", "timestamp": 2**64 - 1,
    "type": b"t", "user_id": b"guest", "app_id": b"", "cluster_id": b"x",
}  # fmt: skip

P, B = "producer", "broker"


class Record:
    """The frames that both sides send, in a valid order."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, bytes]] = []

    def say(self, side: str, channel: int, *frames: base.Frame | bytes) -> None:
        data = b"".join(item if isinstance(item, bytes) else method(channel, item) for item in frames)
        self.steps.append((side, data))

    def ask(self, channel: int, request: base.Frame, *answers: base.Frame | bytes) -> None:
        self.say(P, channel, request)
        self.say(B, channel, *answers)


def sized(size: int) -> bytes:
    return bytes(range(256)) * (size // 256) + bytes(size % 256)


def one_byte_frames(channel: int, count: int) -> bytes:
    head = client.content_header(channel, count)
    return head + frame(3, channel, b"1") * count


def interleaved(*streams: bytes) -> bytes:
    """Take one frame from each stream in turn."""
    rows = [[frame.raw for frame in client.split(stream)] for stream in streams]
    return b"".join(row[at] for at in range(max(map(len, rows))) for row in rows if at < len(row))


def recorded() -> Record:
    talk = Record()
    for channel in (1, 2, 7, TUNING.channel_max_producer):
        talk.ask(channel, commands.Channel.Open(), commands.Channel.OpenOk())
    _topology(talk)
    _consuming(talk)
    _publishing(talk)
    _transactions(talk)
    _closing(talk)
    return talk


def _topology(talk: Record) -> None:
    talk.ask(1, commands.Exchange.Declare(0, "e", "topic", durable=True), commands.Exchange.DeclareOk())
    talk.say(P, 1, commands.Exchange.Declare(0, "e2", "fanout", nowait=True, arguments={"alternate-exchange": "e"}))
    talk.ask(1, commands.Exchange.Declare(0, "e", "topic", passive=True), commands.Exchange.DeclareOk())
    talk.ask(1, commands.Exchange.Bind(0, "e", "e2", "k", arguments={"a": 1}), commands.Exchange.BindOk())
    talk.ask(1, commands.Exchange.Unbind(0, "e", "e2", "k", arguments={"a": 1}), commands.Exchange.UnbindOk())
    talk.say(P, 1, commands.Exchange.Bind(0, "e", "e2", "k", True), commands.Exchange.Unbind(0, "e", "e2", "k", True))
    talk.ask(2, commands.Queue.Declare(0, ""), commands.Queue.DeclareOk("amq.gen-9xZ", 0, 0))
    talk.ask(2, commands.Queue.Declare(0, "q", exclusive=True), commands.Queue.DeclareOk("q", 0, 0))
    talk.say(P, 2, commands.Queue.Declare(0, "q2", nowait=True, arguments={"x-max-length": 5}))
    talk.ask(2, commands.Queue.Declare(0, "q", passive=True), commands.Queue.DeclareOk("q", 3, 1))
    talk.ask(2, commands.Queue.Bind(0, "", "e", ""), commands.Queue.BindOk())
    talk.say(P, 2, commands.Queue.Bind(0, "q", "e", "#", True, {"x-match": "all"}))
    talk.ask(2, commands.Queue.Unbind(0, "q", "e", "#"), commands.Queue.UnbindOk())
    talk.ask(2, commands.Queue.Purge(0, "q"), commands.Queue.PurgeOk(2))
    talk.say(P, 2, commands.Queue.Purge(0, "q", True))
    talk.ask(2, commands.Queue.Delete(0, "q2", True, True), commands.Queue.DeleteOk(0))
    talk.ask(2, commands.Exchange.Delete(0, "e2", True), commands.Exchange.DeleteOk())
    talk.say(P, 2, commands.Exchange.Delete(0, "e2", nowait=True))
    talk.ask(0, commands.Connection.UpdateSecret("secret", "due"), commands.Connection.UpdateSecretOk())
    talk.say(B, 0, commands.Connection.Blocked("low on memory"))
    talk.say(B, 0, commands.Connection.Unblocked())


def _consuming(talk: Record) -> None:
    deliver = commands.Basic.Deliver
    talk.ask(2, commands.Basic.Qos(0, 5, True), commands.Basic.QosOk())
    talk.ask(2, commands.Basic.Consume(0, "q", "", False, False, False, False, {}), commands.Basic.ConsumeOk("ctag"))
    talk.say(P, 2, commands.Basic.Consume(0, "q", "mine", nowait=True, no_ack=True))
    for tag, size in enumerate((0, 1, 131064, 131065, 300_000), 1):
        talk.say(B, 2, deliver("ctag", tag, False, "e", "k"), content(2, EVERYTHING, sized(size), PROPERTIES))
    delivery = method(2, deliver("ctag", 6, True, "", "q")) + one_byte_frames(2, 10_000)
    other_delivery = method(7, deliver("other", 1, False, "e", "k")) + content(7, None, sized(400_000))
    talk.say(B, 2, interleaved(delivery, other_delivery))
    talk.say(P, 2, commands.Basic.Ack(1), commands.Basic.Ack(3, True), commands.Basic.Nack(4, False, True))
    talk.say(P, 2, commands.Basic.Nack(0, True, False), commands.Basic.Reject(6, False), commands.Basic.Ack(0, True))
    talk.ask(2, commands.Basic.Recover(True), commands.Basic.RecoverOk())
    talk.say(P, 2, frame(1, 2, b"\0\x3c\0\x64\1"))
    talk.ask(2, commands.Basic.Cancel("ctag"), commands.Basic.CancelOk("ctag"))
    talk.say(P, 2, commands.Basic.Cancel("mine", True))
    talk.say(B, 2, commands.Basic.Cancel("gone", True))
    for size in (0, 5, 131065):
        got = commands.Basic.GetOk(size + 1, False, "e", "k", 7)
        talk.ask(7, commands.Basic.Get(0, "q", True), got, content(7, (), sized(size)))
    talk.ask(7, commands.Basic.Get(0, "q"), commands.Basic.GetEmpty())
    talk.ask(7, commands.Channel.Flow(True), commands.Channel.FlowOk(True))
    talk.say(B, 7, commands.Channel.Flow(True))
    talk.say(P, 7, commands.Channel.FlowOk(True))


def _publishing(talk: Record) -> None:
    talk.ask(1, commands.Confirm.Select(), commands.Confirm.SelectOk())
    talk.say(P, 7, commands.Confirm.Select(True))
    for size in (0, 1, 100, 131064, 131065, 300_000):
        talk.say(P, 1, client.publish(1, b"e", b"k" * 255, EVERYTHING, sized(size), PROPERTIES))
        talk.say(P, 1, client.publish(1, b"", b"q", None, sized(size), mandatory=True))
    returned = commands.Basic.Return(312, "NO_ROUTE", "", "q")
    talk.say(B, 1, returned, content(1, None, sized(5)), commands.Basic.Ack(2), commands.Basic.Ack(7, True))
    talk.say(B, 1, commands.Basic.Nack(8, False, False), commands.Basic.Ack(9), commands.Basic.Nack(12, True, False))
    small = [client.publish(1, b"e", b"k", (), b"%d" % number) for number in range(300)]
    start = client.publish(7, b"e", b"")[:-22]
    talk.say(P, 1, *small)
    talk.say(P, 7, interleaved(start + one_byte_frames(7, 10_000), b"".join(small)))
    talk.say(B, 1, commands.Basic.Ack(612, True))
    talk.say(B, 7, commands.Basic.Ack(1))


def _transactions(talk: Record) -> None:
    top = TUNING.channel_max_producer
    talk.ask(top, commands.Tx.Select(), commands.Tx.SelectOk())
    talk.say(P, top, client.publish(top, b"e", b"k", None, b"body"), client.publish(top, b"e", b"k", (), b""))
    talk.ask(top, commands.Tx.Rollback(), commands.Tx.RollbackOk())
    talk.ask(top, commands.Tx.Commit(), commands.Tx.CommitOk())


def _closing(talk: Record) -> None:
    talk.ask(7, commands.Channel.Close(200, "bye", 0, 0), commands.Channel.CloseOk())
    talk.ask(7, commands.Channel.Open(), commands.Channel.OpenOk())
    talk.ask(7, commands.Basic.Get(0, "no"), commands.Channel.Close(404, "NOT_FOUND - no queue 'no'", 60, 70))
    talk.say(P, 7, commands.Channel.CloseOk(), commands.Channel.Open())
    talk.say(B, 7, commands.Channel.OpenOk())
    talk.ask(0, commands.Connection.Close(200, "bye", 0, 0), commands.Connection.CloseOk())


TALK = recorded()
STATES: list[Callable[[], VhostState | None]] = [
    lambda: None,
    lambda: routed("q9"),
    lambda: routed("q9", delivery=Delivery.QUEUE),
    lambda: routed("q9", carrier="carried", unmatched_pass=True),
    lambda: several("e9"),
]


def by_channel(data: bytes) -> dict[int, bytes]:
    streams: dict[int, bytearray] = {}
    for current in client.split(data):
        streams.setdefault(current.channel, bytearray()).extend(current.raw)
    return {channel: bytes(stream) for channel, stream in streams.items()}


def compared(of: Callable[[], VhostState | None], cut: Callable[[bytes], list[bytes]]) -> None:
    """Send every step in pieces; after the last piece, the other side must have received the step completely.

    A publish is held until its header arrives. If addresses may have to be restored, the method of a delivery is also
    held. Frames of other channels may overtake them.
    """
    wire = Wire(of(), events=QueueEvents())
    for side, data in TALK.steps:
        say = wire.produce if side == P else wire.answer
        received = b"".join(say(piece) for piece in cut(data))
        waits = side == P or wire.state.restores
        assert received == data or (waits and by_channel(received) == by_channel(data))
        assert (wire.upstream(), wire.producer()) == (b"", b"")
    assert wire.relay.connection.lifecycle.fault is None
    assert wire.counters.relays["/"].channels == 0


@pytest.mark.parametrize("of", STATES)
def test_complete_steps_are_forwarded_unchanged(of: Callable[[], VhostState | None]) -> None:
    compared(of, lambda data: [data])


def test_single_bytes_are_forwarded_unchanged() -> None:
    """Long steps are cut into single bytes only at their beginning and end."""

    def cut(data: bytes) -> list[bytes]:
        if len(data) <= 4000:
            return [data[at : at + 1] for at in range(len(data))]
        ends = [*range(2000), *range(len(data) - 2000, len(data) + 1)]
        return [data[start:end] for start, end in pairwise(ends)]

    compared(STATES[1], cut)


@given(st.integers(0, 2**32), st.sampled_from(STATES))
@settings(max_examples=8, deadline=None)
def test_random_pieces_are_forwarded_unchanged(seed: int, of: Callable[[], VhostState | None]) -> None:
    pick = random.Random(seed)

    def cut(data: bytes) -> list[bytes]:
        cuts = sorted(pick.randrange(len(data) + 1) for _ in range(pick.randrange(8)))
        return [data[start:end] for start, end in pairwise([0, *cuts, len(data)])]

    compared(of, cut)


def test_heartbeats_at_any_position_are_not_forwarded() -> None:
    wire = Wire()
    for side, data in TALK.steps:
        frames = [frame.raw for frame in client.split(data)[:50]]
        say = wire.produce if side == P else wire.answer
        if len(frames) == len(client.split(data)):
            assert say(HEARTBEAT + HEARTBEAT.join(frames) + HEARTBEAT) == data
        else:
            assert by_channel(say(data)) == by_channel(data)


def test_the_conversation_contains_every_method() -> None:
    sent = {
        (side, frame.method.name)
        for side, data in TALK.steps
        for frame in client.split(data)
        if frame.kind == 1 and frame.payload != b"\0\x3c\0\x64\1"
    }
    names = {name for _, name in sent}
    opening = {"Start", "StartOk", "Secure", "SecureOk", "Tune", "TuneOk", "Open", "OpenOk"}
    every = {kind.name for kind in client._KINDS_OF_METHODS.values()}
    assert every - names == {f"Connection.{frame}" for frame in opening} | {"Basic.RecoverAsync"}
    assert not TALK.steps[0][1].startswith(PROTOCOL_HEADER)
