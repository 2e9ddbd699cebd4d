from __future__ import annotations

import struct

import pytest
from pamqp import base, commands

from oxproxy.relay.connection_state import Phase, RelayLimits
from oxproxy.routing.decision import QueueNames
from tests.client import HEARTBEAT, content_header, frame, method, names, split
from tests.relay.wire import (
    AHEAD,
    CLOSE,
    CLOSE_OK,
    DECLARE,
    DECLARED,
    FLOW_OK,
    GOODBYE,
    GOODBYE_OK,
    NOT_FOUND,
    OPEN,
    OPEN_OK,
    OWN,
    OWN_BIND_OK,
    OWN_OPEN_OK,
    RESERVED,
    TUNING,
    QueueEvents,
    Wire,
    chosen,
    closed,
    publish,
    routed,
    say,
    with_tokens,
)


def raw(index: int, arguments: bytes = b"", channel: int = 1) -> bytes:
    return frame(1, channel, struct.pack(">I", index) + arguments)


#: Requests that are forwarded to the broker unchanged: all except publishes, declarations and bindings.
REQUESTS: list[base.Frame] = [
    commands.Channel.Flow(True),
    commands.Channel.FlowOk(True),
    commands.Exchange.Declare(0, "e", "topic", False, True, False, False, False, {"a": 1}),
    commands.Exchange.Declare(0, "e", "topic", True),
    commands.Exchange.Declare(0, "e", "fanout", nowait=True),
    commands.Exchange.Delete(0, "e", True),
    commands.Exchange.Delete(0, "e", nowait=True),
    commands.Exchange.Bind(0, "to", "from", "k", False, {"x": "y"}),
    commands.Exchange.Bind(0, "to", "from", "k", True),
    commands.Exchange.Unbind(0, "to", "from", "k"),
    commands.Exchange.Unbind(0, "to", "from", "k", True),
    commands.Queue.Declare(0, "q", False, True, False, False, False, {"x-max-length": 1}),
    commands.Queue.Declare(0, "", exclusive=True),
    commands.Queue.Declare(0, "q", nowait=True),
    commands.Queue.Bind(0, "q", "e", "k", False, {"x": True}),
    commands.Queue.Bind(0, "q", "e", "k", True),
    commands.Queue.Unbind(0, "q", "e", "k", {"x": True}),
    commands.Queue.Purge(0, "q"),
    commands.Queue.Purge(0, "q", True),
    commands.Queue.Delete(0, "q", True, True),
    commands.Basic.Qos(0, 10, False),
    commands.Basic.Consume(0, "q", "c", False, False, True, False, {"x-priority": 5}),
    commands.Basic.Consume(0, "q", "c", nowait=True),
    commands.Basic.Cancel("c"),
    commands.Basic.Cancel("c", True),
    commands.Basic.CancelOk("c"),
    commands.Basic.Get(0, "q", True),
    commands.Basic.Ack(7, True),
    commands.Basic.Ack(0, True),
    commands.Basic.Nack(7, False, True),
    commands.Basic.Nack(0, True, False),
    commands.Basic.Reject(7, True),
    commands.Basic.Recover(True),
    commands.Confirm.Select(),
    commands.Confirm.Select(True),
    commands.Tx.Select(),
    commands.Tx.Commit(),
    commands.Tx.Rollback(),
]


@pytest.mark.parametrize(
    "frames",
    [
        raw(30 << 16 | 10, b"\x05/data\x1f"),
        raw(60 << 16 | 200, b"\0\0\x01c\0\0\0\x05\0"),
        raw(60 << 16 | 100, b"\1"),
        method(0, commands.Connection.UpdateSecret("secret", "it is time")),
    ],
)
def test_rabbitmq_extensions_are_forwarded(frames: bytes) -> None:
    assert Wire().open().produce(frames) == frames


