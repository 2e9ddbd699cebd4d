from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxproxy.amqp.tables import encode_table
from oxproxy.relay.connection_state import BindDestinations, RelayLimits
from oxproxy.relay.tokens import NOWHERE
from oxproxy.relay.vhost import Delivery, VhostState
from oxproxy.routing.exchange import Exchange
from oxproxy.values import Table, Value
from tests.client import content_header, frame, names, split
from tests.relay.contents import tables
from tests.relay.wire import (
    AHEAD,
    CLOSE_OK,
    NOT_FOUND,
    REPORT,
    Wire,
    ack,
    address_of,
    chosen,
    closed,
    keys_of,
    owned,
    publish,
    routed,
    ruled,
    several,
    state,
    table,
    table_of,
    token,
    with_tokens,
)
from tests.routing.building import arguments, exchange, many, to_exchange, to_queue


def slow(message: bytes, wire: Wire) -> bytes:
    """Send a publish frame by frame, so that the fast path never sees a complete one."""
    return b"".join(wire.produce(frame.raw[:9]) + wire.produce(frame.raw[9:]) for frame in split(message))


def filtered(alternate: bytes | None = None, **limits: int) -> VhostState:
    declared = arguments({name.replace("_", "-"): value for name, value in limits.items()})
    made = Exchange(b"xo", "x-open", declared, alternate=alternate)
    made.bind(to_queue("a"))
    return state((made, owned(made)))


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body_size", [101, 100_000])
def test_a_filter_closes_its_channel_after_earlier_publishes_are_sent(body_size: int) -> None:
    wire = Wire(filtered(max_payload_size=100)).open(1, 2)
    good, bad, other_channel = publish(), publish(body=bytes(body_size)), publish(channel=2)
    left = wire.produce(good, bad, good, other_channel)
    assert left == with_tokens(good, "a") + AHEAD + with_tokens(other_channel, "a")
    assert closed(wire.refused()) == (1, 406, "PRECONDITION_FAILED - Max size payload hit.", (60, 40))
    assert wire.produce(other_channel) == with_tokens(other_channel, "a")


@pytest.mark.parametrize("alternate", [None, b"ae"])
def test_a_message_dropped_silently_is_sent_without_a_token(alternate: bytes | None) -> None:
    wire = Wire(filtered(alternate, max_payload_size_silent=3)).open()
    message = publish()
    assert wire.produce(message, message) == message * 2
    assert wire.producer() == b""


@pytest.mark.parametrize("exchange", ["xo", "amq.direct"])
def test_any_body_size_can_be_announced(exchange: str) -> None:
    """Sizes above 2**63 - 1 are refused, since compiled code cannot count them. RabbitMQ would wait for such a body."""
    start, part = split(publish(to=exchange))[0].raw, frame(3, 1, b"part")
    wire = Wire(routed("a")).open()
    left = wire.produce(start, content_header(1, 2**63 - 1), part, part)
    assert names(left) == ["Basic.Publish", "Header", "Body", "Body"]
    wire = Wire(routed("a")).open()
    assert wire.produce(start, content_header(1, 2**63), part, part) == AHEAD
    text = "PRECONDITION_FAILED - message size 9223372036854775808 is larger than configured max size "
    assert closed(wire.refused()) == (1, 406, f"{text}9223372036854775807", (60, 40))


def test_a_malformed_value_within_a_header_names_the_publish() -> None:
    header = content_header(1, 0, b"\x04typeF" + (2).to_bytes(4, "big") + b"\x05x")
    assert Wire(routed("a")).open().fault(split(publish())[0].raw, header) == (502, (60, 40))


RESERVED_KEY = "x.o.p.e.n.x.q.1"


