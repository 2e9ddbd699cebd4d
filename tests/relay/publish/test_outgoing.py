from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.amqp.tables import decode_table, encode_table
from proxy.errors import ProtocolError, Scope
from proxy.relay.counters import Traffic
from proxy.relay.original_address import CC_ASIDE, OriginalAddress, entry
from proxy.relay.publish.outgoing import CC_BCC, Copy, Outgoing, outgoing, refuse_reserved, table_entries
from proxy.relay.tokens import NOWHERE, token
from proxy.relay.vhost import Delivery, OwnedExchange
from proxy.routing.decision import Decision, Outcome
from proxy.values import Destination, Table, Value
from tests.relay.wire import owned, state, table
from tests.routing.building import Plain, exchange, many

FROM = OriginalAddress(b"xo", b"key")
A, B = ("queue", b"a"), ("queue", b"b")
E, F = ("exchange", b"e"), ("exchange", b"f")
NOBODY = Copy(b"", NOWHERE, (), moved=True, hide_cc=True)


def xo(
    delivery: Delivery = Delivery.CARRIER,
    *bound: Destination,
    carrier: str = "",
    alternate: str | None = None,
    unmatched_pass: bool = False,
) -> OwnedExchange:
    made = exchange(alternate=alternate)
    return owned(made, delivery, bound=bound, carrier=carrier, unmatched_pass=unmatched_pass)


def leaves(
    of: OwnedExchange,
    queues: tuple[bytes, ...] = (),
    exchanges: tuple[bytes, ...] = (),
    *,
    missing: tuple[Destination, ...] = (),
    outcome: Outcome | None = None,
    alternate: bool = False,
) -> Outgoing:
    found = outcome or (Outcome.ROUTED if queues or exchanges else Outcome.UNROUTED)
    decision = Decision(b"xo", found, queues, exchanges, alternate and of.alternate is not None)
    there = state((exchange(), of))
    there.missing.update(dict.fromkeys(missing, "404"))
    return outgoing(decision, of, there, Traffic())


# -- carrier delivery -------------------------------------------------------------------------------------------------


def test_a_carrier_of_another_name_moves_the_publish() -> None:
    found = leaves(xo(Delivery.CARRIER, A, carrier="carried"), (b"a",))
    assert found.copies == (Copy(b"carried", None, (token(*A),), moved=True),)


def test_what_is_known_to_be_missing_is_not_asked_for() -> None:
    found = leaves(xo(Delivery.CARRIER, A), (b"a", b"b"), missing=(B,))
    assert found.copies[0].bcc == (token(*A),)
    assert found.unbound == ()


def test_a_filtered_message_wakes_it() -> None:
    found = leaves(xo(alternate="ae"), outcome=Outcome.FILTERED, alternate=True)
    assert found.copies == (Copy(b"xo", None, (), moved=False),)


# -- queue delivery ---------------------------------------------------------------------------------------------------


def test_an_exchange_that_is_not_known_to_exist_is_asked_for_before_it_is_published_to() -> None:
    found = leaves(xo(Delivery.QUEUE, E), (b"a",), (b"e", b"f"))
    assert found.copies[1:] == (Copy(b"e", None, (), moved=True),)
    assert found.unbound == (F,)
    found = leaves(xo(Delivery.QUEUE, E), (b"a",), (b"e", b"f"), missing=(F,))
    assert found.copies[1:] == (Copy(b"e", None, (), moved=True),)
    assert found.unbound == ()


def test_missing_queues_are_left_out_of_queue_delivery() -> None:
    found = leaves(xo(Delivery.QUEUE), (b"a", b"b"), missing=(A,))
    assert found.copies == (Copy(b"", b"b", (), moved=True, hide_cc=True),)


def test_where_all_queues_are_missing_the_first_is_tried() -> None:
    found = leaves(xo(Delivery.QUEUE), (b"a", b"b"), missing=(A, B))
    assert found.copies == (Copy(b"", b"a", (), moved=True, hide_cc=True),)


def test_no_destination_goes_where_nobody_is() -> None:
    assert leaves(xo(Delivery.QUEUE)).copies == (NOBODY,)


def test_no_destination_goes_to_the_alternate_exchange_under_the_producers_key() -> None:
    found = leaves(xo(Delivery.QUEUE, alternate="ae"), alternate=True)
    assert found.copies == (Copy(b"ae", None, (), moved=True),)


def test_a_name_that_is_no_text_is_a_queue_that_can_not_exist() -> None:
    found = leaves(xo(Delivery.QUEUE), (b"\xff", b"a"), (b"\xfe",))
    assert found.copies == (Copy(b"", b"a", (), moved=True, hide_cc=True),)


# -- header tables ----------------------------------------------------------------------------------------------------


def entries(**fields: Plain) -> bytes:
    return encode_table(table(**fields))


def decoded(data: bytes) -> Table:
    return decode_table(data, 0, len(data))