# -- protocol errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [*REQUESTS, commands.Basic.Publish(0, "e", "k", True)], ids=lambda command: command.name
)
def test_arguments_cut_short_anywhere_are_a_syntax_error_that_names_the_method(command: base.Frame) -> None:
    (whole,) = split(method(1, command))
    ids = divmod(command.index, 1 << 16)
    for size in range(4, len(whole.payload)):
        assert Wire(routed("a")).open().fault(frame(1, 1, whole.payload[:size])) == (502, ids)
    assert Wire(routed("a")).open().fault(frame(1, 1, whole.payload + b"\0")) == (502, ids)


ONLY_BROKERS_SEND: list[base.Frame] = [
    commands.Basic.Deliver("c", 1, False, "e", "k"),
    commands.Basic.Return(312, "NO_ROUTE", "e", "k"),
    commands.Basic.GetOk(1, False, "e", "k", 0),
    commands.Basic.GetEmpty(),
    commands.Basic.QosOk(),
    commands.Channel.OpenOk(),
    commands.Queue.DeclareOk("q", 0, 0),
    commands.Confirm.SelectOk(),
]


@pytest.mark.parametrize(
    ("wrong", "code", "ids"),
    [
        *(
            pytest.param(raw(index), 540, divmod(index, 1 << 16), id=f"unknown method {index:#x}")
            for index in (60 << 16 | 99, 77 << 16 | 10, 0, 0xFFFFFFFF, 20 << 16 | 99)
        ),
        *(
            pytest.param(method(1, command), 503, divmod(command.index, 1 << 16), id=command.name)
            for command in ONLY_BROKERS_SEND
        ),
        *(pytest.param(frame(kind, 0, b"x" * 20), 505, (0, 0), id=f"frame {kind} on channel 0") for kind in (2, 3)),
        pytest.param(method(0, commands.Basic.Ack(1)), 504, (60, 80), id="channel method on channel 0"),
        *(
            pytest.param(frame(1, channel, payload), 501, (0, 0), id=f"method without its ids on channel {channel}")
            for channel in (0, 1)
            for payload in (b"", b"\0", b"\0\x3c\0")
        ),
        pytest.param(frame(8, 1, b""), 505, (0, 0), id="heartbeat on channel 1"),
        *(
            pytest.param(frame(kind, channel, b"what"), 501, (0, 0), id=f"unknown frame type {kind} on {channel}")
            for kind in (0, 4, 7, 9, 255)
            for channel in (0, 1, 9)
        ),
    ],
)
def test_a_frame_that_is_wrong_in_every_state_ends_the_connection(
    wrong: bytes, code: int, ids: tuple[int, int]
) -> None:
    assert Wire().open().fault(wrong) == (code, ids)


def test_a_channel_above_the_agreed_number_is_not_allowed() -> None:
    """The next number is the sidecar's own channel, which producers must not use."""
    wire = Wire()
    top = TUNING.channel_max_producer
    opens = say(top, commands.Channel.Open())
    assert wire.produce(opens) == opens
    assert wire.fault(say(top + 1, commands.Channel.Open())) == (530, (0, 0))


def test_a_protocol_error_is_recorded_for_the_log_and_counted_once() -> None:
    wire = Wire().open()
    wire.produce(frame(9, 1, b""), frame(9, 1, b""))
    wire.produce(frame(9, 1, b""))
    assert str(wire.relay.connection.lifecycle.fault) == "501 unknown frame type 9 on channel 1, expected 1, 2, 3 or 8"
    assert wire.counters.relays["/"].protocol_errors == {501: 1}


def test_immediate_is_left_for_the_broker_to_refuse() -> None:
    wire = Wire(routed("a")).open()
    start, header, body = split(publish())
    immediate = frame(1, 1, start.payload[:-1] + b"\x02") + header.raw + body.raw
    assert wire.produce(immediate) == with_tokens(immediate, "a")


# -- closing channels -------------------------------------------------------------------------------------------------


def test_after_a_close_of_the_broker_producer_frames_are_discarded_until_close_ok() -> None:
    wire = Wire(routed("a")).open(1, 2)
    assert wire.answer(NOT_FOUND) == NOT_FOUND
    other = publish(channel=2)
    late = publish() + publish(to="amq.direct") + say(1, commands.Basic.Qos(0, 1, False))
    assert wire.produce(late, other, late) == with_tokens(other, "a")
    assert wire.produce(CLOSE_OK) == CLOSE_OK
    assert wire.producer() == b""


