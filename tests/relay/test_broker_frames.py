from __future__ import annotations

from dataclasses import replace

import pytest
from pamqp import base, commands

from oxproxy.addressing.targets import Publication
from oxproxy.amqp.tables import encode_table
from oxproxy.relay.connection_state import EnsureDestination, Phase
from oxproxy.relay.original_address import entry
from oxproxy.relay.vhost import Delivery
from tests.client import HEARTBEAT, content, content_header, frame, method, names, split
from tests.relay.wire import (
    AHEAD,
    CLOSE,
    CLOSE_OK,
    DECLARE,
    DECLARED,
    GOODBYE,
    GOODBYE_OK,
    NOT_FOUND,
    OPEN,
    OURS,
    OWN,
    OWN_BIND_OK,
    OWN_OPEN_OK,
    REPORT,
    RESERVED,
    TUNING,
    QueueEvents,
    Wire,
    ack,
    chosen,
    closed,
    nack,
    owned,
    publish,
    returned,
    routed,
    say,
    several,
    state,
    token,
    with_tokens,
)
from tests.routing.building import exchange, to_queue

DELIVER = commands.Basic.Deliver("c", 1, False, "e", "k")
QUEUE = routed("q", delivery=Delivery.QUEUE)


def delivery(body: bytes = b"body", channel: int = 1, command: base.Frame = DELIVER) -> bytes:
    return method(channel, command) + content(channel, REPORT, body)


def moved(body: bytes = b"body", channel: int = 1, command: base.Frame | None = None) -> bytes:
    """A message that was published with queue delivery, as the broker delivers it."""
    start = method(channel, command or commands.Basic.Deliver("c", 1, False, "", "q"))
    entries = encode_table(REPORT) + entry(Publication(b"xo", b"key"), Publication(b"", b"q"))
    size = len(body)
    parts = b"".join(frame(3, channel, body[at : at + 131064]) for at in range(0, size, 131064))
    return start + content_header(channel, size, entries) + parts


def original(body: bytes = b"body", channel: int = 1) -> bytes:
    """The same message, as the consumer should receive it."""
    return method(channel, commands.Basic.Deliver("c", 1, False, "xo", "key")) + content(channel, REPORT, body)


# -- forwarded unchanged ----------------------------------------------------------------------------------------------


# -- confirms ---------------------------------------------------------------------------------------------------------


def test_confirms_are_relayed_and_each_publish_is_counted_once() -> None:
    wire = Wire().open(confirm=True)
    wire.produce(publish() * 9)
    confirms = ack(1) + ack(1) + ack(3, True) + nack(5) + nack(5) + nack(2)
    confirms += ack(4) + nack(7, True) + nack(7, True) + nack(0, True)
    assert wire.answer(confirms) == confirms
    counters = wire.counters.relays["/"]
    assert (counters.confirms_acked, counters.confirms_nacked, wire.relay.connection.unsettled) == (4, 5, 0)


@pytest.mark.parametrize("last", [2, 0xFFFF, 0x10000, 0x1FFFF, 2**32 + 1])
def test_confirms_in_a_row_are_counted_across_every_octet_of_their_tags(last: int) -> None:
    wire = Wire(routed("a")).open(confirm=True)
    confirms = wire.relay.connection.channels[1].confirms
    confirms.published = last + 3
    said = b"".join(ack(tag, tag == last - 1) for tag in range(last - 1, last + 4))
    assert wire.answer(said) == said
    assert (wire.counters.relay("/").confirms_acked, confirms.settled.low) == (last + 3, last + 3)


# -- restored addresses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body_size", [0, 5, 300_000])
def test_a_delivery_has_the_original_exchange_and_routing_key(body_size: int) -> None:
    wire = Wire(QUEUE).open()
    assert wire.answer(moved(bytes(body_size))) == original(bytes(body_size))
    assert not wire.relay.connection.deliveries.inspected


