from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import base, commands

from oxproxy.amqp.properties import fingerprint
from oxproxy.amqp.tables import encode_table
from oxproxy.errors import ProtocolError
from oxproxy.relay.confirm_ledger import WAITING_RETURNS
from oxproxy.relay.vhost import Delivery, VhostState
from oxproxy.values import Table, Value
from tests.client import Frame, content, method, names, split
from tests.relay.wire import (
    FLOW_OK,
    REPORT,
    TUNING,
    Wire,
    ack,
    address_of,
    closed,
    keys_of,
    nack,
    publish,
    returned,
    ruled,
    several,
    table_of,
    token,
)
from tests.routing.building import many, to_exchange, to_queue

SMALL = replace(TUNING, frame_max_producer=4096, frame_max_upstream=8192)


def to_many(count: int, delivery: Delivery = Delivery.CARRIER, exchanges: int = 0) -> VhostState:
    """A virtual host that routes every message to this many exchanges, and to this many queues with long names."""
    bindings = [to_queue("queue-" + "x" * 40 + f"-{number:05d}") for number in range(count)]
    bindings += [to_exchange(f"exchange-{number:05d}") for number in range(exchanges)]
    return ruled(*bindings, delivery=delivery)


def parts(data: bytes) -> list[list[Frame]]:
    """Split the bytes into the frames of each publish, without the request that follows mandatory publishes."""
    publishes: list[list[Frame]] = []
    for frame in split(data):
        if frame.name == "Basic.Publish":
            publishes.append([])
        if frame.name != "Channel.Flow":
            publishes[-1].append(frame)
    return publishes


# -- more keys than fit in a header frame -----------------------------------------------------------------------------


def test_tokens_are_split_over_publishes_that_fit_with_each_destination_once() -> None:
    wire = Wire(to_many(4000, exchanges=3)).open(confirm=True)
    message = publish(headers=None, body=b"x" * 10)
    left = parts(wire.produce(message))
    assert len(left) == 2
    assert all(len(frame.raw) <= 131072 for part in left for frame in part)
    keys = [keys_of(part[1]) for part in left]
    assert keys[0][:3] == [token("exchange", b"exchange-%05d" % number) for number in range(3)]
    assert sorted(keys[0] + keys[1]) == sorted({*keys[0], *keys[1]})
    assert len(keys[0] + keys[1]) == 4003
    assert [part[0].raw + part[2].raw for part in left] == [split(message)[0].raw + split(message)[2].raw] * 2


def test_a_split_publish_has_one_confirm_and_one_return() -> None:
    wire = Wire(to_many(4000)).open(confirm=True)
    plain = publish(to="amq.direct")
    wire.produce(plain, publish(mandatory=True), plain)
    back = returned("xo", "", content(1, REPORT, b"body"))
    assert wire.answer(ack(1), back, ack(2)) == ack(1)
    assert names(wire.answer(back, ack(4, True))) == ["Basic.Return", "Header", "Body", "Basic.Ack", "Basic.Ack"]
    assert wire.relay.connection.unsettled == 0


def test_queue_names_are_split_without_duplicates() -> None:
    """Each part has a different queue as its routing key: the broker removes duplicates only within one publish."""
    wire = Wire(to_many(400, Delivery.QUEUE), tuning=SMALL).open()
    left = parts(wire.produce(publish("key", frame_max=4096)))
    assert len(left) > 2
    reached: list[bytes] = []
    for part in left:
        assert all(len(frame.raw) <= 8192 for frame in part)
        exchange_name, key = address_of(part[0])
        assert exchange_name == ""
        reached += [str(key).encode(), *keys_of(part[1])]
        ((_, original),) = [entry for entry in table_of(part[1]) if entry[0] == b"x-original-address"]
        assert (b"new-routing-key", Value("S", str(key).encode())) in original.value  # type: ignore[operator]
    assert len(reached) == len(set(reached)) == 400


