from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pamqp import commands

from oxproxy.amqp.tables import encode_table
from oxproxy.relay.vhost import DeclaredExchange, Delivery, VhostState
from oxproxy.values import Table, Value
from tests import client
from tests.client import HEARTBEAT, content_header, cut, frame, names, queue_bind, split
from tests.relay.contents import properties, tables
from tests.relay.wire import (
    GOODBYE,
    REPORT,
    TUNING,
    Wire,
    ack,
    chosen,
    closed,
    owned,
    publish,
    routed,
    ruled,
    say,
    several,
    table,
    token,
    with_tokens,
)
from tests.routing.building import exchange, many, to_queue

OTHER = table(type="other")
CARRIER, MOVED, QUEUE = routed("a"), routed("a", carrier="carried"), routed("a", delivery=Delivery.QUEUE)


def in_pieces(wire: Wire, data: bytes, cuts: Iterable[int]) -> bytes:
    return b"".join(wire.produce(piece) for piece in cut(data, cuts))


def counts(wire: Wire) -> tuple[object, ...]:
    """All counters of publishes."""
    relay = wire.counters.relays["/"]
    return relay.publishes_passed, relay.bytes_passed, sorted(wire.publishes())


# -- exchanges declared through other sidecars ------------------------------------------------------------------------


def behind() -> Wire:
    """A connection to a sidecar that knows only the exchanges ``xo`` and ``amq.direct``."""
    of = routed("a")
    of.broker_exchanges = {b"", b"amq.direct"}
    return Wire(of).open(1, 2, confirm=True)


def declared_elsewhere(wire: Wire, bound: Iterable[str]) -> None:
    """Add the open exchange ``new``, which routes to ``b``, as if it had been found on the broker."""
    made = exchange(to_queue("b"), name="new")
    tokens = [("queue", name.encode()) for name in bound]
    wire.state.add_exchange(owned(made, declared=DeclaredExchange(True, False, False, b"", 1), bound=tokens), made)


@pytest.mark.parametrize("cuts", [[], [10], [40], [41, 60]])
def test_a_publish_to_an_unknown_exchange_waits_until_it_has_been_looked_up(cuts: list[int]) -> None:
    wire, message, later = behind(), publish(to="new"), publish(to="amq.direct")
    assert in_pieces(wire, message + later, cuts) == b""
    assert wire.produce(publish(channel=2, to="amq.direct")) == publish(channel=2, to="amq.direct")
    declared_elsewhere(wire, bound=["b"])
    assert wire.looked_up(b"new") == with_tokens(message, "b") + later
    assert wire.produce(message) == with_tokens(message, "b")
    assert wire.answer(ack(1), ack(2)) == ack(1) + ack(2)


def test_a_publish_waits_for_its_destination_after_the_lookup() -> None:
    wire, message = behind(), publish(to="new")
    wire.produce(message)
    declared_elsewhere(wire, bound=[])
    assert wire.looked_up(b"new") == b""
    request = wire.request()
    wire.state.exchanges[b"new"].tokens.bind_ok(("queue", b"b"), (token("queue", b"b"),))
    wire.relay.answer(request)
    assert wire.upstream() == with_tokens(message, "b")


def test_a_channel_closed_during_the_lookup_publishes_nothing() -> None:
    wire = behind()
    wire.produce(publish(to="amq.direct"), publish(to="new"))
    wire.answer(say(1, commands.Channel.Close(404, "NOT_FOUND", 60, 40)))
    assert wire.produce(say(1, commands.Channel.CloseOk())) == say(1, commands.Channel.CloseOk())
    wire.open(confirm=True)
    assert wire.produce(publish(to="amq.direct")) == publish(to="amq.direct")
    assert wire.looked_up(b"new") == b""


@pytest.mark.parametrize("to", ["", "amq.direct"])
def test_known_exchanges_are_not_looked_up(to: str) -> None:
    wire, message = behind(), publish(to=to)
    assert wire.produce(message) == message


def test_while_exchanges_can_not_be_listed_none_is_looked_up() -> None:
    wire, message = behind(), publish(to="new")
    wire.state.broker_exchanges = None
    assert wire.produce(message) == message