def test_channels_interleave_while_addresses_are_restored() -> None:
    wire = Wire(QUEUE).open(1, 2)
    frames = [[frame.raw for frame in split(moved(b"x" * 9, channel))] for channel in (1, 2)]
    left = wire.answer(*(frame for pair in zip(*frames, strict=True) for frame in pair))
    for channel in (1, 2):
        output = b"".join(frame.raw for frame in split(left) if frame.channel == channel)
        assert output == original(b"x" * 9, channel)


# -- contents in progress are completed -------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [1, 2, 3])
def test_a_close_of_the_sidecar_waits_for_the_end_of_a_content_on_its_channel(sent: int) -> None:
    wire = Wire(routed("a")).open()
    wire.produce(publish())
    frames = [frame.raw for frame in split(delivery(bytes(300_000)))]
    assert wire.answer(*frames[:sent]) == b"".join(frames[:sent])
    wire.relay.over_limit("too many messages")
    assert (wire.upstream(), wire.producer()) == (OURS, b"")
    rest = wire.answer(*frames[sent:], delivery(), method(1, commands.Basic.QosOk()))
    assert rest.startswith(b"".join(frames[sent:]))
    assert closed(rest[len(b"".join(frames[sent:])) :])[:2] == (1, 406)
    assert wire.answer(delivery()) == b""


def test_replies_to_crossing_closes_wait_for_the_end_of_a_content() -> None:
    wire = Wire(routed("a")).open()
    wire.produce(publish())
    frames = [frame.raw for frame in split(delivery(bytes(300_000)))]
    wire.answer(*frames[:2])
    wire.relay.over_limit("too many messages")
    wire.produce(CLOSE)
    left = wire.answer(*frames[2:])
    assert names(left)[-2:] == ["Channel.Close", "Channel.CloseOk"]


def test_a_refusal_follows_earlier_frames_of_the_broker() -> None:
    wire = Wire(routed("a")).open()
    frames = [frame.raw for frame in split(delivery(bytes(300_000)))]
    wire.answer(*frames[:2])
    wire.produce(RESERVED, publish())
    assert wire.answer(*frames[2:], delivery()) == b"".join(frames[2:]) + delivery()
    assert closed(wire.refused())[:2] == (1, 403)
    assert wire.answer(delivery()) == b""


def test_an_earlier_error_of_the_broker_replaces_a_refusal() -> None:
    wire = Wire(routed("a")).open()
    assert wire.produce(RESERVED, publish()) == AHEAD
    assert wire.answer(NOT_FOUND) == NOT_FOUND
    assert wire.upstream() == b""


def test_a_held_content_does_not_count_as_begun() -> None:
    wire = Wire(QUEUE).open()
    assert wire.answer(split(moved())[0].raw) == b""
    wire.produce(RESERVED)
    assert closed(wire.refused())[:2] == (1, 403)
    assert wire.answer(*(frame.raw for frame in split(moved())[1:])) == b""


# -- declares ----------------------------------------------------------------------------------------------------------


def test_a_publish_waits_for_the_reply_and_the_tokens_of_an_earlier_declare() -> None:
    wire = Wire(routed("q"), events=QueueEvents(None)).open(1, 2)
    message, other = publish(), publish(channel=2)
    assert wire.produce(DECLARE, message, other) == DECLARE + with_tokens(other, "q")
    assert wire.answer(delivery(), DECLARED, delivery(channel=2)) == delivery() + delivery(channel=2)
    assert wire.upstream() == b""
    assert wire.control() == with_tokens(message, "q")
    assert wire.producer() == DECLARED


def test_a_close_of_the_broker_replaces_a_declare_ok_that_waits_for_tokens() -> None:
    wire = Wire(routed("q"), events=QueueEvents(None)).open()
    wire.produce(DECLARE, publish())
    assert wire.answer(DECLARED, NOT_FOUND) == NOT_FOUND
    assert wire.control() == wire.producer() == b""
    assert wire.produce(CLOSE_OK, OPEN) == CLOSE_OK + OPEN