@given(st.integers(0, 4000), st.integers(1, 400))
@settings(max_examples=40, deadline=None)
def test_no_header_frame_is_larger_than_the_broker_takes(filling: int, count: int) -> None:
    wire = Wire(to_many(count), tuning=SMALL).open()
    headers: Table = ((b"fill", Value("S", bytes(filling))),)
    left = wire.produce(publish(headers=headers, frame_max=4096))
    if wire.producer():
        return
    assert all(len(frame.raw) <= 8192 for frame in split(left))
    assert sum(len(keys_of(part[1])) for part in parts(left)) == count


@pytest.mark.parametrize("delivery", Delivery)
def test_headers_without_space_for_a_destination_close_the_channel(delivery: Delivery) -> None:
    wire = Wire(to_many(1, delivery), tuning=replace(TUNING, frame_max_upstream=4096, frame_max_producer=4096)).open()
    headers: Table = ((b"fill", Value("S", bytes(4096 - 8 - 14 - 4 - 10))),)
    message = publish(headers=headers, frame_max=4096)
    assert len(split(message)[1].raw) == 4096
    assert names(wire.produce(message)) == ["Channel.Flow"]
    assert closed(wire.refused())[:3] == (
        1,
        311,
        "CONTENT_TOO_LARGE - headers of 4096 bytes leave no room for the destinations",
    )


# -- confirms ---------------------------------------------------------------------------------------------------------


def test_a_nack_of_one_copy_is_a_nack() -> None:
    wire = Wire(several("e")).open(confirm=True)
    wire.produce(publish(), publish())
    assert wire.answer(nack(1), ack(4, True)) == nack(1) + ack(2)
    assert wire.counters.relays["/"].confirms_nacked == 1


def test_publishes_unconfirmed_when_the_ledger_begins_keep_their_tags() -> None:
    wire = Wire(several("e")).open(confirm=True)
    plain = publish(to="amq.direct")
    wire.produce(plain, plain, plain)
    assert wire.answer(ack(2)) == ack(2)
    wire.produce(publish())
    assert wire.answer(ack(5, True)) == ack(1) + ack(3) + ack(4)


def test_channels_have_separate_ledgers() -> None:
    wire = Wire(several("e")).open(1, 2, confirm=True)
    wire.produce(publish(), publish(to="amq.direct", channel=2), publish(channel=2))
    assert wire.answer(ack(1, channel=2)) == ack(1, channel=2)
    assert wire.answer(ack(2), ack(3, True, channel=2)) == ack(2, channel=2)[:0] + ack(2, channel=2)
    assert wire.answer(ack(1)) == ack(1)


def test_without_confirms_there_is_no_ledger() -> None:
    wire = Wire(several("e")).open()
    wire.produce(publish())
    assert wire.relay.connection.channels[1].confirms.ledger is None


# -- returns ----------------------------------------------------------------------------------------------------------


def back(frames: list[Frame]) -> bytes:
    """The broker's return of a publish: the same content without BCC."""
    exchange_name, key = address_of(frames[0])
    entries = tuple(entry for entry in table_of(frames[1]) if entry[0] != b"BCC")
    head = frames[1].payload
    size = int.from_bytes(head[14:18], "big")
    table = encode_table(entries)
    header = head[:14] + len(table).to_bytes(4, "big") + table + head[18 + size :]
    body = b"".join(frame.raw for frame in frames[2:])
    return returned(str(exchange_name), str(key), Frame(2, 1, header).raw + body)


@pytest.mark.parametrize("confirm", [False, True])
def test_a_return_is_forwarded_when_every_copy_is_returned(confirm: bool) -> None:
    wire = Wire(several("e", queues=("a", "b"))).open(confirm=confirm)
    message = publish("key", headers=((b"n", Value("I", 1)),), mandatory=True, message_id=b"m1")
    copies = parts(wire.produce(message))
    assert wire.answer(back(copies[1])) == b""
    start, header, body = split(wire.answer(back(copies[0])))
    assert (start.name, address_of(start)) == ("Basic.Return", ("xo", "key"))
    assert header.raw + body.raw == content(1, ((b"n", Value("I", 1)),), b"body", {"message_id": b"m1"})
    assert wire.counters.relays["/"].returns == 1