def test_the_number_of_a_channel_closed_by_the_broker_is_free_after_close_ok() -> None:
    wire = Wire(routed("a")).open(confirm=True)
    wire.produce(publish())
    for _ in range(3):
        wire.answer(NOT_FOUND)
        message = publish()
        assert wire.produce(CLOSE_OK, OPEN, message) == CLOSE_OK + OPEN + with_tokens(message, "a")
        assert wire.relay.connection.unsettled == 0
        assert wire.answer(OPEN_OK) == OPEN_OK


@pytest.mark.parametrize("to", ["amq.direct", "xo"])
@pytest.mark.parametrize("sent", [1, 2, 3])
def test_a_content_sent_in_part_is_completed_although_its_channel_is_closed(to: str, sent: int) -> None:
    """RabbitMQ closes the whole connection if a close-ok arrives in the middle of a content."""
    wire = Wire(routed("a")).open()
    message = publish(to=to, body=bytes(300_000))
    frames = [frame.raw for frame in split(message)]
    expected = with_tokens(message, "a") if to == "xo" else message
    left = wire.produce(*frames[:sent])
    begun = bool(left)
    wire.answer(NOT_FOUND)
    left += wire.produce(*frames[sent:], publish(), CLOSE_OK)
    assert left == (expected if begun else b"") + CLOSE_OK


def test_a_method_within_a_content_of_a_closed_channel_is_an_unexpected_frame() -> None:
    wire = Wire().open()
    wire.produce(b"".join(frame.raw for frame in split(publish(body=bytes(100)))[:2]))
    wire.answer(NOT_FOUND)
    assert wire.fault(CLOSE_OK) == (505, (60, 40))


def test_crossing_closes_are_both_answered_if_the_brokers_is_first() -> None:
    wire = Wire().open()
    wire.answer(NOT_FOUND)
    assert wire.produce(CLOSE) == b""
    assert wire.producer() == CLOSE_OK
    assert wire.produce(CLOSE_OK) == CLOSE_OK


@pytest.mark.parametrize("order", [0, 1])
def test_crossing_closes_are_both_answered_if_the_producers_is_first(order: int) -> None:
    """RabbitMQ replies to a close that crosses its own, and the producer reuses the number only after that reply."""
    wire = Wire(routed("a")).open()
    assert wire.produce(CLOSE) == CLOSE
    assert wire.answer(NOT_FOUND) == NOT_FOUND
    for receive in (wire.answer, wire.produce) if order else (wire.produce, wire.answer):
        assert receive(CLOSE_OK) == CLOSE_OK
    message = publish()
    assert wire.open().produce(message) == with_tokens(message, "a")
    assert wire.counters.relays["/"].channels == 1


@pytest.mark.parametrize("closes", [b"", CLOSE])
def test_the_broker_may_close_a_channel_repeatedly(closes: bytes) -> None:
    """RabbitMQ 3.10 does so if frames after an error refer to the last declared queue and no queue was declared."""
    wire = Wire(routed("a")).open()
    assert wire.produce(closes) == closes
    assert wire.answer(NOT_FOUND, NOT_FOUND) == NOT_FOUND
    wire.produce(CLOSE_OK)
    assert wire.answer(NOT_FOUND * bool(closes), CLOSE_OK * bool(closes)) == CLOSE_OK * bool(closes)
    message = publish()
    assert wire.open().produce(message) == with_tokens(message, "a")


def test_after_a_close_of_the_sidecar_frames_of_both_sides_are_discarded() -> None:
    wire = Wire(routed("a")).open()
    assert wire.produce(RESERVED, publish()) == AHEAD
    wire.refused()
    assert wire.produce(publish(), publish(to="amq.direct")) == b""
    assert wire.answer(say(1, commands.Basic.QosOk()), content_header(1, 5), say(1, commands.Basic.Ack(1))) == b""
    assert wire.answer(CLOSE_OK) == b""
    assert wire.produce(CLOSE_OK) == b""
    assert wire.relay.connection.channels == {}