# -- output -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body_size", [0, 1, 100, 131072 - 8, 131072 - 7, 200_000, 300_000])
@pytest.mark.parametrize("to", ["xo", "amq.direct"])
def test_bodies_of_any_size_are_forwarded_unchanged(to: str, body_size: int) -> None:
    wire, message = Wire(routed("a")).open(), publish(to=to, body=bytes(body_size))
    expected = with_tokens(message, "a") if to == "xo" else message
    assert wire.produce(message, message) == expected * 2


def one_byte_frames(count: int, to: str = "xo") -> bytes:
    start, header = split(publish(body=bytes(count), to=to))[:2]
    return start.raw + header.raw + frame(3, 1, b"\0") * count


def test_empty_body_frames_are_forwarded() -> None:
    wire = Wire(routed("a")).open()
    start, header = split(publish(body=b"ab"))[:2]
    message = start.raw + header.raw + frame(3, 1, b"") + frame(3, 1, b"a") + frame(3, 1, b"") + frame(3, 1, b"b")
    assert wire.produce(message, message) == with_tokens(message, "a") * 2


@settings(max_examples=60, deadline=None)
@given(st.data(), st.lists(st.integers(0, 10_000), max_size=12))
def test_output_does_not_depend_on_chunking(data: st.DataObject, cuts: list[int]) -> None:
    messages = []
    for _ in range(data.draw(st.integers(1, 5))):
        channel = data.draw(st.sampled_from([1, 2]))
        to = data.draw(st.sampled_from([b"xo", b"amq.direct"]))
        entries = data.draw(st.sampled_from([None, REPORT, OTHER]) | tables())
        body = bytes(data.draw(st.sampled_from([0, 1, 50])))
        messages.append(client.publish(channel, to, b"k", entries, body, data.draw(properties())))
    stream = b"".join(messages)
    whole, cut = Wire(routed("a")).open(1, 2), Wire(routed("a")).open(1, 2)
    assert in_pieces(cut, stream, cuts) == whole.produce(stream)
    assert counts(cut) == counts(whole)
    assert cut.producer() == whole.producer()


@given(st.lists(st.integers(0, 5000), max_size=30), st.permutations(range(3)))
@example([], [0, 1, 2])
def test_channels_interleave_between_the_frames_of_their_publishes(cuts: list[int], order: list[int]) -> None:
    messages = [publish(channel=1), publish(channel=2, to="amq.direct", body=b"x" * 40), publish(channel=3, body=b"")]
    frames = [[frame.raw for frame in split(message)] for message in messages] + [[HEARTBEAT]]
    stream = b""
    for row in range(3):
        for index in [*order, 3]:
            stream += b"".join(frames[index][row : row + 1])
    wire = Wire(routed("a")).open(1, 2, 3)
    left = split(in_pieces(wire, stream + stream, cuts))
    for channel, message in enumerate(messages, 1):
        output = b"".join(frame.raw for frame in left if frame.channel == channel)
        assert output == (message if channel == 2 else with_tokens(message, "a")) * 2
    assert all(frame.kind != 8 for frame in left)


# -- output without delay ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [1, 2])
def test_a_publish_to_an_open_exchange_does_not_delay_other_channels(stop: int) -> None:
    """The method frame, and possibly the header frame, arrives in one read with a short frame of another channel."""
    wire = Wire(routed("a")).open(1, 2)
    message = publish()
    wire.produce(message)
    start = b"".join(frame.raw for frame in split(message)[:stop])
    qos = say(2, commands.Tx.Commit())
    assert qos in wire.produce(start, qos)
    assert wire.produce(*(frame.raw for frame in split(message)[stop:])) in with_tokens(message, "a")


def test_a_body_in_several_frames_is_sent_frame_by_frame() -> None:
    wire = Wire(routed("a")).open()
    message = one_byte_frames(3)
    frames = split(with_tokens(message, "a"))
    wire.produce(message)
    sent = split(message)
    assert wire.produce(sent[0].raw, sent[1].raw, sent[2].raw) == b"".join(frame.raw for frame in frames[:3])
    assert wire.produce(sent[3].raw) == frames[3].raw