@pytest.mark.parametrize("confirm", [False, True])
def test_a_return_of_only_one_copy_is_not_forwarded(confirm: bool) -> None:
    wire = Wire(several("e")).open(confirm=confirm)
    copies = parts(wire.produce(publish(mandatory=True, body=b"x" * 300)))
    assert wire.answer(back(copies[0])) == b""
    assert wire.counters.relays["/"].returns == 0
    if confirm:
        assert wire.answer(ack(2, True)) == ack(1)


def test_equal_publishes_are_each_returned_once() -> None:
    wire = Wire(several("e")).open(confirm=True)
    message = publish(mandatory=True, message_id=b"m1")
    copies = parts(wire.produce(message, message))
    assert names(wire.answer(*map(back, copies))) == ["Basic.Return", "Header", "Body"] * 2


def test_a_return_between_copies_of_another_publish_is_not_counted_as_one_of_them() -> None:
    """A routed publish in two copies is still unconfirmed when a later publish, sent once, is returned."""
    both = {"x-?hkv= type": "both"}
    wire = Wire(ruled(to_queue("a", both), to_exchange("e", both), delivery=Delivery.QUEUE)).open(confirm=True)
    wire.produce(publish(headers=((b"type", Value("S", b"both")),), mandatory=True))
    lonely = parts(wire.produce(publish(headers=((b"type", Value("S", b"none")),), mandatory=True)))
    assert names(wire.answer(back(lonely[0]))) == ["Basic.Return", "Header", "Body"]
    assert wire.answer(ack(3), ack(2, True)) == ack(2) + ack(1)


def test_returns_of_confirmed_publishes_are_not_awaited() -> None:
    wire = Wire(several("e")).open(confirm=True)
    wire.produce(publish(mandatory=True))
    wire.answer(ack(2, True))
    assert not wire.relay.connection.channels[1].confirms.returns


def test_without_confirms_returns_are_not_awaited_after_the_broker_has_processed_a_publish() -> None:
    """The broker answers methods in order. The last publish is sent once, since the exchange was deleted."""
    of = several("e")
    wire = Wire(of).open()
    message = publish(mandatory=True)
    assert names(wire.produce(message))[-1] == "Channel.Flow"
    assert "Channel.Flow" not in names(wire.produce(message))  # one request at a time
    assert wire.answer(FLOW_OK) == b""
    assert names(wire.upstream()) == ["Channel.Flow"]
    assert wire.answer(FLOW_OK) == wire.upstream() == b""
    of.exchanges[b"xo"].tokens.refused(("exchange", b"e"), "deleted", 0.0)
    of.changed()
    [copy] = parts(wire.produce(message))
    assert names(wire.answer(back(copy))) == ["Basic.Return", "Header", "Body"]


def test_without_confirms_no_method_is_sent_between_the_frames_of_a_later_content() -> None:
    wire = Wire(several("e")).open()
    message = publish(mandatory=True)
    assert names(wire.produce(message, message)).count("Channel.Flow") == 1
    *begin, end = split(publish(to="amq.direct", body=bytes(5000), frame_max=4096))
    wire.produce(*(frame.raw for frame in begin))
    assert wire.answer(FLOW_OK) == wire.upstream() == b""
    assert wire.produce(end.raw) == end.raw
    assert "Channel.Flow" in names(wire.produce(message))
    assert wire.answer(FLOW_OK) == wire.upstream() == b""


