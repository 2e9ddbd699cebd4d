"""Tests declare and delete of open exchanges by clients: requests to the broker, replies, resulting state."""

from __future__ import annotations

import time

import pytest
from pamqp import commands

from oxproxy.amqp.method_frames import ExchangeDeclare, exchange_declare, exchange_delete, read_method
from oxproxy.amqp.tables import decode_table, encode_table
from oxproxy.relay.connection_state import EndExchange, RestoreTokens
from oxproxy.relay.declare.storage import KEPT, MARK, open_exchange, unpack
from oxproxy.relay.plan.plan import ClientRules
from oxproxy.relay.vhost import DeclaredExchange, Delivery
from oxproxy.routing.exchange import Exchange
from oxproxy.values import Table, Value
from tests.client import exchange_bind, names, queue_bind, split
from tests.relay.wire import FLOW_OK, OURS, Wire, owned, publish, routed, say, state


def limit(number: int, letter: str = "I") -> tuple[bytes, Value]:
    return b"max-payload-size", Value(letter, number)


LIMIT = encode_table((limit(10),))


def declare(entries: bytes = LIMIT, **more: bool) -> bytes:
    return exchange_declare(1, b"mine", b"x-open", entries, **more)


DECLARE_OK, DELETE_OK = say(1, commands.Exchange.DeclareOk()), say(1, commands.Exchange.DeleteOk())


def preceding_reply(wire: Wire, *pieces: bytes) -> None:
    """Send the client's request, and reply to the method that the sidecar sends to the broker before its own reply."""
    assert names(wire.produce(*pieces)) == ["Channel.Flow"]
    assert wire.answer(FLOW_OK) == b""


def declaring(exchange_type: str | None = None, entries: bytes = LIMIT, **rules: object) -> Wire:
    """Send the client's declare, reply to the request that precedes it, and complete the lookup of the exchange."""
    wire = Wire(rules=ClientRules(**rules)).open()  # type: ignore[arg-type]
    preceding_reply(wire, declare(entries))
    wire.looked_up(b"mine", exchange_type)
    return wire


def declared(entries: bytes = LIMIT) -> Wire:
    wire = declaring(entries=entries)
    answered(wire)
    return wire


def answered(wire: Wire) -> bytes:
    """Reply with declare-ok and complete the lookup that follows."""
    assert wire.answer(DECLARE_OK) == b""
    assert wire.looked_up(b"mine") == b""
    return wire.producer()


def refusal(wire: Wire, data: bytes = b"") -> tuple[object, str]:
    (closed,) = [frame for frame in split(data or wire.producer()) if frame.name == "Channel.Close"]
    assert closed.arguments["class_id"] == 40  # the close names the client's own declare or delete
    assert closed.arguments["method_id"] in (10, 20)
    return closed.arguments["reply_code"], str(closed.arguments["reply_text"])


def test_the_exchange_is_looked_up_before_it_is_declared() -> None:
    wire = Wire().open()
    preceding_reply(wire, declare())
    (frame,) = split(wire.looked_up(b"mine"))
    method = read_method(ExchangeDeclare, frame.payload)
    assert (method.exchange, method.exchange_type, method.durable) == (b"mine", b"direct", True)
    table = dict(decode_table(method.arguments, 0, len(method.arguments)))
    assert table[MARK] == Value("t", True)
    raw = table[KEPT].value
    assert isinstance(raw, bytes)
    kept = unpack(raw)
    assert kept.entries == LIMIT
    assert names(answered(wire)) == ["Exchange.DeclareOk"]
    assert wire.state.exchanges[b"mine"].declared is not None
    assert ("changed", b"mine") in wire.events


@pytest.mark.parametrize(
    ("code", "gone"), [(404, True), (403, False), (405, False)], ids=["not found", "refused", "locked"]
)
def test_an_auto_delete_exchange_is_gone_only_if_the_broker_does_not_find_it(code: int, gone: bool) -> None:
    """Since RabbitMQ 4.2.6, a passive declare without permission is refused with 403."""
    wire = Wire().open()
    preceding_reply(wire, declare(auto_delete=True))
    wire.looked_up(b"mine")
    answered(wire)
    preceding_reply(wire, declare(auto_delete=True))
    (opening,) = split(wire.upstream())
    number = opening.channel
    wire.answer(
        say(number, commands.Channel.OpenOk()), say(number, commands.Channel.Close(code, f"{code} - mine", 40, 10))
    )
    assert names(wire.upstream()) == ["Exchange.Declare", "Channel.CloseOk", "Channel.Flow"]
    assert (b"mine" not in wire.state.exchanges) == gone