# -- changes during a publish -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [1, 2])
def test_rules_changed_during_a_publish_decide_it_once(stop: int) -> None:
    """A publish is decided when its header is complete, by the rules that are active at that time."""
    message = publish(body=b"x" * 100_000)
    sent = split(message)
    wire = Wire(routed("a")).open()
    left = wire.produce(*(frame.raw for frame in sent[:stop]))
    wire.state.remove_exchange(b"xo")
    left += wire.produce(*(frame.raw for frame in sent[stop:]))
    assert left == (message if stop == 1 else with_tokens(message, "a"))


def test_a_confirm_ledger_is_kept_after_it_was_needed_once() -> None:
    """After a publish in two copies, tags are translated for all publishes, including those on the fast path."""
    wire = Wire(several("ex")).open(confirm=True)
    plain, double = publish(to="amq.direct"), publish()
    wire.produce(plain, plain)
    assert names(wire.produce(plain, double, plain)).count("Basic.Publish") == 4
    assert [wire.answer(ack(tag)) for tag in (1, 2, 3)] == [ack(1), ack(2), ack(3)]
    assert [wire.answer(ack(tag)) for tag in (4, 5, 6)] == [b"", ack(4), ack(5)]


def test_a_held_channel_keeps_its_order_while_others_continue() -> None:
    wire = Wire(chosen("new", "old", bound=["old"])).open(1, 2)
    old, new = publish("old"), publish("new")
    other = publish("old", channel=2)
    wire.produce(old, other)
    left = wire.produce(old, new, old, other, new, other)
    assert left == with_tokens(old, "old") + with_tokens(other, "old") * 2
    assert wire.control("new") == with_tokens(new, "new") + with_tokens(old, "old") + with_tokens(new, "new")


def test_a_destination_that_could_not_be_bound_is_missing_for_that_publish_only() -> None:
    wire = Wire(chosen("a", "b", bound=["old"])).open()
    first, second = publish("a"), publish("b")
    assert wire.produce(first, second) == b""
    assert wire.control() == first
    assert wire.control("b") == with_tokens(second, "b")


@pytest.mark.parametrize("cut", [0, 30, 60, 200])
def test_an_incomplete_publish_is_completed_after_its_channel_was_held(cut: int) -> None:
    wire = Wire(chosen("a", "b", bound=["b"])).open()
    first, second = publish("a", body=bytes(70_000)), publish("b", body=b"y" * 150)
    whole = first + second
    at = len(first) - 100 + cut
    wire.produce(whole[:at])
    assert wire.control("a") + wire.produce(whole[at:]) == with_tokens(first, "a") + with_tokens(second, "b")


# -- sizes that need more octets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 255, 256, 257, 65_535, 65_536, 65_537, 100_000])
def test_bodies_and_strings_of_any_size_go_with_their_tokens(size: int) -> None:
    wire = Wire(routed("a")).open()
    messages = [publish(body=b"b" * size), publish(headers=table(longer="s" * size, type="report"))]
    assert wire.produce(*messages, *messages) == b"".join(with_tokens(message, "a") for message in messages * 2)
    assert wire.relay.connection.channels[1].content is None


@pytest.mark.parametrize("missing", range(1, 10))
def test_a_table_that_ends_within_a_string_is_an_error(missing: int) -> None:
    entries = encode_table(((b"type", Value("S", b"reports")),))
    method_frame = split(publish())[0].raw
    header = content_header(1, 4, entries[: len(entries) - missing])
    assert Wire(routed("a")).open().fault(method_frame, header) == (502, (60, 40))


# -- unmatched: pass --------------------------------------------------------------------------------------------------


def test_unmatched_publishes_are_forwarded_unchanged_and_counted_as_passed() -> None:
    wire = Wire(routed("a", carrier="carried", unmatched_pass=True)).open()
    message = publish(headers=((b"BCC", many("x")), *OTHER))
    assert wire.produce(message, message, message) == message * 3
    wire.counters.traffic.name(wire.counters.traffic.labels([("/", b"xo")], (), ()))
    assert wire.produce(message) == message
    assert [row[:3] for row in wire.publishes() if row[0] == b"xo" and row[2]] == [(b"xo", "passed", 1)]


