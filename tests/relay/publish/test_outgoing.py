from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.amqp.tables import decode_table, encode_table
from proxy.relay.counters import Traffic
from proxy.relay.original_address import CC_ASIDE, OriginalAddress, entry
from proxy.relay.publish.outgoing import Copy, Outgoing, outgoing, table_entries
from proxy.relay.tokens import NOWHERE, token
from proxy.relay.vhost import Delivery, OwnedExchange
from proxy.routing.decision import Decision, Outcome
from proxy.values import Destination, Table, Value
from tests.relay.contents import tables
from tests.relay.wire import owned, state, table
from tests.routing.building import exchange, many

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
    result = outcome or (Outcome.ROUTED if queues or exchanges else Outcome.UNROUTED)
    decision = Decision(b"xo", result, queues, exchanges, alternate and of.alternate is not None)
    there = state((exchange(), of))
    there.missing.update(dict.fromkeys(missing, "404"))
    return outgoing(decision, of, there, Traffic())


# -- carrier delivery -------------------------------------------------------------------------------------------------


def test_a_publish_is_sent_to_a_carrier_with_another_name() -> None:
    outgoing = leaves(xo(Delivery.CARRIER, A, carrier="carried"), (b"a",))
    assert outgoing.copies == (Copy(b"carried", None, (token(*A),), moved=True),)


def test_destinations_known_to_be_missing_are_not_requested() -> None:
    outgoing = leaves(xo(Delivery.CARRIER, A), (b"a", b"b"), missing=(B,))
    assert outgoing.copies[0].bcc == (token(*A),)
    assert outgoing.unbound == ()


def test_a_filtered_message_is_sent_to_the_alternate_exchange() -> None:
    outgoing = leaves(xo(alternate="ae"), outcome=Outcome.FILTERED, alternate=True)
    assert outgoing.copies == (Copy(b"xo", None, (), moved=False),)


# -- queue delivery ---------------------------------------------------------------------------------------------------


def test_an_unknown_destination_exchange_is_looked_up_before_publishing_to_it() -> None:
    outgoing = leaves(xo(Delivery.QUEUE, E), (b"a",), (b"e", b"f"))
    assert outgoing.copies[1:] == (Copy(b"e", None, (), moved=True),)
    assert outgoing.unbound == (F,)
    outgoing = leaves(xo(Delivery.QUEUE, E), (b"a",), (b"e", b"f"), missing=(F,))
    assert outgoing.copies[1:] == (Copy(b"e", None, (), moved=True),)
    assert outgoing.unbound == ()


def test_queue_delivery_skips_missing_queues() -> None:
    outgoing = leaves(xo(Delivery.QUEUE), (b"a", b"b"), missing=(A,))
    assert outgoing.copies == (Copy(b"", b"b", (), moved=True, hide_cc=True),)


def test_if_all_queues_are_missing_the_first_is_used() -> None:
    outgoing = leaves(xo(Delivery.QUEUE), (b"a", b"b"), missing=(A, B))
    assert outgoing.copies == (Copy(b"", b"a", (), moved=True, hide_cc=True),)


def test_without_a_destination_the_publish_is_unroutable() -> None:
    assert leaves(xo(Delivery.QUEUE)).copies == (NOBODY,)


def test_without_a_destination_the_alternate_exchange_gets_the_producers_key() -> None:
    outgoing = leaves(xo(Delivery.QUEUE, alternate="ae"), alternate=True)
    assert outgoing.copies == (Copy(b"ae", None, (), moved=True),)


def test_a_name_that_is_not_utf8_is_a_missing_queue() -> None:
    outgoing = leaves(xo(Delivery.QUEUE), (b"\xff", b"a"), (b"\xfe",))
    assert outgoing.copies == (Copy(b"", b"a", (), moved=True, hide_cc=True),)


# -- header tables ----------------------------------------------------------------------------------------------------


def decoded(data: bytes) -> Table:
    return decode_table(data, 0, len(data))


BESIDE = Copy(b"xo", None, (b"one", b"two"), moved=False)
QUEUE_COPY = Copy(b"", b"a", (b"b",), moved=True, hide_cc=True)


@pytest.mark.parametrize("wrong", [Value("S", b"key"), Value("V", None), Value("I", 1), Value("F", ())])
@pytest.mark.parametrize("copy", [BESIDE, QUEUE_COPY], ids=["carrier", "queue"])
def test_a_bcc_that_is_not_an_array_is_forwarded_unchanged(copy: Copy, wrong: Value) -> None:
    own = encode_table(((b"BCC", wrong), (b"BCC", many("x")), (b"x-original-address", Value("S", b"forged"))))
    assert table_entries(own, copy, FROM) == own


def test_cc_is_renamed_if_it_would_route() -> None:
    own = ((b"CC", many("x")), (b"type", Value("S", b"report")), (b"CC", many("y")))
    entries = decoded(table_entries(encode_table(own), QUEUE_COPY, FROM))
    assert entries[:3] == (own[1], (CC_ASIDE, many("x")), (CC_ASIDE, many("y")))
    assert entries[3:] == (*decoded(entry(FROM, OriginalAddress(b"", b"a"))), (b"BCC", many("b")))


def test_a_cc_that_is_not_an_array_is_left_for_the_broker_to_refuse() -> None:
    entries = decoded(table_entries(encode_table(table(CC="x")), QUEUE_COPY, FROM))
    assert entries[0] == (b"CC", Value("S", b"x"))


@given(tables(), st.sampled_from([BESIDE, QUEUE_COPY, NOBODY, Copy(b"e", None, (), moved=True)]))
def test_the_producers_other_entries_survive_in_order(own: Table, copy: Copy) -> None:
    ours = {b"BCC", b"CC", b"x-original-address", b"x-original-cc"}
    entries = decoded(table_entries(encode_table(own), copy, FROM))
    assert [entry for entry in entries if entry[0] not in ours] == [entry for entry in own if entry[0] not in ours]