def test_without_confirms_no_method_is_sent_after_the_close_of_a_channel() -> None:
    wire = Wire(several("e")).open()
    message, close = publish(mandatory=True), method(1, commands.Channel.Close(200, "", 0, 0))
    assert names(wire.produce(message, message, close))[-1] == "Channel.Close"
    assert wire.answer(FLOW_OK) == wire.upstream() == b""
    assert names(wire.answer(method(1, commands.Channel.CloseOk()))) == ["Channel.CloseOk"]


@pytest.mark.parametrize(
    ("end", "ok"),
    [(commands.Tx.Commit(), commands.Tx.CommitOk()), (commands.Tx.Rollback(), commands.Tx.RollbackOk())],
    ids=["commit", "rollback"],
)
def test_returns_of_a_transaction_are_not_awaited_after_its_end(end: base.Frame, ok: base.Frame) -> None:
    """The publishes are equal. The broker returns one copy of the first, and both copies of the last."""
    wire = Wire(several("e")).open()
    wire.produce(method(1, commands.Tx.Select()))
    wire.answer(method(1, commands.Tx.SelectOk()))
    message = publish(mandatory=True)
    copies = parts(wire.produce(message))
    wire.produce(method(1, end), message, method(1, end), message)
    assert wire.answer(back(copies[0])) == b""
    assert wire.answer(method(1, ok), method(1, ok)) == method(1, ok) * 2
    assert wire.answer(back(copies[1])) == b""
    assert names(wire.answer(back(copies[0]))) == ["Basic.Return", "Header", "Body"]


def test_returns_from_before_confirm_select_are_joined_after_a_confirm_with_an_equal_tag() -> None:
    wire = Wire(several("e")).open()
    earlier = parts(wire.produce(publish("earlier", mandatory=True)))
    wire.produce(method(1, commands.Confirm.Select()))
    wire.answer(method(1, commands.Confirm.SelectOk()))
    wire.produce(publish("later", mandatory=True))
    assert wire.answer(ack(2, True)) == ack(1)
    assert [names(wire.answer(back(copy)))[:1] for copy in earlier] == [[], ["Basic.Return"]]


def test_without_confirms_only_the_latest_awaited_returns_are_joined() -> None:
    wire = Wire(several("e")).open()
    first, second, *_ = [parts(wire.produce(publish(str(number), mandatory=True))) for number in range(WAITING_RETURNS)]
    wire.produce(publish("one more", mandatory=True))
    assert [names(wire.answer(back(copy)))[:1] for copy in first] == [["Basic.Return"]] * 2
    assert [names(wire.answer(back(copy)))[:1] for copy in second] == [[], ["Basic.Return"]]


# -- fingerprints -----------------------------------------------------------------------------------------------------


def test_a_publish_and_its_return_have_the_same_fingerprint() -> None:
    own: Table = ((b"n", Value("L", 7)), (b"a", many("b")))
    properties: dict[str, bytes | int] = {"message_id": b"m", "content_type": b"t"}
    sent = split(content(1, (*own, (b"BCC", many("q"))), b"body", properties))[0].raw
    came = split(content(1, own, b"body", properties))[0].raw
    # as RabbitMQ 4.0 returns it: sorted by name
    again = split(content(1, (own[1], (b"n", Value("l", 7))), b"body", properties))[0].raw
    assert fingerprint(b"e", b"k", sent) == fingerprint(b"e", b"k", came) == fingerprint(b"e", b"k", again)


@pytest.mark.parametrize(
    ("exchange_name", "key", "header"),
    [
        (b"e", b"other", content(1, (), b"body", {"message_id": b"m"})),
        (b"other", b"k", content(1, (), b"body", {"message_id": b"m"})),
        (b"e", b"k", content(1, (), b"body", {"message_id": b"n"})),
        (b"e", b"k", content(1, (), b"longer", {"message_id": b"m"})),
        (b"e", b"k", content(1, (), b"body", {"message_id": b"m", "priority": 0})),
        (b"e", b"k", content(1, None, b"body", {"message_id": b"m"})),
        (b"e", b"k", content(1, ((b"a", Value("V", None)),), b"body", {"message_id": b"m"})),
    ],
)
def test_different_publishes_have_different_fingerprints(exchange_name: bytes, key: bytes, header: bytes) -> None:
    sent = split(content(1, (), b"body", {"message_id": b"m"}))[0].raw
    assert fingerprint(b"e", b"k", sent) != fingerprint(exchange_name, key, split(header)[0].raw)