# -- sequences of publishes -------------------------------------------------------------------------------------------

TURNS = [
    publish(key, channel=channel, headers=headers, body=body, to=exchange)
    for channel, key, headers, body, exchange in (
        (1, "a", REPORT, b"one", "xo"),
        (1, "b", REPORT, b"two", "xo"),
        (1, "a", OTHER, b"", "xo"),
        (1, "a", REPORT, bytes(300), "xo"),
        (2, "a", REPORT, b"one", "xo"),
        (1, "a", REPORT, b"one", "plain"),
        (1, "b", REPORT, b"two", "plain"),
        (2, "b", REPORT, b"two", "plain"),
    )
]


@given(st.lists(st.sampled_from(TURNS), max_size=30), st.lists(st.integers(0, 6000), max_size=6))
@settings(max_examples=200, deadline=None)
def test_output_of_a_publish_does_not_depend_on_other_publishes(turns: list[bytes], cuts: list[int]) -> None:
    def by_channel(data: bytes) -> list[bytes]:
        frames = split(data)
        return [b"".join(frame.raw for frame in frames if frame.channel == number) for number in (1, 2)]

    alone = [by_channel(Wire(routed("a")).open(1, 2).produce(turn)) for turn in turns]
    expected = [b"".join(output[number] for output in alone) for number in (0, 1)]
    assert by_channel(in_pieces(Wire(routed("a")).open(1, 2), b"".join(turns), cuts)) == expected


# -- protocol errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("name", "spoil", "expected"),
    [
        ("frame end of the method", lambda m, h, b: m[:-1] + b"\xcd" + h + b, (501, (0, 0))),
        ("frame end of the header", lambda m, h, b: m + h[:-1] + b"\xcd" + b, (501, (0, 0))),
        ("frame end of the body", lambda m, h, b: m + h + b[:-1] + b"\xcd", (501, (0, 0))),
        ("no header", lambda m, h, b: m + b, (505, (60, 40))),
        ("header twice", lambda m, h, b: m + h + h, (505, (60, 40))),
        ("method twice", lambda m, h, b: m + m, (505, (60, 40))),
        ("body of another class", lambda m, h, b: m + h[:8] + b"\x32" + h[9:] + b, (505, (60, 40))),
        ("body longer than announced", lambda m, h, b: m + h + frame(3, 1, b"12345"), (501, (60, 40))),
        ("short header", lambda m, h, b: m + frame(2, 1, b"\0\x3c\0\0"), (501, (60, 40))),
        ("unknown frame type", lambda m, h, b: m + h + frame(4, 1, b"body"), (501, (0, 0))),
        ("table behind the header", lambda m, h, b: m + h[:21] + b"\0\1\0\0" + h[25:] + b, (502, (60, 40))),
        ("frame larger than agreed", lambda m, h, b: m + h + frame(3, 1, bytes(140_000)), (501, (0, 0))),
    ],
)
def test_a_malformed_publish_ends_the_connection_in_any_chunking(
    name: str, spoil: Callable[[bytes, bytes, bytes], bytes], expected: tuple[int, tuple[int, int]], known: bool
) -> None:
    message = publish()
    start, header, body = (part.raw for part in split(message))
    data = spoil(start, header, body)
    every_position = range(len(data)) if len(data) < 500 else range(0, len(data), 5000)
    for cuts in (range(0), every_position):
        wire = Wire(routed("a")).open()
        if known:
            wire.produce(message)
        left = in_pieces(wire, message + data, cuts)
        assert left.startswith(with_tokens(message, "a"))
        assert names(left)[-1] == "Connection.Close"
        _, code, _, ids = closed(wire.producer())
        assert (code, ids) == expected


