from __future__ import annotations

from dataclasses import replace

import pytest

from proxy.amqp.frames import HEARTBEAT_FRAME
from proxy.errors import ProtocolError, Scope
from proxy.relay.channel import Channel, CollectedPublish, ContentUnderWay, PendingPublish
from proxy.relay.channel_state import ChannelEvent, ChannelState
from proxy.relay.connection_state import ConnectionState, ConnectionTerms, PermissionCheck, Phase, RelayLimits
from proxy.relay.original_address import OriginalAddress
from proxy.routing.bindings.binding import Reach
from proxy.routing.decision import QueueNames
from tests.client import split
from tests.relay.wire import TUNING, Wire, closed, routed, state


def connection(limits: RelayLimits | None = None) -> ConnectionState:
    wire = Wire(routed("a"), limits=limits)
    return ConnectionState(ConnectionTerms(TUNING, limits or RelayLimits()), wire.plans)


def said(pieces: list[bytes]) -> bytes:
    data = b"".join(pieces)
    pieces.clear()
    return data


def opened(both: ConnectionState, number: int) -> Channel:
    channel = both.open_channel(number, ChannelEvent.PRODUCER_OPEN, 0)
    both.change(channel, ChannelEvent.BROKER_OPEN_OK)
    return channel


def test_a_number_has_one_record_until_its_channel_is_closed() -> None:
    both = connection()
    channel = opened(both, 3)
    both.change(channel, ChannelEvent.PRODUCER_CLOSE)
    assert both.channels == {3: channel}
    both.change(channel, ChannelEvent.BROKER_CLOSE_OK)
    assert both.channels == {}
    assert opened(both, 3) is not channel


def test_whatever_a_channel_kept_is_counted_off_when_it_ends() -> None:
    both = connection()
    channel = opened(both, 1)
    channel.held.keep([b"123"])
    channel.output.hold_back(b"12345")
    publish = PendingPublish(b"", b"", b"", channel, False)
    channel.content = ContentUnderWay(publish)
    channel.content.collected = CollectedPublish(publish, OriginalAddress(b"xo", b""), b"", (), 7, bytearray())
    both.backlog.collected = 7
    assert (both.backlog.held, both.backlog.held_back) == (3, 5)
    both.forget_all()
    assert (both.backlog.held, both.backlog.held_back, both.backlog.collected) == (0, 0, 0)


def test_a_method_of_ours_waits_for_the_end_of_a_content() -> None:
    both = connection()
    channel = opened(both, 1)
    both.send_to_producer(channel, b"first")
    both.deliveries.unfinished[1] = 10
    both.send_to_producer(channel, b"second")
    assert said(both.to_producer) == b"first"
    assert channel.output.deferred == [b"second"]
    assert both.deliveries.inspected == {1}


def test_odd_channels_are_noted() -> None:
    both = connection()
    channel = opened(both, 1)
    channel.output.returned = b"frame"
    both.deliveries.mark(channel)
    assert both.deliveries.inspected == {1}
    channel.output.returned = None
    both.deliveries.mark(channel)
    assert both.deliveries.inspected == set()


def test_a_refused_channel_is_closed_on_both_sides() -> None:
    both = connection()
    error = ProtocolError(406, "no" * 200, Scope.CHANNEL, 60, 40)
    both.refuse(opened(both, 5), error)
    channel, code, text, ids = closed(said(both.to_producer))
    assert (channel, code, len(text), ids) == (5, 406, 255, (60, 40))
    assert closed(said(both.to_upstream))[:3] == (5, 200, "closed by the proxy")
    assert both.channels[5].state is ChannelState.CLOSING_BY_US
    assert both.plans.counters.protocol_errors == {406: 1}


def test_a_fault_closes_the_connection_on_both_sides_once() -> None:
    both = connection()
    opened(both, 1)
    both.fail(ProtocolError(505, "what", Scope.CHANNEL, 60, 40))
    both.fail(ProtocolError(501, "again"))
    assert closed(said(both.to_producer)) == (0, 505, "UNEXPECTED_FRAME - what", (60, 40))
    assert closed(said(both.to_upstream))[:2] == (0, 200)
    assert (both.lifecycle.phase, both.channels, both.plans.counters.protocol_errors) == (Phase.CLOSING, {}, {505: 1})
    assert str(both.lifecycle.fault) == "505 what"


@pytest.mark.parametrize("phase", [Phase.PRODUCER_CLOSES, Phase.CLOSING, Phase.CLOSED])
def test_what_is_being_closed_is_not_closed_again(phase: Phase) -> None:
    both = connection()
    both.lifecycle.phase = phase
    both.close(320, b"again")
    both.fail(ProtocolError(501, "again"))
    assert (both.to_producer, both.to_upstream, both.lifecycle.fault) == ([], [], None)


def test_places_in_the_order_of_declarations_never_repeat() -> None:
    both = connection()
    sequences = [both.next_sequence() for _ in range(3)]
    assert sequences == sorted(set(sequences))


def test_what_exists_is_asked_about() -> None:
    both = connection()
    both.plans.state.queues = QueueNames((b"a",), 1)
    own = both.plans.state.exchanges[b"xo"]
    reach = own.reach("client")
    unknown = [(reach, ("queue", b"ghost")), (reach, ("queue", b"a")), (reach, ("exchange", b"e"))]
    assert both.permission_checks(unknown) == (
        PermissionCheck(own, reach, ("exchange", b"e")),
        PermissionCheck(own, reach, ("queue", b"a")),
    )


def test_a_reach_of_an_exchange_that_is_gone_is_not_asked_about() -> None:
    both = connection()
    assert both.permission_checks([(Reach("client"), ("exchange", b"e"))]) == ()


def test_what_producers_make_us_ask_is_limited() -> None:
    both = connection(RelayLimits(tokens=2))
    reach = both.plans.state.exchanges[b"xo"].reach("client")
    reach.allowed |= {("queue", b"a"), ("queue", b"b")}
    assert both.permission_checks([(reach, ("exchange", b"e"))]) == ()


def test_without_a_channel_to_spare_there_is_none_of_ours() -> None:
    wire = Wire(state())
    tuning = replace(TUNING, channel_max_upstream=TUNING.channel_max_producer)
    assert ConnectionState(ConnectionTerms(tuning), wire.plans).upstream.sidecar_channel.number is None
    assert ConnectionState(ConnectionTerms(TUNING), wire.plans).upstream.sidecar_channel.number == 2047


def test_a_heartbeat_is_eight_bytes_on_channel_0() -> None:
    (frame,) = split(HEARTBEAT_FRAME)
    assert (frame.kind, frame.channel, frame.payload) == (8, 0, b"")


def test_a_channel_that_ends_leaves_the_gauge_once() -> None:
    both = connection()
    channel = opened(both, 1)
    gauge = [both.plans.counters.channels]
    for event in (ChannelEvent.REFUSE, ChannelEvent.PRODUCER_CLOSE_OK, ChannelEvent.BROKER_CLOSE_OK):
        both.change(channel, event)
        gauge.append(both.plans.counters.channels)
    both.forget_all()
    assert [*gauge, both.plans.counters.channels] == [1, 0, 0, 0, 0]