def test_a_channel_closed_by_the_sidecar_is_reopened_after_the_brokers_close_ok() -> None:
    """RabbitMQ treats an open that arrives before its close-ok as a second open of the old channel (504)."""
    wire = Wire(routed("a")).open()
    wire.produce(RESERVED)
    wire.refused()
    message = publish()
    assert wire.produce(CLOSE_OK + OPEN, message) == b""
    assert wire.answer(CLOSE_OK) == b""
    assert wire.upstream() == OPEN + with_tokens(message, "a")
    assert wire.answer(OPEN_OK) == OPEN_OK


def test_crossing_closes_of_producer_and_sidecar_are_both_answered() -> None:
    wire = Wire(routed("a")).open()
    wire.produce(RESERVED)
    wire.refused()
    assert wire.produce(CLOSE) == b""
    assert wire.producer() == CLOSE_OK
    assert wire.produce(CLOSE_OK) == b""
    wire.answer(CLOSE_OK)
    assert wire.produce(OPEN) == OPEN


def test_crossing_closes_of_broker_and_sidecar_are_both_answered() -> None:
    wire = Wire(routed("a")).open()
    wire.produce(RESERVED)
    wire.refused()
    assert wire.answer(NOT_FOUND, NOT_FOUND) == b""
    assert wire.upstream() == CLOSE_OK
    assert wire.answer(CLOSE_OK) == b""
    wire.produce(CLOSE_OK)
    assert wire.produce(OPEN) == OPEN


# -- queues -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("passive", [False, True])
def test_frames_after_a_declare_wait_for_its_reply(passive: bool) -> None:
    """A message may choose the queue or exchange, although no rule names it."""
    wire = Wire(events=QueueEvents()).open()
    queue = say(1, commands.Queue.Declare(0, "q", passive))
    exchange = say(1, commands.Exchange.Declare(0, "e", "fanout", passive))
    queue_ok, exchange_ok = say(1, commands.Queue.DeclareOk("q", 0, 0)), say(1, commands.Exchange.DeclareOk())
    assert wire.produce(queue, exchange, publish()) == queue
    assert wire.answer(queue_ok) == queue_ok
    assert wire.events == [("declared", ("queue", b"q"), False)]
    assert wire.upstream() == exchange
    assert wire.answer(exchange_ok) == exchange_ok
    assert wire.events[1:] == [("declared", ("exchange", b"e"), False)]
    assert wire.upstream() == publish()


def test_a_nowait_declare_of_a_queue_that_no_message_can_choose_is_recorded_immediately() -> None:
    wire = Wire(events=QueueEvents()).open()
    wire.produce(say(1, commands.Queue.Declare(0, "q", nowait=True)))
    wire.produce(say(1, commands.Queue.Declare(0, "q", passive=True, nowait=True)))
    assert wire.events == [("declared", ("queue", b"q"), False)]


@pytest.mark.parametrize("nowait", [False, True])
def test_an_empty_name_is_the_last_declared_queue_although_its_name_is_not_known_yet(nowait: bool) -> None:
    wire = Wire(events=QueueEvents()).open()
    wire.produce(DECLARE)
    wire.answer(DECLARED)
    (declare,) = split(wire.produce(say(1, commands.Queue.Declare(0, "", nowait=nowait), commands.Queue.Delete(0, ""))))
    assert not declare.arguments["nowait"]
    reply = say(1, commands.Queue.DeclareOk("amq.gen-1", 0, 0))
    assert wire.answer(reply) == (b"" if nowait else reply)
    assert names(wire.upstream()) == ["Queue.Delete"]
    wire.answer(say(1, commands.Queue.DeleteOk(0)))
    assert wire.events == [
        ("declared", ("queue", b"q"), False),
        ("declared", ("queue", b"amq.gen-1"), False),
        ("deleted", b"amq.gen-1"),
    ]