def test_input_after_a_declare_waits_for_its_reply() -> None:
    wire = Wire().open()
    preceding_reply(wire, declare(nowait=True) + publish(to="mine"))
    wire.looked_up(b"mine")
    assert wire.answer(DECLARE_OK) == b""
    left = wire.looked_up(b"mine")
    assert wire.producer() == b""
    assert names(left) == ["Basic.Publish", "Header", "Body"]


@pytest.mark.parametrize(
    "now",
    [
        *((limit(10, letter),) for letter in "bBsuIilLT"),
        (limit(10), (b"color", Value("S", b"red"))),
        (limit(10), (b"max-headers-size-silent", Value("I", 1))),
    ],
)
def test_an_equivalent_declare_is_sent_to_the_broker_for_its_permission_check(now: Table) -> None:
    """Integers of any width are equal, and arguments without effect are not compared."""
    wire = declared()
    assert names(wire.produce(declare(encode_table(now)))) == ["Exchange.Declare"]
    assert names(wire.answer(DECLARE_OK)) == ["Exchange.DeclareOk"]


def test_declaring_again_stores_the_same_on_a_broker_that_has_deleted_the_exchange() -> None:
    wire = declared()
    first = wire.state.exchanges[b"mine"].declared
    assert first is not None
    (frame,) = split(wire.produce(declare()))
    arguments = read_method(ExchangeDeclare, frame.payload).arguments
    kept = dict(decode_table(arguments, 0, len(arguments)))[KEPT].value
    assert isinstance(kept, bytes)
    assert unpack(kept).sequence == first.sequence


def test_an_exchange_dropped_by_a_listing_during_a_repeated_declare_exists_after_it() -> None:
    wire = declared()
    first = wire.state.exchanges[b"mine"]
    wire.produce(declare())
    wire.state.remove_exchange(b"mine")
    assert names(wire.answer(DECLARE_OK)) == ["Exchange.DeclareOk"]
    now = wire.state.exchanges[b"mine"]
    assert (now.declared, now.carrier_type, now.clients) == (first.declared, first.carrier_type, {})
    assert b"mine" in wire.state.router.exchanges


@pytest.mark.parametrize(
    ("kind", "now", "flags", "difference"),
    [
        (
            b"x-open",
            (limit(11, "l"),),
            {},
            "'max-payload-size': '11', '10'",
        ),
        (b"x-open", ((b"max-payload-size", Value("d", 10.0)),), {}, "'max-payload-size': '10.0', '10'"),
        (b"x-open", ((b"max-payload-size", Value("t", True)),), {}, "'max-payload-size': 'true', '10'"),
        (
            b"x-open",
            ((b"max-headers-size", Value("I", 1)), (b"max-payload-size-silent", Value("I", 1)), limit(10)),
            {},
            "'max-payload-size-silent': the value '1' of type 'signedint', none",
        ),
        (b"x-open", (), {}, "'max-payload-size': none, the value '10' of type 'signedint'"),
        (
            b"x-open",
            (limit(10), (b"min-payload-size", Value("I", 1))),
            {},
            "'min-payload-size': the value '1' of type 'signedint', none",
        ),
        (
            b"x-open",
            (limit(10), (b"alternate-exchange", Value("S", b"ae"))),
            {},
            "'alternate-exchange': the value 'ae' of type 'longstr', none",
        ),
        (b"x-open", (), {"durable": False, "auto_delete": True}, "'durable': 'false', 'true'"),
        (b"x-open", (), {"auto_delete": True, "internal": True}, "'auto_delete': 'true', 'false'"),
        (b"x-open", (), {"internal": True}, "'internal': 'true', 'false'"),
        (b"topic", (), {"durable": False}, "'type': 'topic', 'x-open'"),
        (b"direct", (limit(10),), {}, "'type': 'direct', 'x-open'"),
    ],
)
def test_an_inequivalent_declare_is_refused_with_the_first_difference_as_by_the_broker(
    kind: bytes, now: Table, flags: dict[str, bool], difference: str
) -> None:
    wire = declared()
    wire.produce(exchange_declare(1, b"mine", kind, encode_table(now), **flags))
    argument, _, values = difference.partition(": ")
    received, _, current = values.partition(", ")
    assert refusal(wire, wire.refused()) == (
        406,
        f"PRECONDITION_FAILED - inequivalent arg {argument} for exchange 'mine' in vhost '/': "
        f"received {received} but current is {current}",
    )