@pytest.mark.parametrize("pieces", [slow, lambda message, wire: wire.produce(message)])
@pytest.mark.parametrize(("to", "body"), [("e", b"body"), ("", b"x" * 100_000)])
@pytest.mark.parametrize("prefix", [b"x.o.p.e.n.x.", b"x-o-p-e-n-x-"])
@pytest.mark.parametrize(
    ("key", "headers"),
    [
        ("x.o.p.e.n.x.", ()),
        (RESERVED_KEY, ()),
        ("key", ((b"CC", many("a", "x.o.p.e.n.x.e.1")),)),
        ("key", ((b"CC", many("a")), (b"CC", many("x.o.p.e.n.x.b.1")))),
        ("key", ((b"a", Value("S", b"b")), (b"BCC", many("fine", RESERVED_KEY)))),
    ],
)
def test_a_reserved_key_is_refused_on_exchanges_without_rules(
    key: str, headers: Table, prefix: bytes, to: str, body: bytes, pieces: Callable[[bytes, Wire], bytes]
) -> None:
    wire = Wire().open(1, 2)
    good, other_channel = publish(to="e", headers=((b"CC", many("fine")),)), publish(to="e", channel=2)
    assert wire.produce(good, good) == good * 2
    assert pieces(publish(key, headers, body, to=to).replace(b"x.o.p.e.n.x.", prefix), wire) == AHEAD
    text = f"ACCESS_REFUSED - routing keys that begin with '{prefix.decode()}' are reserved"
    assert closed(wire.refused()) == (1, 403, text, (60, 40))
    assert wire.produce(other_channel) == other_channel


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_reserved_key_ends_a_run_of_cached_publishes(count: int) -> None:
    wire = Wire().open()
    good = publish(to="e", headers=((b"CC", many("fine")),))
    bad = publish(to="e", headers=((b"CC", many(RESERVED_KEY)),))
    assert wire.produce(good) == good
    assert wire.produce(good * count, bad, good) == good * count + AHEAD
    assert closed(wire.refused())[:2] == (1, 403)


@pytest.mark.parametrize(
    ("key", "headers"),
    [
        ("x.o.p.e.n.x", None),
        ("x-o-p-e-n-x", None),
        ("x-o.p-e.n-x.", None),
        ("", None),
        ("key", ((b"note", Value("S", RESERVED_KEY.encode())), (b"CC", many("fine")))),
        ("key", ((b"CC", Value("S", RESERVED_KEY.encode())),)),
        ("key", ((b"CC", Value("F", ((RESERVED_KEY.encode(), Value("S", b"a")),))),)),
    ],
)
def test_the_reserved_prefix_is_permitted_elsewhere_in_a_publish(key: str, headers: Table | None) -> None:
    wire = Wire().open()
    message = publish(key, headers, RESERVED_KEY.encode(), to="e")
    assert wire.produce(message, message) == message * 2
    assert slow(message, wire) == message
    assert wire.producer() == b""


# -- waiting for destinations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [slow, lambda message, wire: wire.produce(message)])
def test_a_publish_waits_until_its_destination_is_bound(pieces: Callable[[bytes, Wire], bytes]) -> None:
    wire = Wire(chosen("new")).open()
    message = publish("new", mandatory=True)
    assert pieces(message, wire) == b""
    [request] = wire.relay.connection.pending.requests
    assert isinstance(request, BindDestinations)
    assert (request.channel.number, request.destinations) == (1, (("queue", b"new"),))
    assert wire.control("new") == with_tokens(message, "new")


def test_held_input_is_counted_and_stops_the_reading() -> None:
    wire = Wire(chosen("new"), limits=RelayLimits(held_bytes=1000)).open()
    message = publish("new", body=bytes(400))
    full = []
    for _ in range(3):
        wire.produce(message)
        full.append(wire.relay.connection.producer_full)
    assert full == [False, False, True]
    for left in (2, 1, 0):
        assert wire.control() == message
        assert wire.relay.connection.backlog.held == left * len(message)


def test_held_publishes_are_discarded_with_their_channel() -> None:
    wire = Wire(chosen("new")).open(1, 2)
    wire.produce(publish("new"), publish("new", channel=2))
    request, _ = wire.relay.connection.pending.requests
    assert wire.answer(NOT_FOUND) == NOT_FOUND
    assert wire.relay.connection.backlog.held == len(publish("new"))
    wire.relay.answer(request)
    assert wire.upstream() == b""
    assert wire.produce(CLOSE_OK) == CLOSE_OK


def test_a_protocol_error_in_held_frames_ends_the_connection_when_they_are_processed() -> None:
    wire = Wire(chosen("new")).open()
    message = publish("new")
    assert wire.produce(message, frame(3, 1, b"body")) == b""
    assert wire.control().startswith(message)
    assert closed(wire.producer())[:2] == (0, 505)


# -- several copies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body_size", [0, 1, 300_000])
def test_several_copies_repeat_the_whole_content(body_size: int) -> None:
    wire = Wire(several("e", "f", queues=("a", "b"))).open()
    message = publish("key", body=bytes(body_size), message_id=b"m")
    sent = split(message)
    assert b"".join(wire.produce(frame.raw) for frame in sent[:-1]) == b""
    left = split(wire.produce(sent[-1].raw))
    size = len(left) // 3
    copies = [left[at : at + size] for at in range(0, len(left), size)]
    assert [address_of(copy[0]) for copy in copies] == [("", "a"), ("e", "key"), ("f", "key")]
    assert [b"".join(frame.payload for frame in copy[2:]) for copy in copies] == [bytes(body_size)] * 3
    assert encode_table(((b"BCC", many("b")),)) in copies[0][1].payload
    assert all(copy[1].payload.endswith(b"\x01m") for copy in copies)