def test_an_exclusive_queue_declared_with_nowait_is_bound_before_later_frames() -> None:
    """Only the declaring connection can bind it, and only once it exists, so the sidecar requests the declare-ok."""
    wire = Wire(routed("q", bound=()), events=QueueEvents([b"q"])).open()
    message = publish()
    declare = commands.Queue.Declare(0, "q", exclusive=True, nowait=True, arguments={"x-expires": 5})
    (request,) = split(wire.produce(say(1, declare), message))
    assert request.arguments == {**dict(declare), "nowait": False}
    assert wire.answer(say(1, commands.Queue.DeclareOk("q", 0, 0))) == b""
    assert wire.events == [("deleted", b"q"), ("declared", ("queue", b"q"), True)]
    assert [(frame.channel, frame.name) for frame in split(wire.upstream())] == [(OWN, "Channel.Open")]
    wire.answer(OWN_OPEN_OK)
    assert names(wire.upstream()) == ["Queue.Bind"]
    assert wire.answer(OWN_BIND_OK) == b""
    assert wire.upstream() == with_tokens(message, "q")


def test_exclusive_queues_that_the_broker_has_deleted_are_not_kept() -> None:
    """The broker sends no notification when it deletes an auto-delete queue."""
    wire = Wire(events=QueueEvents()).open()
    kept = [b"first", b"last"]
    wire.state.queues = QueueNames(tuple(kept))
    for queue in [b"first", *(b"reply-%d" % number for number in range(5000)), b"last"]:
        wire.produce(say(1, commands.Queue.Declare(0, queue.decode(), exclusive=True, auto_delete=True)))
        wire.answer(say(1, commands.Queue.DeclareOk(queue.decode(), 0, 0)))
    queues = wire.relay.connection.upstream.exclusive_queues
    assert queues.issuperset(kept)
    assert len(queues) <= 1001


def test_a_refused_nowait_declare_of_an_exclusive_queue_is_forwarded() -> None:
    wire = Wire(routed("q", bound=()), events=QueueEvents([b"q"])).open()
    wire.produce(say(1, commands.Queue.Declare(0, "q", exclusive=True, nowait=True)), publish())
    locked = say(1, commands.Channel.Close(405, "RESOURCE_LOCKED", 50, 10))
    assert wire.answer(locked) == locked
    assert wire.produce(CLOSE_OK) == CLOSE_OK
    assert wire.events == []


def test_a_nowait_delete_of_the_queue_declared_last_is_recorded_when_it_is_done() -> None:
    wire = Wire(events=QueueEvents()).open()
    declare = say(1, commands.Queue.Declare(0, "last"))
    assert wire.produce(declare, say(1, commands.Queue.Delete(0, "", True, nowait=True))) == declare
    wire.answer(say(1, commands.Queue.DeclareOk("last", 0, 0)))
    assert wire.upstream() == say(1, commands.Queue.Delete(0, "", True))
    assert wire.events == [("declared", ("queue", b"last"), False)]
    assert wire.answer(say(1, commands.Queue.DeleteOk(0))) == b""
    assert wire.events == [("declared", ("queue", b"last"), False), ("deleted", b"last")]


def test_delivery_tags_count_from_the_publish_after_confirm_select() -> None:
    wire = Wire(routed("a")).open()
    wire.produce(publish(), publish())
    wire.produce(say(1, commands.Confirm.Select()), publish())
    assert wire.relay.connection.unsettled == 1
    wire.produce(say(1, commands.Confirm.Select()), publish())
    assert wire.relay.connection.unsettled == 2


# -- closing the connection -------------------------------------------------------------------------------------------


def test_connection_close_is_answered_by_the_broker() -> None:
    wire = Wire().open()
    assert wire.produce(GOODBYE) == GOODBYE
    assert wire.produce(publish(), HEARTBEAT, b"\xff" * 9) == b""
    assert wire.answer(GOODBYE_OK) == GOODBYE_OK
    assert wire.relay.connection.lifecycle.phase is Phase.CLOSED