@pytest.mark.parametrize("durable", [True, False])
def test_an_exchange_of_a_rules_file_is_durable(durable: bool) -> None:
    wire = Wire(routed("q")).open()
    wire.produce(exchange_declare(1, b"xo", b"x-open", durable=durable))
    if durable:
        assert wire.answer(DECLARE_OK) == DECLARE_OK
    else:
        assert "inequivalent arg 'durable'" in refusal(wire, wire.refused())[1]


def test_of_two_concurrent_declares_the_one_that_differs_is_refused() -> None:
    wire = declaring()
    wire.answer(DECLARE_OK)
    other = declared()
    owned, exchange = other.state.exchanges[b"mine"], other.state.router.exchanges[b"mine"]
    owned.arguments = ((b"max-payload-size", Value("I", 99)),)
    wire.state.add_exchange(owned, exchange)
    wire.looked_up(b"mine")
    assert refusal(wire)[0] == 406


def test_a_declare_is_refused_if_the_broker_has_the_exchange_with_another_type() -> None:
    wire = declaring("topic")
    code, text = refusal(wire)
    assert (code, "received 'x-open' but current is 'topic'" in text) == (406, True)
    assert b"mine" not in wire.state.exchanges


def test_a_filter_of_a_wrong_type_is_refused_without_a_request_to_the_broker() -> None:
    wire = Wire().open()
    left = wire.produce(declare(encode_table(((b"max-payload-size", Value("S", b"x")),))))
    assert names(left) == ["Channel.Flow"]
    assert refusal(wire, wire.refused()) == (406, "PRECONDITION_FAILED - Invalid exchange argument.")


@pytest.mark.parametrize("delivery", [b"queue", b"pigeon"])
def test_clients_can_not_choose_the_delivery(delivery: bytes) -> None:
    wire = Wire().open()
    wire.produce(declare(encode_table(((b"x-delivery", Value("S", delivery)),))))
    assert refusal(wire, wire.refused()) == (
        406,
        "PRECONDITION_FAILED - Invalid exchange argument x-delivery: expected carrier (only rules files can request "
        "queue)",
    )


def test_the_default_exchange_is_refused_by_the_broker() -> None:
    wire = Wire().open()
    (frame,) = split(wire.produce(exchange_declare(1, b"", b"x-open")))
    assert read_method(ExchangeDeclare, frame.payload).exchange == b""
    assert not wire.relay.connection.pending.requests


def test_a_declare_on_a_channel_closed_in_the_meantime_is_not_answered() -> None:
    wire = Wire().open()
    preceding_reply(wire, declare())
    wire.answer(say(1, commands.Channel.Close(406, "PRECONDITION_FAILED - no", 60, 40)))
    assert wire.looked_up(b"mine") == b""
    assert b"mine" not in wire.state.exchanges


def test_a_passive_declare_is_answered_by_the_broker_if_it_has_the_exchange() -> None:
    wire = declared()
    passive = exchange_declare(1, b"mine", b"x-open", passive=True)
    assert wire.produce(passive) == passive
    assert wire.answer(DECLARE_OK) == DECLARE_OK


@pytest.mark.parametrize("passive", [True, False])
def test_a_declare_of_an_exchange_without_carrier_is_answered_here(passive: bool) -> None:
    made = Exchange(b"mine", "x-open")
    wire = Wire(state((made, owned(made, Delivery.QUEUE)))).open()
    sent = wire.produce(exchange_declare(1, b"mine", b"x-open", passive=passive))
    assert names(sent) == ["Channel.Flow"]  # its reply precedes ours, so that replies keep their order
    assert wire.answer(FLOW_OK) == DECLARE_OK