def test_a_body_too_large_to_repeat_is_refused_at_its_header() -> None:
    wire = Wire(several("e"), limits=RelayLimits(replay_bytes=100_000)).open()
    good, bad = publish(body=bytes(100_000)), publish(body=bytes(100_001))
    assert names(wire.produce(good)).count("Basic.Publish") == 2
    assert wire.produce(b"".join(frame.raw for frame in split(bad)[:2])) == AHEAD
    assert closed(wire.refused())[:3] == (
        1,
        311,
        "CONTENT_TOO_LARGE - body of 100001 bytes would be sent in several copies; the limit is 100000 bytes",
    )


def test_buffered_bodies_are_limited_over_all_channels() -> None:
    wire = Wire(several("e"), limits=RelayLimits(collected_bytes=400_000)).open(1, 2, 3)
    for channel in (1, 2, 3):
        wire.produce(*(frame.raw for frame in split(publish(body=bytes(150_000), channel=channel))[:-1]))
    text = "body of 150000 bytes would be sent in several copies; with 300000 bytes of other such bodies in progress"
    assert closed(wire.refused(3))[:3] == (
        3,
        311,
        f"CONTENT_TOO_LARGE - {text}, the total would exceed the limit of 400000 bytes",
    )
    assert names(wire.produce(split(publish(body=bytes(150_000)))[-1].raw)).count("Basic.Publish") == 2
    assert wire.relay.connection.backlog.collected == 150_000


def test_an_incomplete_publish_on_a_closed_channel_is_not_sent() -> None:
    wire = Wire(several("e")).open()
    message = publish(body=bytes(200))
    wire.produce(message[:-5])
    wire.answer(NOT_FOUND)
    assert wire.produce(message[-5:], CLOSE_OK) == CLOSE_OK
    assert wire.relay.connection.backlog.collected == 0


# -- the address and the keys of a publish ----------------------------------------------------------------------------

NAMED_BY_MESSAGE = {"x-msg-addq-ontrue": "", "x-msg-adde-ontrue": ""}


def addressed(data: bytes) -> list[tuple[object, ...]]:
    """Return exchange, routing key and the keys in BCC of each publish."""
    frames = split(data)
    headers = [frame for frame in frames if frame.kind == 2]
    keys = [keys_of(header) if any(name == b"BCC" for name, _ in table_of(header)) else [] for header in headers]
    starts = [frame for frame in frames if frame.name == "Basic.Publish"]
    return [(*address_of(start), *bcc) for start, bcc in zip(starts, keys, strict=True)]


@pytest.mark.parametrize(
    ("of", "missing", "sent"),
    [
        pytest.param(of, missing, sent, id=name)
        for name, of, missing, sent in [
            ("a carrier", routed("a", carrier="carried"), "", [("carried", "key", token("queue", b"a"))]),
            ("a missing queue of a carrier", routed("a", "b"), "b", [("xo", "key", token("queue", b"a"))]),
            ("queue delivery", routed("a", "b", delivery=Delivery.QUEUE), "", [("", "a", b"b")]),
            ("a missing queue", routed("a", "b", delivery=Delivery.QUEUE), "a", [("", "b", b"a")]),
            ("only missing queues", routed("a", "b", delivery=Delivery.QUEUE), "ab", [("", "a", b"b")]),
            ("an alternate exchange", ruled(alternate="ae", delivery=Delivery.QUEUE), "", [("ae", "key")]),
        ]
    ],
)
def test_a_publish_is_sent_to_existing_destinations(
    of: VhostState, missing: str, sent: list[tuple[object, ...]]
) -> None:
    for queue in missing:
        of.exchanges[b"xo"].tokens.refused(("queue", queue.encode()), "404", 0.0)
    assert addressed(Wire(of).open().produce(publish("key"))) == sent


def test_in_queue_delivery_an_exchange_that_only_a_message_names_is_looked_up_first() -> None:
    of = ruled(to_queue("a", NAMED_BY_MESSAGE), delivery=Delivery.QUEUE, bound=[("exchange", b"e")])
    wire = Wire(of).open()
    message = publish("key", ((b"x-adde-ontrue", many("e", "f")),))
    assert wire.produce(message) == b""
    assert getattr(wire.relay.connection.pending.requests[0], "destinations", None) == (("exchange", b"f"),)
    assert addressed(wire.control()) == [("", "a"), ("e", "key")]