def test_a_close_of_the_producer_waits_for_a_declare() -> None:
    wire = Wire(routed("q"), events=QueueEvents(None)).open()
    assert wire.produce(DECLARE, CLOSE) == DECLARE
    assert wire.answer(DECLARED) == b""
    assert wire.control() == CLOSE
    assert wire.answer(CLOSE_OK) == DECLARED + CLOSE_OK


def test_a_declare_ok_is_not_sent_within_a_content() -> None:
    wire = Wire(routed("q"), events=QueueEvents(None)).open()
    wire.produce(DECLARE)
    method_frame, header, body = split(delivery())
    assert wire.answer(DECLARED, method_frame.raw, header.raw) == method_frame.raw + header.raw
    wire.control()
    assert wire.producer() == b""
    assert wire.answer(body.raw) == body.raw + DECLARED


# -- producers with a smaller frame_max -------------------------------------------------------------------------------

SMALL = replace(TUNING, frame_max_producer=4096)


@pytest.mark.parametrize("body_size", [0, 4088, 4089, 8176, 8177, 100_000])
def test_bodies_are_split_to_the_frame_max_of_the_producer(body_size: int) -> None:
    wire = Wire(tuning=SMALL).open()
    body = bytes(range(256)) * (body_size // 256 + 1)
    left = wire.answer(delivery(body[:body_size]))
    assert left == method(1, DELIVER) + content(1, REPORT, body[:body_size], frame_max=4096)
    assert not wire.relay.connection.deliveries.unfinished


def test_a_header_larger_than_the_producers_frame_max_ends_the_connection() -> None:
    wire = Wire(tuning=SMALL).open()
    large = method(1, DELIVER) + content_header(1, 4, bytes(5000))
    wire.relay.broker_sent(large + frame(3, 1, b"body"), 0.0)
    left = wire.sent()
    assert left.startswith(method(1, DELIVER))
    assert closed(left[len(method(1, DELIVER)) :])[:3] == (
        0,
        501,
        f"FRAME_ERROR - the broker's frame of {len(content_header(1, 4, bytes(5000)))} bytes exceeds frame_max 4096",
    )


def test_a_header_that_fits_after_restoring_is_forwarded() -> None:
    wire = Wire(QUEUE, tuning=SMALL).open()
    fill = encode_table(((b"x", REPORT[0][1]._replace(value=bytes(3980))),))
    entries = fill + entry(Publication(b"xo", b"key"), Publication(b"", b"q"))
    start = method(1, commands.Basic.Deliver("c", 1, False, "", "q"))
    assert len(content_header(1, 0, entries)) > 4096
    left = split(wire.answer(start, content_header(1, 0, entries)))
    assert left[1].raw == content_header(1, 0, fill)


# -- several copies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body_size", [0, 10, 200_000])
def test_a_suppressed_return_is_removed_with_its_content(body_size: int) -> None:
    wire = Wire(several("e")).open()
    sent = split(wire.produce(publish("key", mandatory=True, body=bytes(body_size))))
    header = sent[1].raw
    back = returned("", "q", header + b"".join(frame.raw for frame in sent[2 : len(sent) // 2]))
    assert wire.answer(back, delivery()) == delivery()
    assert not wire.relay.connection.deliveries.inspected


# -- invalid frames from the broker -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        frame(1, 1, b"\0\x3c\0\x50" + bytes(9))[:-1] + b"\xcd",
        frame(4, 1, b""),
        frame(3, 0, b"body"),
        b"\x03\0\1\xff\xff\xff\xff",
        frame(9, 7, b"x"),
    ],
)
def test_invalid_frames_of_the_broker_close_the_producer_with_the_reason(data: bytes) -> None:
    wire = Wire(QUEUE).open()
    channel, code, text, _ = closed(wire.answer(data + bytes(8)))
    assert (channel, code) == (0, 320)
    assert "the broker sent malformed frames" in text


def test_nothing_is_relayed_after_the_end_of_the_connection() -> None:
    wire = Wire(routed("a")).open(1, 2, confirm=True)
    wire.produce(publish(), frame(9, 1, b""))
    assert closed(wire.producer())[:2] == (0, 501)
    assert wire.answer(delivery(), ack(1), moved(), HEARTBEAT, method(2, commands.Basic.QosOk())) == b""
    assert wire.answer(delivery()[:9], delivery()[9:]) == b""
    assert wire.answer(method(0, commands.Connection.CloseOk())) == b""
    assert wire.relay.connection.upstream.done


FORCED = method(0, commands.Connection.Close(320, "CONNECTION_FORCED - broker forced connection closure", 0, 0))


# -- tokens of declared queues ----------------------------------------------------------------------------------------


def test_a_queue_that_rules_name_gets_its_tokens_before_the_declare_ok() -> None:
    wire = Wire(routed("q"), events=QueueEvents([b"q"])).open()
    wire.produce(DECLARE)
    assert wire.answer(DECLARED) == b""
    assert wire.events == [("declared", ("queue", b"q"), False)]
    wire.relay.answer(wire.request())
    assert wire.producer() == DECLARED


def exclusive(wire: Wire, queue: str = "q") -> Wire:
    """Declare an exclusive queue; its declare-ok is held, and the sidecar's own channel is open."""
    wire.open()
    wire.produce(say(1, commands.Queue.Declare(0, queue, exclusive=True)))
    assert wire.answer(say(1, commands.Queue.DeclareOk(queue, 0, 0))) == b""
    assert names(wire.upstream()) == ["Channel.Open"]
    assert wire.answer(OWN_OPEN_OK) == b""
    return wire


def test_an_exclusive_queue_is_bound_on_the_sidecars_channel_before_declare_ok() -> None:
    wire = exclusive(Wire(routed("q", bound=()), events=QueueEvents([b"q"])))
    (bind,) = split(wire.upstream())
    assert (bind.channel, bind.arguments["queue"], bind.arguments["exchange"]) == (OWN, "q", "xo")
    assert bind.arguments["routing_key"] == token("queue", b"q").decode()
    assert wire.answer(OWN_BIND_OK) == DECLARED
    message = publish()
    assert wire.produce(message) == with_tokens(message, "q")


def test_an_exclusive_queue_is_bound_to_every_carrier_that_names_it() -> None:
    first, second = exchange(to_queue("q"), name="one"), exchange(to_queue("q"), name="other")
    third = exchange(to_queue("else"), name="third")
    of = state(*((made, owned(made, bound=())) for made in (first, second, third)))
    wire = exclusive(Wire(of, events=QueueEvents([b"q"])))
    assert split(wire.upstream())[0].arguments["exchange"] == "one"
    assert wire.answer(OWN_BIND_OK) == b""
    assert split(wire.upstream())[0].arguments["exchange"] == "other"
    assert wire.answer(OWN_BIND_OK) == DECLARED


def test_an_exclusive_queue_is_bound_where_it_counts_as_bound_for_publishes() -> None:
    """It may have been deleted with its bindings since a message chose it, and only its owner can bind it again."""
    wire = exclusive(Wire(routed("other", bound=[("queue", b"q")]), events=QueueEvents([b"q"])))
    (bind,) = split(wire.upstream())
    assert (bind.arguments["queue"], bind.arguments["exchange"]) == ("q", "xo")
    assert wire.answer(OWN_BIND_OK) == DECLARED


def test_a_refused_bind_of_the_sidecar_is_a_missing_destination() -> None:
    wire = exclusive(Wire(routed("q", bound=()), events=QueueEvents([b"q"])))
    wire.upstream()
    refusal = commands.Channel.Close(403, "ACCESS_REFUSED - no", 50, 20)
    assert wire.answer(say(OWN, refusal)) == DECLARED
    (missing,) = wire.state.exchanges[b"xo"].tokens.missing.items()
    assert (missing[0], missing[1].reason) == (("queue", b"q"), "403 ACCESS_REFUSED - no")
    assert names(wire.upstream()) == ["Channel.CloseOk"]
    message = publish()
    assert wire.produce(message) == message


def test_a_passive_declare_of_a_bound_queue_is_answered_immediately() -> None:
    wire = Wire(routed("q"), events=QueueEvents([b"q"])).open()
    wire.produce(say(1, commands.Queue.Declare(0, "q", passive=True, exclusive=True)))
    assert wire.answer(DECLARED) == DECLARED
    assert (wire.relay.connection.pending.requests, wire.upstream()) == ([], b"")


def test_replies_are_matched_to_requests_in_order() -> None:
    wire = Wire(routed("q"), events=QueueEvents([b"q"])).open()
    bind, delete = say(1, commands.Queue.Bind(0, "x", "e", "k")), say(1, commands.Queue.Delete(0, "x"))
    assert wire.produce(bind, DECLARE, delete) == bind + DECLARE
    bound = say(1, commands.Queue.BindOk(), commands.Basic.QosOk())
    assert wire.answer(bound, DECLARED) == bound
    assert wire.events == [("declared", ("queue", b"q"), False)]
    assert wire.control() == delete
    deleted = say(1, commands.Queue.DeleteOk(0))
    assert wire.answer(deleted) == DECLARED + deleted
    assert wire.events[1:] == [("deleted", b"x")]


# -- confirms and returns ---------------------------------------------------------------------------------------------


def test_a_confirm_is_timed() -> None:
    wire = Wire().open(confirm=True)
    wire.now = 5.0
    wire.produce(publish(), publish())
    wire.now = 5.003
    wire.answer(ack(2, True))
    assert wire.counters.confirm_seconds.total_seconds == pytest.approx(0.003)


# -- closing the connection -------------------------------------------------------------------------------------------


def test_a_close_of_the_broker_and_its_close_ok_are_forwarded_unchanged() -> None:
    wire = Wire().open()
    assert wire.answer(FORCED) == FORCED
    assert wire.counters.relays["/"].channels == 0
    assert wire.produce(publish(), GOODBYE_OK) == GOODBYE_OK
    assert wire.relay.connection.lifecycle.phase is Phase.CLOSED


def test_a_close_of_the_broker_during_a_held_connection_close_ends_both_sides() -> None:
    wire = Wire(chosen("new")).open()
    assert wire.produce(publish("new"), GOODBYE) == b""
    assert wire.answer(FORCED) == GOODBYE_OK
    assert wire.upstream() == GOODBYE_OK
    assert wire.relay.connection.lifecycle.phase is Phase.CLOSED


# -- blocked ----------------------------------------------------------------------------------------------------------


def test_blocked_and_unblocked_reach_the_producer_and_the_gauge() -> None:
    wire = Wire()
    counters = wire.counters.relays["/"]
    blocked, unblocked = (
        method(0, commands.Connection.Blocked("low on memory")),
        method(0, commands.Connection.Unblocked()),
    )
    gauge = []
    for sent in (blocked, blocked, unblocked, unblocked, blocked):
        assert wire.answer(sent) == sent
        gauge.append(counters.upstream_blocked)
    wire.relay.ended()
    wire.relay.ended()
    assert [*gauge, counters.upstream_blocked] == [1, 1, 0, 0, 1, 0]


def test_an_unexpected_close_ok_is_ignored() -> None:
    wire = Wire().open()
    message = publish(to="other")
    size = len(message) - len(b"body") - 8  # all frames except the body frame
    begun = wire.produce(message[:size])
    assert wire.answer(say(1, commands.Channel.CloseOk())) == b""
    assert begun + wire.produce(message[size:]) == message


def test_a_queue_that_the_broker_named_is_known_by_that_name() -> None:
    wire = Wire(routed("amq.gen-1"), events=QueueEvents([b"amq.gen-1"])).open()
    wire.produce(say(1, commands.Queue.Declare(0, "")))
    wire.answer(say(1, commands.Queue.DeclareOk("amq.gen-1", 0, 0)))
    request = wire.request()
    assert isinstance(request, EnsureDestination)
    assert request.destination == ("queue", b"amq.gen-1")