def test_connection_close_waits_for_held_publishes() -> None:
    wire = Wire(chosen("new")).open()
    message = publish("new")
    assert wire.produce(message, GOODBYE, publish("new", channel=2)) == b""
    assert wire.produce(publish(channel=3)) == b""
    assert wire.relay.connection.lifecycle.phase is Phase.OPEN
    assert wire.control("new") == with_tokens(message, "new") + GOODBYE
    assert wire.answer(GOODBYE_OK) == GOODBYE_OK


def test_connection_close_does_not_wait_for_closed_channels() -> None:
    wire = Wire(chosen("new")).open()
    wire.produce(publish("new"), GOODBYE)
    assert wire.answer(NOT_FOUND) == NOT_FOUND
    assert wire.upstream() == GOODBYE


def test_confirms_after_connection_close_reach_the_producer() -> None:
    wire = Wire(routed("a")).open(confirm=True)
    wire.produce(publish(), publish(), GOODBYE)
    assert wire.answer(say(1, commands.Basic.Ack(2, True))) == say(1, commands.Basic.Ack(2, True))
    assert wire.counters.relays["/"].confirms_acked == 2


def test_out_of_order_connection_methods_are_left_for_the_broker_to_refuse() -> None:
    opens = method(0, commands.Connection.Open("/"))
    assert Wire().open().produce(opens) == opens


# -- unanswered requests ----------------------------------------------------------------------------------------------


def test_reading_a_producer_stops_while_too_many_requests_are_unanswered() -> None:
    wire = Wire(limits=RelayLimits(unanswered=3)).open(1, 2)
    wire.produce(say(1, commands.Queue.Bind(0, "a", "b", "k")), say(2, commands.Exchange.Declare(0, "b", "fanout")))
    full = [wire.relay.connection.producer_full]
    wire.produce(say(1, commands.Queue.Delete(0, "a")))
    full.append(wire.relay.connection.producer_full)
    wire.answer(say(1, commands.Queue.BindOk()))
    full.append(wire.relay.connection.producer_full)
    assert full == [False, True, False]


@pytest.mark.parametrize("closing", [404, 0])
def test_requests_of_a_closed_channel_do_not_count_as_unanswered(closing: int) -> None:
    wire = Wire(limits=RelayLimits(unanswered=2)).open(1, 2)
    wire.produce(*[say(1, commands.Queue.Bind(0, "a", "b", "k"))] * 2)
    assert wire.relay.connection.producer_full
    if closing:  # closed by the broker: the producer's close-ok must be read
        wire.answer(say(1, commands.Channel.Close(closing, "", 50, 10)))
    else:
        wire.produce(say(1, commands.Channel.Close(200, "", 0, 0)))
        wire.answer(CLOSE_OK)
    assert not wire.relay.connection.producer_full


# -- the states of a channel ------------------------------------------------------------------------------------------

NO_OPEN, SECOND_OPEN = "CHANNEL_ERROR - expected 'channel.open'", "CHANNEL_ERROR - second 'channel.open' seen"
NO_METHOD = "UNEXPECTED_FRAME - expected method frame, got non method frame instead"


@pytest.mark.parametrize(
    ("opened", "frames", "code", "text", "ids"),
    [
        (False, say(1, commands.Basic.Qos(0, 1)), 504, NO_OPEN, (60, 10)),
        (False, publish(), 504, NO_OPEN, (60, 40)),
        (False, CLOSE, 504, NO_OPEN, (20, 40)),
        (False, CLOSE_OK, 504, NO_OPEN, (20, 41)),
        (False, content_header(1, 0), 505, NO_METHOD, (0, 0)),
        (True, content_header(1, 0), 505, NO_METHOD, (0, 0)),
        (True, OPEN, 504, SECOND_OPEN, (20, 10)),
        (True, CLOSE + OPEN, 504, SECOND_OPEN, (20, 10)),
        (True, CLOSE_OK, 503, "COMMAND_INVALID - unimplemented method", (20, 41)),
    ],
)
def test_a_frame_in_the_wrong_channel_state_is_answered_as_by_rabbitmq(
    opened: bool, frames: bytes, code: int, text: str, ids: tuple[int, int]
) -> None:
    wire = Wire(routed("a"))
    if opened:
        wire.open()
    assert names(wire.produce(frames))[-1] == "Connection.Close"
    assert closed(wire.producer()) == (0, code, text, ids)