BESIDE = Copy(b"xo", None, (b"one", b"two"), moved=False)
QUEUE_COPY = Copy(b"", b"a", (b"b",), moved=True, hide_cc=True)
BCC = (b"BCC", many("one", "two"))


@pytest.mark.parametrize("wrong", [Value("S", b"key"), Value("V", None), Value("I", 1), Value("F", ())])
@pytest.mark.parametrize("copy", [BESIDE, QUEUE_COPY], ids=["carrier", "queue"])
def test_a_bcc_that_is_no_array_goes_to_the_broker_as_it_is(copy: Copy, wrong: Value) -> None:
    own = encode_table(((b"BCC", wrong), (b"BCC", many("x")), (b"x-original-address", Value("S", b"forged"))))
    assert table_entries(own, copy, FROM) == own


def test_cc_is_moved_aside_where_it_would_route() -> None:
    own = ((b"CC", many("x")), (b"type", Value("S", b"report")), (b"CC", many("y")))
    found = decoded(table_entries(encode_table(own), QUEUE_COPY, FROM))
    assert found[:3] == (own[1], (CC_ASIDE, many("x")), (CC_ASIDE, many("y")))
    assert found[3:] == (*decoded(entry(FROM, OriginalAddress(b"", b"a"))), (b"BCC", many("b")))


def test_a_cc_that_is_no_array_is_left_for_the_broker_to_refuse() -> None:
    found = decoded(table_entries(entries(CC="x"), QUEUE_COPY, FROM))
    assert found[0] == (b"CC", Value("S", b"x"))


NAMES = st.sampled_from([b"", b"a", b"type", b"BCC", b"CC", b"bcc", b"x-original-address", b"x-original-cc"])
VALUES = st.sampled_from([Value("S", b"BCC"), Value("I", 1), many("k"), Value("F", ((b"BCC", Value("V", None)),))])
TABLES = st.lists(st.tuples(NAMES, VALUES), max_size=6).map(tuple)


@given(TABLES, st.sampled_from([BESIDE, QUEUE_COPY, NOBODY, Copy(b"e", None, (), moved=True)]))
def test_the_producers_other_entries_survive_in_order(own: Table, copy: Copy) -> None:
    ours = {b"BCC", b"CC", b"x-original-address", b"x-original-cc"}
    found = decoded(table_entries(encode_table(own), copy, FROM))
    assert [one for one in found if one[0] not in ours] == [one for one in own if one[0] not in ours]


@given(TABLES)
def test_only_tokens_of_ours_route_on_a_carrier(own: Table) -> None:
    found = [value for name, value in decoded(table_entries(encode_table(own), BESIDE, FROM)) if name == b"BCC"]
    first = next((value for name, value in own if name == b"BCC"), None)
    if first is not None and first.letter != "A":
        assert found[0] == first
    else:
        assert found == [BCC[1]]


# -- the reserved prefix ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "headers"),
    [
        (token(*A), ()),
        (b"x.o.p.e.n.x.", ()),
        (b"key", ((b"CC", many("x.o.p.e.n.x.q.1")),)),
        (b"key", ((b"CC", many("a", "x.o.p.e.n.x.e.1")),)),
        (b"key", ((b"CC", many("a")), (b"CC", many("x.o.p.e.n.x.b.1")))),
    ],
)
@pytest.mark.parametrize("dot", [".", "-"])
def test_keys_under_a_reserved_prefix_are_refused(key: bytes, headers: Table, dot: str) -> None:
    entries = encode_table(headers).replace(b".", dot.encode())
    prefix = re.escape("x.o.p.e.n.x.".replace(".", dot))
    with pytest.raises(ProtocolError, match=f"keys that begin with '{prefix}' are reserved") as caught:
        refuse_reserved(key.replace(b".", dot.encode()), entries)
    assert (caught.value.reply_code, caught.value.scope) == (403, Scope.CHANNEL)
    assert (caught.value.class_id, caught.value.method_id) == (60, 40)


@pytest.mark.parametrize(
    ("key", "headers"),
    [
        (b"x.o.p.e.n.x", ()),
        (b"x-o-p-e-n-x", ()),
        (b"x-o.p-e.n-x.", ()),
        (b"", ()),
        (b"key", ((b"type", Value("S", b"x.o.p.e.n.x.q.1")),)),
        (b"key", ((b"CC", Value("S", b"x.o.p.e.n.x.q.1")),)),
        (b"key", ((b"CC", Value("F", ((b"x.o.p.e.n.x.q.1", Value("S", b"a")),))),)),
        (b"key", ((b"BCC", many("x.o.p.e.n.x.q.1")),)),
    ],
)
def test_other_keys_are_not(key: bytes, headers: Table) -> None:
    refuse_reserved(key, encode_table(headers))


def test_bcc_is_refused_where_it_is_asked_for() -> None:
    with pytest.raises(ProtocolError):
        refuse_reserved(b"key", encode_table(((b"BCC", many("x.o.p.e.n.x.q.1")),)), CC_BCC)
