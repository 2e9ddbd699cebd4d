from __future__ import annotations

import pytest
from pamqp import commands

from oxproxy.relay.vhost import Delivery
from oxproxy.values import Table, Value
from tests.client import names, split
from tests.relay.address_table_wire import Linked, to
from tests.relay.wire import AHEAD, address_of, closed, publish, routed, say, table_of
from tests.routing.building import many

KEYS = Value("A", (Value("S", b"k"),))
CARBONS: Table = ((b"CC", KEYS), (b"BCC", KEYS))


@pytest.mark.parametrize("key", ["bad", "gone", "carrier"])
@pytest.mark.parametrize("mandatory", [True, False])
def test_a_failed_translation_is_a_nack(key: str, mandatory: bool) -> None:
    state = routed("q", carrier="carried")
    wire = Linked(state)
    assert wire.produce(to(key, mandatory=mandatory)) == b""
    wanted = ["Basic.Return", "Header", "Body"] if mandatory else []
    assert names(wire.producer()) == [*wanted, "Basic.Nack"]
    assert wire.counters.relay("/").failed_translations == 1


@pytest.mark.parametrize("rule", ["here", "in", "out"])
@pytest.mark.parametrize("prefix", ["x.o.p.e.n.x.", "x-o-p-e-n-x-"])
def test_a_translation_to_a_reserved_key_is_refused(rule: str, prefix: str) -> None:
    wire = Linked(routed("q", carrier="carried"))
    assert wire.produce(to(f"{rule}/{prefix}q.1")) == AHEAD
    text = f"ACCESS_REFUSED - routing keys that begin with '{prefix}' are reserved"
    assert closed(wire.refused()) == (1, 403, text, (60, 40))
    assert wire.remotes == []


def test_a_changed_table_applies_to_the_next_publish() -> None:
    wire = Linked()
    wire.produce(to("out/q"), to("out/q"))
    wire.state.set_addresses(None)
    assert names(wire.produce(to("out/q"))) == ["Basic.Publish", "Header", "Body"]
    assert len(wire.remotes) == 2


def test_a_translation_to_an_open_exchange_is_evaluated_under_the_new_key_only() -> None:
    wire = Linked(routed("away"))
    assert address_of(split(wire.produce(to("in/k")))[0]) == ("xo", "k")
    assert wire.remotes == []


def test_a_translated_publish_has_the_new_address_and_the_old_one_in_a_header() -> None:
    wire = Linked()
    for _ in range(3):
        method, header, body = split(wire.produce(to("here/q", correlation_id=b"c")))
        assert address_of(method) == ("", "q")
        assert b"x-original-address" in header.payload
        assert header.payload.endswith(b"\x01c")
        assert body.payload == b"body"


def test_cc_and_bcc_of_the_producer_apply_to_exchanges_without_rules() -> None:
    wire = Linked()
    header = split(wire.produce(publish("here/q", CARBONS, to="")))[1]
    assert [name for name, _ in table_of(header)] == [b"CC", b"BCC", b"x-original-address"]


@pytest.mark.parametrize("prefix", ["x.o.p.e.n.x.", "x-o-p-e-n-x-"])
def test_a_token_in_bcc_is_refused_if_the_brokers_own_exchange_routes_the_message(prefix: str) -> None:
    wire = Linked(routed("q", carrier="carried", unmatched_pass=True))
    good, bad = (publish("in/k", ((b"BCC", many("k", key)),), to="") for key in ("fine", f"{prefix}q.1"))
    header = split(wire.produce(good))[1]
    assert [name for name, _ in table_of(header)] == [b"BCC", b"x-original-address"]
    assert wire.produce(bad) == AHEAD
    text = f"ACCESS_REFUSED - routing keys that begin with '{prefix}' are reserved"
    assert closed(wire.refused()) == (1, 403, text, (60, 40))


@pytest.mark.parametrize("delivery", list(Delivery))
def test_an_evaluated_publish_is_restored_to_its_first_address(delivery: Delivery) -> None:
    wire = Linked(routed("q", delivery=delivery, carrier="" if delivery is Delivery.QUEUE else "carried"))
    method, header, body = split(wire.produce(to("in/k")))
    exchange, key = map(str, address_of(method))
    deliver = say(1, commands.Basic.Deliver("c", 1, False, exchange, key))
    seen = split(wire.answer(deliver, header.raw, body.raw))
    assert address_of(seen[0]) == ("", "in/k")


def test_a_forged_address_is_not_restored() -> None:
    wire = Linked()
    _, header, body = split(wire.produce(to("here/q")))
    deliver = say(1, commands.Basic.Deliver("c", 1, False, "", "other"))
    assert address_of(split(wire.answer(deliver, header.raw, body.raw))[0]) == ("", "other")


def test_a_publish_counts_as_translated() -> None:
    wire = Linked()
    wire.produce(to("here/q"), to("here/q"), to("out/q"), to("out/q"), to("bad"))
    counted = {outcome: count for _, outcome, count, _ in wire.publishes() if count}
    assert counted == {"translated": 4, "unrouted": 1}