def test_in_queue_delivery_a_name_that_is_not_utf8_is_a_missing_destination() -> None:
    odd = Value("S", b"odd\xff")
    wire = Wire(ruled(to_queue("a", NAMED_BY_MESSAGE), delivery=Delivery.QUEUE)).open()
    message = publish("key", ((b"x-addq-ontrue", many(odd)), (b"x-adde-ontrue", many(odd))))
    assert addressed(wire.produce(message)) == [("", "a")]


def test_a_cc_is_renamed_if_it_would_route_unless_the_broker_will_refuse_it() -> None:
    wire = Wire(routed("a", "b", delivery=Delivery.QUEUE)).open()
    entries = (b"CC", many("x")), *REPORT, (b"CC", many("y"))
    *kept, _, _ = table_of(split(wire.produce(publish(headers=entries)))[1])
    assert kept == [*REPORT, (b"x-original-cc", many("x")), (b"x-original-cc", many("y"))]
    entries = (b"CC", Value("S", b"x")), *REPORT
    assert table_of(split(wire.produce(publish(headers=entries)))[1])[:2] == entries


@given(tables(), st.sampled_from(Delivery))
def test_other_headers_of_the_producer_survive_in_order(own: Table, delivery: Delivery) -> None:
    ours = {b"BCC", b"CC", b"x-original-address", b"x-original-cc"}
    wire = Wire(ruled(to_queue("a"), delivery=delivery)).open()
    entries = table_of(split(wire.produce(publish(headers=own)))[1])
    assert [entry for entry in entries if entry[0] not in ours] == [entry for entry in own if entry[0] not in ours]


# -- missing destinations ---------------------------------------------------------------------------------------------


def test_missing_destinations_do_not_use_the_alternate_exchange() -> None:
    of = ruled(to_queue("unused", {"x-msg-destq-rk": ""}), alternate="ae", bound=())
    of.exchanges[b"xo"].tokens.refused(("queue", b"ghost"), "404", 0.0)
    wire = Wire(of).open()
    start, header, _ = split(wire.produce(publish("ghost", mandatory=True, headers=REPORT)))
    assert address_of(start) == ("", NOWHERE.decode())
    assert start.arguments["mandatory"]
    assert [name for name, _ in table_of(header)] == [b"type", b"x-original-address"]


def test_cc_is_renamed_for_missing_destinations() -> None:
    wire = Wire(routed("a", delivery=Delivery.QUEUE)).open()
    _, header, _ = split(wire.produce(publish(headers=((b"CC", many("other")), *table(type="none")))))
    assert [name for name, _ in table_of(header)] == [b"type", b"x-original-cc", b"x-original-address"]


# -- counters ---------------------------------------------------------------------------------------------------------


def test_publishes_are_counted_equally_on_both_paths() -> None:
    for send in (slow, lambda message, wire: wire.produce(message)):
        wire = Wire(ruled(to_queue("a"))).open(confirm=True)
        for message in (publish(), publish(to="amq.direct"), publish(body=b"")):
            send(message, wire)
        assert wire.relay.connection.unsettled == 3
        assert wire.answer(ack(3, True)) == ack(3, True)
        assert wire.relay.connection.unsettled == 0
        assert wire.counters.relays["/"].publishes_passed == 1
        assert sum(row[2] for row in wire.publishes()) == 2


def test_a_publish_to_an_unbound_queue_after_one_in_several_copies_is_counted_on_both_sides() -> None:
    wire = Wire(chosen("new")).open(confirm=True)
    many_copies = exchange(to_queue("q"), to_exchange("e"), name="several")
    wire.state.add_exchange(owned(many_copies, Delivery.QUEUE), many_copies)
    wire.produce(publish(to="several"), publish("new"))
    assert wire.control() == publish("new")
    assert wire.answer(ack(3), ack(2, True)) == ack(2) + ack(1)


def test_chained_open_exchanges_cause_one_publish() -> None:
    first = exchange(to_exchange("next"), to_queue("a"))
    second = exchange(to_queue("b"), name="next")
    own = owned(first, bound=[("queue", b"a"), ("queue", b"b")])
    wire = Wire(state((first, own), (second, owned(second)))).open()
    message = publish()
    assert wire.produce(message) == with_tokens(message, "a", "b")