def test_a_frame_that_is_too_large_is_refused_when_its_length_is_read() -> None:
    for kind in (1, 2, 3, 8):
        wire = Wire(routed("a")).open()
        head = bytes((kind,)) + (1).to_bytes(2, "big") + (131072 + 1).to_bytes(4, "big")
        assert wire.produce(head[:6]) == b""
        assert not wire.relay.connection.lifecycle.fault
        assert wire.fault(head[6:]) == (501, (0, 0))


def test_the_frame_max_of_the_producer_is_respected() -> None:
    wire = Wire(routed("a"), tuning=replace(TUNING, frame_max_producer=4096)).open()
    for tolerated in (4096, 4097, 4104):
        message = publish(body=bytes(10_000), frame_max=tolerated)
        assert wire.produce(message) == with_tokens(message, "a")
    assert wire.fault(publish(body=bytes(10_000), frame_max=4105)) == (501, (0, 0))


def test_no_input_is_processed_after_a_protocol_error() -> None:
    wire = Wire(routed("a")).open()
    wire.fault(frame(9, 1, b""), publish())
    assert wire.produce(publish(), content_header(1, 5), b"\xff" * 30) == b""
    assert wire.producer() == b""


@pytest.mark.parametrize("of", [CARRIER, MOVED, QUEUE], ids=["carrier", "carrier of another name", "queue"])
@pytest.mark.parametrize("prefix", ["x.o.p.e.n.x.", "x-o-p-e-n-x-"])
@pytest.mark.parametrize("cc", [False, True])
def test_a_reserved_key_closes_its_channel_and_no_other(of: VhostState, prefix: str, cc: bool) -> None:
    wire = Wire(of).open(1, 2)
    key = f"{prefix}q.0123456789abcdef"
    bad = publish(headers=(*REPORT, (b"CC", many("fine", key)))) if cc else publish(key)
    left = wire.produce(bad, publish(channel=2))
    assert names(left) == ["Channel.Flow", "Basic.Publish", "Header", "Body"]
    text = f"ACCESS_REFUSED - routing keys that begin with '{prefix}' are reserved"
    assert closed(wire.refused()) == (1, 403, text, (60, 40))


@pytest.mark.parametrize("header", [b"CC", b"BCC"])
def test_a_producers_publish_with_a_token_to_a_carrier_is_always_refused(header: bytes) -> None:
    wire = Wire(routed("a", carrier="carried")).open(1, 2, 3, 4)
    good = publish(to="carried", headers=((header, many("a")),))
    assert wire.produce(good, good) == good * 2
    for channel in (2, 3, 4):
        bad = publish(to="carried", headers=((header, many("a", "x.o.p.e.n.x.q.1")),), channel=channel)
        fine = publish(to="carried", channel=channel)
        left = wire.produce(fine, fine, bad, fine)
        assert left.startswith(fine * 2)
        assert names(left[2 * len(fine) :]) == ["Channel.Flow"]
        assert closed(wire.refused(channel))[:2] == (channel, 403)


def test_a_bcc_of_the_producer_does_not_route_on_open_exchanges() -> None:
    wire = Wire(routed("a")).open()
    entries: Table = (*REPORT, (b"BCC", many("b", "x.o.p.e.n.x.q.1")), (b"BCC", many("c")))
    cut = publish(headers=REPORT)
    for _ in range(3):
        assert wire.produce(publish(headers=entries)) == with_tokens(cut, "a")


@pytest.mark.parametrize("to", ["xo", "amq.direct"])
def test_ten_thousand_body_frames_of_one_byte_are_forwarded_unchanged(to: str) -> None:
    wire, message = Wire(routed("a")).open(), one_byte_frames(10_000, to)
    assert wire.produce(message, message) == (with_tokens(message, "a") if to == "xo" else message) * 2


def expensive() -> VhostState:
    """A virtual host with rules on which a message with the header ``t`` can spend the budget.

    If a message has the header ``u``, its routing key names a queue.
    """
    bindings = [to_queue("q", {"x-?hkvre t": rf"(a+)+\d{{{number + 3}}}$"}) for number in range(40)]
    bindings.append(to_queue("u", {"x-?hkex": "u", "x-msg-destq-rk": ""}))
    vhost = ruled(*bindings, bound=[("queue", b"q"), ("queue", b"u")])
    vhost.queues = replace(vhost.queues, names=(b"late",), version=1)
    return vhost