@pytest.mark.parametrize(
    ("first", "second", "text", "ids"),
    [
        (commands.Tx.Select(), commands.Confirm.Select(), "cannot switch from tx to confirm mode", (85, 10)),
        (commands.Confirm.Select(), commands.Tx.Select(), "cannot switch from confirm to tx mode", (90, 10)),
    ],
)
def test_the_mode_of_a_channel_does_not_change(
    first: base.Frame, second: base.Frame, text: str, ids: tuple[int, int]
) -> None:
    wire = Wire(routed("a")).open()
    assert wire.produce(say(1, first, second)) == say(1, first) + AHEAD
    assert closed(wire.refused()) == (1, 406, f"PRECONDITION_FAILED - {text}", ids)


def test_frames_after_a_close_of_the_producer_are_discarded() -> None:
    """RabbitMQ does the same. If the sidecar also closed the channel for a refused publish, it would get a 504."""
    wire = Wire(routed("a")).open()
    assert wire.produce(CLOSE, RESERVED, publish(), say(1, commands.Basic.Qos(0, 1))) == CLOSE
    assert wire.answer(CLOSE_OK) == CLOSE_OK


def test_a_second_close_of_the_producer_is_answered_after_the_first() -> None:
    wire = Wire(routed("a")).open(confirm=True)
    wire.produce(publish(to="other"))
    assert wire.produce(CLOSE, CLOSE) == CLOSE
    acked = say(1, commands.Basic.Ack(1))
    assert wire.answer(acked, CLOSE_OK) == acked + CLOSE_OK * 2


def test_a_held_close_is_answered_if_the_broker_closes_the_channel() -> None:
    wire = Wire(chosen("new")).open()
    assert wire.produce(publish("new"), CLOSE) == b""
    assert wire.answer(NOT_FOUND) + wire.producer() == NOT_FOUND + CLOSE_OK
    assert wire.produce(CLOSE_OK) == CLOSE_OK
    assert wire.open().relay.connection.backlog.held == 0


def test_a_held_close_is_answered_if_the_sidecar_closes_the_channel() -> None:
    wire = Wire(routed("a")).open()
    wire.produce(say(1, commands.Exchange.Declare(0, "x", "x-open")), CLOSE)
    wire.answer(FLOW_OK)
    wire.looked_up(b"x", "topic")
    assert names(wire.producer()) == ["Channel.Close", "Channel.CloseOk"]


def test_a_channel_closed_by_the_sidecar_is_free_after_the_brokers_last_reply() -> None:
    wire = Wire(routed("a")).open()
    wire.produce(RESERVED)
    wire.refused()
    wire.produce(CLOSE_OK)
    assert wire.answer(CLOSE_OK) == b""
    assert wire.relay.connection.channels == {}


def test_a_channel_opened_in_the_first_read_counts_once() -> None:
    wire = Wire(chosen("new"))
    wire.produce(OPEN, publish("new"))
    wire.control()
    wire.answer(OPEN_OK)
    assert wire.counters.relays["/"].channels == 1


@pytest.mark.parametrize("command", REQUESTS, ids=lambda command: command.name)
def test_a_request_is_forwarded_unchanged(command: base.Frame) -> None:
    wire = Wire(routed("a")).open()
    assert wire.produce(method(1, command)) == method(1, command)
    assert wire.producer() == b""


def test_a_flow_of_the_producer_gets_its_own_reply_among_those_of_the_sidecar() -> None:
    wire = Wire(routed("a")).open()
    bad = publish("x.o.p.e.n.x.q.1")
    assert wire.produce(AHEAD) == AHEAD
    assert wire.produce(bad) == AHEAD
    assert wire.answer(FLOW_OK) == FLOW_OK
    assert closed(wire.refused())[:2] == (1, 403)