def test_deleting_an_exchange_removes_bindings_that_target_it() -> None:
    wire = Wire(routed("q")).open()
    preceding_reply(wire, declare())
    wire.looked_up(b"mine")
    answered(wire)
    wire.produce(exchange_bind(1, b"mine", b"xo", b""))
    wire.answer(say(1, commands.Exchange.BindOk()), FLOW_OK)
    assert len(wire.state.exchanges[b"xo"].clients) == 1
    assert wire.produce(exchange_delete(1, b"mine")) == b""
    assert wire.held() == exchange_delete(1, b"mine")
    wire.answer(DELETE_OK)
    assert not wire.state.exchanges[b"xo"].clients


def test_an_exchange_with_bindings_of_clients_is_in_use() -> None:
    wire = declared()
    wire.produce(queue_bind(1, b"q", b"mine", b""))
    wire.answer(say(1, commands.Queue.BindOk()) * 2)
    wire.produce(exchange_delete(1, b"mine", if_unused=True))
    assert refusal(wire, wire.refused()) == (406, "PRECONDITION_FAILED - exchange 'mine' in vhost '/' in use")


def ending(wire: Wire) -> EndExchange:
    """Return and clear the only request to the control plane, which is to end an exchange."""
    (request,) = wire.relay.connection.pending.requests
    wire.relay.connection.pending.requests.clear()
    assert isinstance(request, EndExchange)
    return request


def test_an_unused_exchange_is_deleted_after_its_end_is_prepared() -> None:
    """Its tokens would keep it in use. The broker decides, since another sidecar may store a binding meanwhile."""
    wire = declared()
    assert wire.produce(exchange_delete(1, b"mine", if_unused=True)) == b""
    request = ending(wire)
    assert request.owned is wire.state.exchanges[b"mine"]
    wire.relay.answer(request, ended=True)
    (frame,) = split(wire.upstream())
    assert (frame.name, frame.arguments["if_unused"]) == ("Exchange.Delete", True)
    assert wire.answer(DELETE_OK) == DELETE_OK
    assert b"mine" not in wire.state.exchanges


def test_an_exchange_with_bindings_through_other_sidecars_is_in_use() -> None:
    wire = declared()
    wire.produce(exchange_delete(1, b"mine", if_unused=True))
    wire.relay.answer(ending(wire), ended=False)
    assert wire.upstream() == OURS
    assert refusal(wire) == (406, "PRECONDITION_FAILED - exchange 'mine' in vhost '/' in use")
    assert b"mine" in wire.state.exchanges


def test_the_brokers_refusal_to_delete_an_exchange_is_reported() -> None:
    """Another sidecar has stored a binding after the tokens were unbound; they have to be bound again."""
    wire = declared()
    wire.produce(exchange_delete(1, b"mine", if_unused=True))
    wire.relay.answer(ending(wire), ended=True)
    wire.events.clear()
    close = say(1, commands.Channel.Close(406, "PRECONDITION_FAILED - exchange 'mine' in use", 40, 20))
    assert wire.answer(close) == close
    assert ("changed", b"mine") in wire.events
    owned = wire.state.exchanges[b"mine"]
    assert wire.relay.connection.pending.requests == [RestoreTokens(owned)]


def test_a_client_can_not_delete_exchanges_of_rules_files() -> None:
    wire = Wire(routed("q")).open()
    wire.produce(exchange_delete(1, b"xo"))
    assert refusal(wire, wire.refused())[0] == 403


def test_a_delete_takes_little_time_if_clients_have_declared_thousands_of_exchanges() -> None:
    wire = Wire().open()
    for number in range(2000):
        owned, exchange = open_exchange(b"%d" % number, DeclaredExchange(True, False, False, b"", 1))
        wire.state.add_exchange(owned, exchange)
    begun = time.process_time()
    for number in range(20):
        wire.state.remove_exchange(b"%d" % number)  # a change after which what messages can reach is computed again
        assert names(wire.produce(exchange_delete(1, b"other"))) == ["Exchange.Delete"]
    assert time.process_time() - begun < 1.5


def test_declares_of_other_types_are_forwarded_unchanged() -> None:
    wire = Wire().open()
    frame = exchange_declare(1, b"logs", b"topic")
    assert wire.produce(frame) == frame
    wire.answer(DECLARE_OK)
    passive = exchange_declare(1, b"nobody", b"x-open", passive=True)
    assert wire.produce(passive) == passive
