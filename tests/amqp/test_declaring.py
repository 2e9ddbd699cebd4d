"""An open exchange that a client declares: what leaves to the broker, what the client gets, what is known then."""

from __future__ import annotations

import pytest
from pamqp import commands

from proxy.amqp.conversation import LookUpExchange
from proxy.amqp.method_arguments import read_exchange_declare
from proxy.amqp.method_frames import exchange_declare, exchange_delete
from proxy.amqp.plan import ClientRules
from proxy.amqp.stored import KEPT, MARK, unpack
from proxy.amqp.tables import decode_table, encode_table
from proxy.amqp.vhost import Delivery
from proxy.routing.values import Value
from tests.amqp.relaying import Wire, publish, routed, say
from tests.client import names, split

LIMIT = encode_table(((b"max-payload-size", Value("I", 10)),))
OTHER_WIDTH = encode_table(((b"max-payload-size", Value("l", 10)),))
OTHER_LIMIT = encode_table(((b"max-payload-size", Value("I", 11)),))


def declare(entries: bytes = LIMIT, **more: bool) -> bytes:
    return exchange_declare(1, b"mine", b"x-open", entries, **more)


def looked_up(wire: Wire, found: str | None = None) -> bytes:
    (request,) = wire.relay.requests
    wire.relay.requests.clear()
    assert isinstance(request, LookUpExchange)
    assert request.exchange == b"mine"
    wire.relay.answer(request, found)
    return wire.upstream()


def declared(**rules: object) -> Wire:
    wire = Wire(rules=ClientRules(**rules)).open()  # type: ignore[arg-type]
    wire.produce(declare())
    looked_up(wire)
    answered(wire)
    return wire


def answered(wire: Wire) -> bytes:
    """The broker's declare-ok, and the look behind it."""
    assert wire.answer(say(1, commands.Exchange.DeclareOk())) == b""
    assert looked_up(wire) == b""
    return wire.producer()


def refusal(wire: Wire) -> tuple[object, str]:
    (closed,) = [frame for frame in split(wire.producer()) if frame.name == "Channel.Close"]
    return closed.arguments["reply_code"], str(closed.arguments["reply_text"])


def test_the_broker_is_looked_at_before_anything_is_declared() -> None:
    wire = Wire().open()
    assert wire.produce(declare()) == b""
    (frame,) = split(looked_up(wire))
    asked = read_exchange_declare(frame.payload)
    assert (asked.exchange, asked.exchange_type, asked.durable) == (b"mine", b"direct", True)
    table = dict(decode_table(asked.arguments, 0, len(asked.arguments)))
    assert table[MARK] == Value("t", True)
    raw = table[KEPT].value
    assert isinstance(raw, bytes)
    kept = unpack(raw)
    assert kept.entries == LIMIT
    assert names(answered(wire)) == ["Exchange.DeclareOk"]
    assert wire.state.exchanges[b"mine"].declared is not None
    assert ("changed", b"mine") in wire.heard


def test_what_the_client_sends_behind_a_declare_waits_for_it() -> None:
    wire = Wire().open()
    wire.produce(declare(nowait=True) + publish(to="mine"))
    looked_up(wire)
    assert wire.answer(say(1, commands.Exchange.DeclareOk())) == b""
    left = looked_up(wire)
    assert wire.producer() == b""
    assert names(left) == ["Basic.Publish", "Header", "Body"]


def test_flags_go_to_the_broker_as_they_came() -> None:
    wire = Wire().open()
    wire.produce(declare(durable=False, auto_delete=True, internal=True))
    (frame,) = split(looked_up(wire))
    asked = read_exchange_declare(frame.payload)
    assert (asked.durable, asked.auto_delete, asked.internal) == (False, True, True)


@pytest.mark.parametrize("entries", [LIMIT, OTHER_WIDTH])
def test_declaring_the_same_again_is_left_to_the_broker_to_permit(entries: bytes) -> None:
    wire = declared()
    assert names(wire.produce(declare(entries))) == ["Exchange.Declare"]
    assert names(wire.answer(say(1, commands.Exchange.DeclareOk()))) == ["Exchange.DeclareOk"]


def test_declaring_something_else_is_refused_with_406() -> None:
    wire = declared()
    wire.produce(declare(OTHER_LIMIT))
    code, text = refusal(wire)
    assert code == 406
    assert text.startswith("PRECONDITION_FAILED - inequivalent arg 'max-payload-size' for exchange 'mine'")


def test_of_two_that_declare_at_once_the_one_that_says_something_else_is_refused() -> None:
    wire = Wire().open()
    wire.produce(declare())
    looked_up(wire)
    wire.answer(say(1, commands.Exchange.DeclareOk()))
    other = declared()
    owned, exchange = other.state.exchanges[b"mine"], other.state.router.exchanges[b"mine"]
    owned.arguments = ((b"max-payload-size", Value("I", 99)),)
    wire.state.add_exchange(owned, exchange)
    looked_up(wire)
    assert refusal(wire)[0] == 406


def test_an_exchange_of_another_type_on_the_broker_is_in_the_way() -> None:
    wire = Wire().open()
    wire.produce(declare())
    looked_up(wire, "topic")
    code, text = refusal(wire)
    assert (code, "received 'x-open' but current is 'topic'" in text) == (406, True)
    assert b"mine" not in wire.state.exchanges


def test_declaring_an_open_exchange_as_direct_is_refused() -> None:
    wire = declared()
    wire.produce(exchange_declare(1, b"mine", b"direct"))
    assert refusal(wire)[0] == 406


def test_a_filter_of_a_wrong_type_is_refused_before_the_broker_hears_of_it() -> None:
    wire = Wire().open()
    left = wire.produce(declare(encode_table(((b"max-payload-size", Value("S", b"x")),))))
    assert names(left) == ["Channel.Close"]
    assert refusal(wire) == (406, "PRECONDITION_FAILED - Invalid exchange argument.")


def test_a_broker_that_refuses_leaves_nothing_behind() -> None:
    wire = Wire().open()
    wire.produce(declare())
    looked_up(wire)
    closed = say(1, commands.Channel.Close(403, "ACCESS_REFUSED - no", 40, 10))
    assert wire.answer(closed) == closed
    assert b"mine" not in wire.state.exchanges


def test_in_queue_delivery_nothing_is_declared_on_the_broker() -> None:
    wire = Wire(rules=ClientRules(delivery=Delivery.QUEUE)).open()
    assert wire.produce(declare()) == b""
    assert names(wire.producer()) == ["Exchange.DeclareOk"]
    assert wire.state.exchanges[b"mine"].delivery is Delivery.QUEUE


def test_deleting_takes_the_exchange_with_all_its_bindings() -> None:
    wire = declared()
    assert names(wire.produce(exchange_delete(1, b"mine"))) == ["Exchange.Delete"]
    assert names(wire.answer(say(1, commands.Exchange.DeleteOk()))) == ["Exchange.DeleteOk"]
    assert b"mine" not in wire.state.exchanges


def test_what_a_rules_file_declares_is_not_the_clients_to_delete() -> None:
    wire = Wire(routed("q")).open()
    wire.produce(exchange_delete(1, b"xo"))
    assert refusal(wire)[0] == 403


def test_declares_of_other_types_pass_as_they_came() -> None:
    wire = Wire().open()
    frame = exchange_declare(1, b"logs", b"topic")
    assert wire.produce(frame) == frame
    passive = exchange_declare(1, b"nobody", b"x-open", passive=True)
    assert wire.produce(passive) == passive