def test_a_malformed_header_has_no_fingerprint() -> None:
    with pytest.raises(ProtocolError):
        fingerprint(b"e", b"k", content(1, (), b"")[:-3] + b"\x09\xce")


# -- arbitrary interleaving -------------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_for_any_broker_replies_each_tag_is_settled_once_and_returns_come_first(data: st.DataObject) -> None:
    """Publishes have one to three copies, and some are mandatory; the broker replies in any permitted order."""
    rule = {name: {f"x-?hkv= {name}": True} for name in ("q", "e", "f")}
    bindings = to_queue("q", rule["q"]), to_exchange("e", rule["e"]), to_exchange("f", rule["f"])
    wire = Wire(ruled(*bindings, delivery=Delivery.QUEUE)).open(confirm=True)
    copies_of: dict[int, int] = {}
    waiting: list[tuple[int, bytes | None]] = []
    unsettled: set[int] = set()
    returns: Counter[int] = Counter()
    verdict: dict[int, bool] = {}
    returned_tags: list[int] = []
    settled_tags: dict[int, bool] = {}
    publishes = data.draw(st.integers(1, 6))
    while unsettled or len(copies_of) < publishes:
        if len(copies_of) < publishes and (not unsettled or data.draw(st.booleans())):
            tag = len(copies_of) + 1
            chosen = data.draw(st.lists(st.sampled_from("qef"), min_size=1, unique=True))
            mandatory = data.draw(st.booleans())
            headers = tuple((name.encode(), Value("t", True)) for name in chosen)
            sent = parts(wire.produce(publish(str(tag), headers=headers, mandatory=mandatory)))
            copies_of[tag], verdict[tag] = len(sent), True
            unsettled |= set(range(len(waiting) + 1, len(waiting) + len(sent) + 1))
            waiting += [(tag, back(copy) if mandatory and data.draw(st.booleans()) else None) for copy in sent]
            continue
        upstream = data.draw(st.sampled_from(sorted(unsettled)))
        multiple, good = data.draw(st.booleans()), data.draw(st.booleans())
        covered = {covered_tag for covered_tag in unsettled if covered_tag <= upstream} if multiple else {upstream}
        replies = b""
        for covered_tag in sorted(covered):
            back_again = waiting[covered_tag - 1][1]
            if back_again is not None:
                replies += back_again
                returns[waiting[covered_tag - 1][0]] += 1
            verdict[waiting[covered_tag - 1][0]] &= good
        unsettled -= covered
        replies += (ack if good else nack)(upstream, multiple)
        for frame in split(wire.answer(replies)):
            if frame.name == "Basic.Return":
                tag = int(str(frame.arguments["routing_key"]))
                assert tag not in settled_tags
                returned_tags.append(tag)
            elif frame.name in ("Basic.Ack", "Basic.Nack"):
                tag = int(str(frame.arguments["delivery_tag"]))
                tags = set(range(1, tag + 1)) - settled_tags.keys() if frame.arguments["multiple"] else {tag}
                assert tags
                assert not tags & settled_tags.keys()
                settled_tags.update(dict.fromkeys(tags, frame.name == "Basic.Ack"))
    assert settled_tags == verdict
    assert sorted(returned_tags) == [tag for tag, count in copies_of.items() if returns[tag] == count]


def test_an_ack_of_all_publishes_has_no_effect_if_none_is_outstanding() -> None:
    wire = Wire(several("e")).open(confirm=True)
    wire.produce(publish(), publish())
    assert [wire.answer(ack(0, True)) for _ in range(2)] == [ack(1) + ack(2), b""]