def spending(number: int) -> bytes:
    return publish(headers=((b"t", Value("S", b"a" * 4000 + str(number).encode())),))


def all_sent(wire: Wire, sent: bytes) -> list[str]:
    """Names of the frames sent upstream, including those sent after the pauses that the driver makes."""
    while wire.relay.interrupted:
        sent += wire.produce()
    return names(sent)


def test_held_publishes_after_one_that_spends_the_budget_precede_the_close() -> None:
    wire = Wire(expensive()).open()
    waits = publish("late", ((b"u", Value("S", b"")),))
    assert wire.produce(waits, spending(1), spending(2), spending(3), GOODBYE) == b""
    sent = all_sent(wire, wire.control("late"))
    assert sent == ["Basic.Publish", "Header", "Body"] * 4 + ["Connection.Close"]


def test_held_publishes_spend_one_budget_at_a_time() -> None:
    wire = Wire(expensive()).open()
    waits = publish("late", ((b"u", Value("S", b"")),))
    wire.produce(waits, *map(spending, range(60)))
    budgets = wire.plans.counters
    sent = wire.control("late")
    assert budgets.regex_budgets_spent == 1
    assert all_sent(wire, sent).count("Basic.Publish") == 61


def test_frames_after_a_spent_budget_are_sent_although_another_channel_resumes_next() -> None:
    wire = Wire(expensive()).open(1, 2)
    binds = [
        queue_bind(number, b"b", b"xo", b"", encode_table(((b"x-?hkv= kind", Value("I", number)),)))
        for number in (1, 2)
    ]
    wire.produce(*binds)
    assert wire.produce(spending(1), spending(2), spending(3), publish(to="other", channel=2)) == b""
    wire.answer(say(1, commands.Queue.BindOk()) * 2, say(2, commands.Queue.BindOk()) * 2)
    assert all_sent(wire, wire.upstream()).count("Basic.Publish") == 4


def test_a_publish_that_spends_the_budget_after_waiting_interrupts_its_producer() -> None:
    wire = Wire(expensive()).open()
    wire.produce(publish("late", ((b"u", Value("S", b"")), (b"t", Value("S", b"a" * 4000)))))
    seen = [wire.relay.interrupted]
    wire.produce()
    seen.append(wire.relay.interrupted)
    wire.control("late")
    seen.append(wire.relay.interrupted)
    assert seen == [True, False, True]


def test_decisions_that_take_long_are_interrupted_without_throttling_the_producer() -> None:
    """Each decision takes 2 ms of the clock, so other producers are served after every five or six of them."""
    wire = Wire(ruled(to_queue("q", {"x-?hkex": "t"})))
    ticks = count()
    wire.plans.sources = wire.plans.sources._replace(timer=lambda: next(ticks) * 0.002)
    wire.open()
    messages = [publish(headers=((b"t", Value("I", number)),)) for number in range(20)]
    reads = [names(wire.produce(*messages)).count("Basic.Publish")]
    while wire.relay.interrupted:
        assert not wire.relay.over_budget
        reads.append(names(wire.produce()).count("Basic.Publish"))
    assert sum(reads) == 20
    assert len(reads) == 4
    assert max(reads) <= 6


def test_a_publish_whose_names_are_added_and_deleted_many_times_spends_its_budget() -> None:
    vhost = ruled(*(to_queue(f"q{number}", {"x-msg-addq-ontrue": "", "x-msg-delq-ontrue": ""}) for number in range(20)))
    wire = Wire(vhost).open()
    names_in_header = Value("A", tuple(Value("S", b"name%d" % number) for number in range(3000)))
    headers = ((b"x-addq-ontrue", names_in_header), (b"x-delq-ontrue", names_in_header))
    wire.produce(publish(headers=headers), publish())
    assert wire.plans.counters.regex_owners == {"rules": 0, "client": 0, "message": 1}
    assert wire.relay.interrupted
    assert wire.relay.over_budget
