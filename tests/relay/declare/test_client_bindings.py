"""Tests binds and unbinds from clients: the rows that are sent, their order, replies and refusals."""

from __future__ import annotations

from datetime import timedelta, timezone

import pytest
from pamqp import commands

from oxproxy.amqp.method_frames import QueueBind, QueueUnbind, read_method
from oxproxy.amqp.tables import encode_table
from oxproxy.relay.connection_state import NOT_LOOKED_UP, EndExchange
from oxproxy.relay.plan.plan import ClientRules
from oxproxy.relay.tokens import STORAGE, Secrets, is_storage_key, is_token
from oxproxy.relay.vhost import CarrierType, ClientRoutes, DeclaredExchange, Delivery, OwnedExchange, VhostState
from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.router import Router
from oxproxy.values import Destination, Table, Value
from tests import client
from tests.client import exchange_bind, names, queue_bind, queue_unbind, split
from tests.relay.wire import (
    AHEAD,
    CLOSE_OK,
    FLOW_OK,
    OPEN,
    OPEN_OK,
    OWN,
    OWN_BIND_OK,
    OWN_OPEN_OK,
    TYPE,
    Wire,
    owned,
    publish,
    routed,
    ruled,
    say,
    state,
    token,
    with_tokens,
)
from tests.routing.building import Plain, arguments, exchange, many, to_queue

WANTED: Table = ((b"x-?hkv= kind", Value("S", b"b")),)
ENTRIES = encode_table(WANTED)
OTHER = encode_table(((b"x-?hkv= kind", Value("S", b"c")),))
#: requests from clients, and the broker's replies
BIND, BIND_OTHER = (queue_bind(1, b"b", b"xo", b"", entries) for entries in (ENTRIES, OTHER))
UNBIND, UNBIND_OTHER = (queue_unbind(1, b"b", b"xo", b"", entries) for entries in (ENTRIES, OTHER))
BIND_OK = say(1, commands.Queue.BindOk())
UNBIND_OK = say(1, commands.Queue.UnbindOk())
EXCHANGE_BIND_OK = say(1, commands.Exchange.BindOk())
KIND_B: Table = ((b"kind", Value("S", b"b")),)
B: Destination = ("queue", b"b")


def wire(**rules: object) -> Wire:
    return Wire(routed("a"), rules=ClientRules(**rules)).open()  # type: ignore[arg-type]


def bound(*more: bytes, **rules: object) -> Wire:
    """A connection whose client has bound the queue ``b`` and the given destinations."""
    made = wire(**rules)
    for bind in (BIND, *more):
        made.produce(bind)
        made.answer(BIND_OK * 2)
    return made


def other_connection(made: Wire) -> Wire:
    """Another connection to the same virtual host."""
    return Wire(made.state, rules=ClientRules()).open()


def closed(made: Wire, data: bytes = b"") -> tuple[object, str]:
    closes = [frame for frame in split(data or made.producer()) if frame.name.endswith(".Close")]
    refused = closes[0].arguments["class_id"], closes[0].arguments["method_id"]
    assert refused in ((50, 20), (50, 50), (40, 30), (40, 40))  # the close names the client's own bind or unbind
    return closes[0].arguments["reply_code"], str(closes[0].arguments["reply_text"])


def rows(data: bytes) -> list[tuple[str, bytes]]:
    """Return the kind of each row in a sequence of binds (S: storage row, T: token row), and its destination."""
    found = []
    for frame in split(data):
        request = read_method(QueueBind, frame.payload)
        assert is_token(request.routing_key) != is_storage_key(request.routing_key)
        if is_token(request.routing_key):
            assert not request.arguments
        found.append(("T" if is_token(request.routing_key) else "S", request.queue))
    return found


def clients(made: Wire, name: bytes = b"xo") -> int:
    return len(made.state.exchanges[name].clients)


# -- rows -------------------------------------------------------------------------------------------------------------


def test_a_bind_stores_the_binding_and_then_binds_the_token() -> None:
    made = wire()
    stored, tokened = split(made.produce(BIND))
    request = read_method(QueueBind, stored.payload)
    assert (stored.channel, request.queue, request.exchange) == (1, b"b", b"xo")
    assert request.routing_key.startswith(STORAGE)
    assert request.arguments.startswith(ENTRIES)
    assert read_method(QueueBind, tokened.payload)[:4] == (b"b", b"xo", token("queue", b"b"), False)
    assert made.answer(BIND_OK) == b""
    assert clients(made) == 0
    assert made.answer(BIND_OK) == BIND_OK
    assert clients(made) == 1
    message = publish(headers=KIND_B)
    assert made.produce(message) == with_tokens(message, "b")


def test_every_bind_sends_all_rows_whatever_is_known() -> None:
    made = bound()
    first = rows(made.produce(numbered(1)))
    made.answer(BIND_OK * 2)
    again = made.produce(numbered(1))
    assert first == rows(again) == [("S", b"b"), ("T", b"b")]
    made.answer(BIND_OK * 2)
    assert other_connection(made).produce(numbered(1)) == again
    assert clients(made) == 2


def test_a_binding_of_a_rules_file_needs_only_the_token() -> None:
    made = wire()
    assert rows(made.produce(queue_bind(1, b"a", b"xo", b"", encode_table(arguments(TYPE))))) == [("T", b"a")]
    assert made.answer(BIND_OK) == BIND_OK
    assert clients(made) == 0


# -- several binds in sequence -----------------------------------------------------------------------------------------


def numbered(number: int, queue: bytes = b"b") -> bytes:
    return queue_bind(1, queue, b"xo", b"", encode_table(((b"x-?hkv= n", Value("I", number)),)))


def test_pipelined_binds_share_the_token_row_of_a_destination_and_are_answered_together() -> None:
    made = wire()
    sent = rows(made.produce(numbered(1), numbered(2, b"c"), numbered(3)))
    assert sent == [("S", b"b"), ("S", b"c"), ("S", b"b"), ("T", b"b"), ("T", b"c")]
    assert made.answer(BIND_OK * 4) == b""
    assert names(made.answer(BIND_OK)) == ["Queue.BindOk"] * 3
    assert clients(made) == 3
    assert made.produce(client.method(1, commands.Queue.Declare(queue="d"))) != b""


def test_binds_of_two_reads_are_two_batches() -> None:
    made = wire()
    assert rows(made.produce(numbered(1), numbered(2))) == [("S", b"b"), ("S", b"b"), ("T", b"b")]
    assert rows(made.produce(numbered(3))) == [("S", b"b"), ("T", b"b")]
    assert made.answer(BIND_OK * 2) == b""
    assert made.answer(BIND_OK * 2) == BIND_OK * 2
    assert made.answer(BIND_OK) == BIND_OK


def test_binds_without_replies_are_not_answered() -> None:
    made = wire()
    made.produce(queue_bind(1, b"b", b"xo", b"", ENTRIES, nowait=True), numbered(1))
    assert made.answer(BIND_OK * 3) == BIND_OK
    assert clients(made) == 2


def test_other_methods_wait_for_earlier_binds_and_later_binds_wait_for_them() -> None:
    made = wire()
    message = publish(headers=KIND_B)
    assert len(split(made.produce(numbered(1), BIND))) == 3
    assert made.produce(message, numbered(4)) == b""
    made.answer(BIND_OK * 2)
    assert made.upstream() == b""
    made.answer(BIND_OK)
    left = made.upstream()
    assert left.startswith(with_tokens(message, "b"))
    assert names(left) == ["Basic.Publish", "Header", "Body", "Queue.Bind", "Queue.Bind"]


def test_an_invalid_bind_is_refused_after_the_replies_to_earlier_ones() -> None:
    made = wire()
    bad = queue_bind(1, b"b", b"xo", b"not empty", ENTRIES)
    assert rows(made.produce(numbered(1), bad, numbered(2))) == [("S", b"b"), ("T", b"b")]
    assert names(made.answer(BIND_OK * 2)) == ["Queue.BindOk"]
    assert made.upstream() == AHEAD
    assert closed(made, made.refused())[0] == 406
    assert clients(made) == 1


IN_LIST = encode_table(((b"x-?hkvin kind", many("b", "c")),))


def test_operators_that_the_plugin_does_not_have_require_a_setting() -> None:
    bind = queue_bind(1, b"b", b"xo", b"", IN_LIST)
    made = wire()
    made.produce(bind)
    code, text = closed(made, made.refused())
    assert code == 406
    assert "declared.extensions" in text
    made = wire(extensions=True)
    assert rows(made.produce(bind)) == [("S", b"b"), ("T", b"b")]
    assert names(made.answer(BIND_OK * 2)) == ["Queue.BindOk"]


@pytest.mark.parametrize("answered", range(5))
def test_a_refusal_of_any_row_closes_the_channel_and_answers_nothing(answered: int) -> None:
    """The client gets the broker's own close. Rows that exist are facts, which listings find."""
    made = wire()
    assert len(split(made.produce(numbered(1), numbered(2, b"nowhere"), numbered(3)))) == 5
    close = say(1, commands.Channel.Close(404, "NOT_FOUND - no queue", 50, 20))
    assert made.answer(BIND_OK * answered, close) == close
    assert clients(made) == 0
    assert ("changed", b"xo") in made.events
    made.produce(CLOSE_OK, OPEN)
    made.answer(OPEN_OK)
    assert rows(made.produce(numbered(1))) == [("S", b"b"), ("T", b"b")]
    assert made.answer(BIND_OK * 2) == BIND_OK
    assert clients(made) == 1


def test_the_same_bind_twice_in_flight_stores_one_row() -> None:
    made = wire()
    sent = split(made.produce(numbered(1), numbered(1)))
    later = split(made.produce(numbered(1)))
    assert sent[0] == sent[1] == later[0]
    assert names(made.answer(BIND_OK * 5)) == ["Queue.BindOk"] * 3
    [stored] = made.state.exchanges[b"xo"].clients.values()
    assert len(stored.copies) == 1
    assert split(made.produce(numbered(1)))[0] == sent[0]


def test_a_binding_signed_with_a_previous_secret_is_stored_again() -> None:
    made = wire()
    made.state.set_secrets(Secrets((b"old",)))
    (old, _) = split(made.produce(BIND))
    made.answer(BIND_OK * 2)
    [stored] = made.state.exchanges[b"xo"].clients.values()
    made.state.remove_binding(stored)
    made.state.set_secrets(Secrets((b"new", b"old")))
    copy = stored.copies[0]._replace(secret=1)
    made.state.add_binding(stored._replace(copies=(copy,)))
    new, tokened = split(made.produce(BIND))
    assert new != old
    assert read_method(QueueBind, tokened.payload).routing_key == made.state.candidates(xo(made), B)[0]
    made.answer(BIND_OK * 2)
    [stored] = made.state.exchanges[b"xo"].clients.values()
    assert sorted(its.secret or 0 for its in stored.copies) == [0, 1]


def xo(made: Wire) -> OwnedExchange:
    return made.state.exchanges[b"xo"]


def test_the_tokens_that_were_sent_are_used_although_others_are_preferred_meanwhile() -> None:
    """A binding to an exchange makes tokens of one word unusable; the queue was bound with one word before."""
    made = wire()
    made.state.exchanges[b"xo"].carrier_type = CarrierType.TOPIC
    to_exchange = exchange_bind(1, b"e", b"xo", b"", OTHER)
    sent = split(made.produce(to_exchange, BIND))
    key = read_method(QueueBind, sent[-1].payload).routing_key
    made.answer(EXCHANGE_BIND_OK, BIND_OK, EXCHANGE_BIND_OK, BIND_OK)
    assert made.state.exchanges[b"xo"].tokens.bound[B] == {key}
    owned = made.state.exchanges[b"xo"]
    assert made.state.token_of(owned, B) in (None, key)


def test_regexes_in_unanswered_binds_count() -> None:
    made = wire(regexes=2)
    regexes = [
        queue_bind(number, b"b", b"xo", b"", encode_table(((b"x-?rkre", Value("S", b"^%d" % number)),)))
        for number in (1, 2)
    ]
    made.open(2)
    made.produce(*regexes)
    refused = queue_bind(1, b"b", b"xo", b"", encode_table(((b"x-?rkre", Value("S", b"^3")),)))
    made.answer(BIND_OK * 2)
    assert made.produce(refused) == AHEAD
    assert closed(made, made.refused()) == (
        406,
        "PRECONDITION_FAILED - the bindings of user '' have 2 regular expressions; 1 more would exceed 2 "
        "(declared.regexes)",
    )


def test_a_regex_of_a_known_binding_counts_once_while_it_is_bound_again() -> None:
    made = wire(regexes=2)
    made.open(2)
    one, two = (
        queue_bind(number, b"b", b"xo", b"", encode_table(((b"x-?rkre", Value("S", b"^%d" % number)),)))
        for number in (1, 2)
    )
    made.produce(one)
    made.answer(BIND_OK * 2)
    made.produce(one)  # its reply is outstanding
    assert rows(made.produce(two)) == [("S", b"b"), ("T", b"b")]


def test_regexes_of_a_refused_bind_do_not_count() -> None:
    made = wire(regexes=1)
    one, two = (
        queue_bind(1, b"b", b"xo", b"", encode_table(((b"x-?rkre", Value("S", b"^%d" % number)),))) for number in (1, 2)
    )
    made.produce(one)
    made.answer(say(1, commands.Channel.Close(404, "NOT_FOUND - no queue", 50, 20)))
    made.produce(CLOSE_OK, OPEN)
    made.answer(OPEN_OK)
    assert rows(made.produce(two)) == [("S", b"b"), ("T", b"b")]


def test_a_publish_after_an_unanswered_bind_uses_the_binding() -> None:
    made = wire()
    message = publish(headers=KIND_B)
    assert len(split(made.produce(queue_bind(1, b"b", b"xo", b"", ENTRIES, nowait=True) + message))) == 2
    assert made.answer(BIND_OK * 2) == b""
    assert made.upstream() == with_tokens(message, "b")


def test_an_empty_queue_name_is_the_queue_declared_last() -> None:
    made = wire()
    made.produce(say(1, commands.Queue.Declare(queue="")))
    made.answer(say(1, commands.Queue.DeclareOk("amq.gen-1", 0, 0)))
    made.produce(queue_bind(1, b"", b"xo", b"", ENTRIES))
    # The queue name is then also the routing key, which an open exchange refuses.
    assert closed(made, made.refused())[0] == 406


def test_a_queue_declared_without_reply_is_the_one_declared_last() -> None:
    topic = Exchange(b"xo", "topic")
    made = Wire(state((topic, owned(topic)))).open()
    made.produce(*(say(1, commands.Queue.Declare(queue=name, nowait=True)) for name in ("one", "two")))
    assert {name for _, name in rows(made.produce(queue_bind(1, b"", b"xo", b"")))} == {b"two"}


def at_local_time(hours: int) -> VhostState:
    """A virtual host whose rules file gives the exchange ``xo`` this offset of the local time."""
    made = Exchange(b"xo", "x-open", local_time=timezone(timedelta(hours=hours)))
    return state((made, owned(made)))


def test_local_time_in_a_binding_of_a_client_is_that_of_the_rules_file() -> None:
    made = Wire(at_local_time(9)).open()
    made.produce(queue_bind(1, b"b", b"xo", b"", encode_table(((b"x-?dtlre", Value("S", b"170000")),))))
    made.answer(BIND_OK * 2)
    assert made.produce(publish()) == with_tokens(publish(), "b")  # 08:00 UTC
    new = at_local_time(10)
    made.state.swap(new.exchanges, new.router)
    assert made.produce(publish()) == publish()


def test_a_reload_keeps_the_exchange_with_its_bindings_and_tokens() -> None:
    made = bound()
    before, layer = xo(made), xo(made).clients
    new = routed("a", "c", alternate="other")
    made.state.swap(new.exchanges, new.router)
    assert (xo(made), xo(made).clients, xo(made).alternate) == (before, layer, b"other")
    assert made.state.token_of(before, B) is not None
    assert made.produce(publish(headers=KIND_B)) == with_tokens(publish(headers=KIND_B), "b")


def test_a_binding_that_a_rules_file_also_contains_is_used_once_and_stays_when_the_file_drops_it() -> None:
    made = bound()
    file_binding = Binding(b"xo", "queue", b"b", b"", WANTED, "of the file", extensions=True)
    for new in (ruled(file_binding), routed("a")):
        made.state.swap(new.exchanges, new.router)
        made.state.exchanges[b"xo"].tokens.bind_ok(B, (token("queue", b"b"),))
        assert made.produce(publish(headers=KIND_B)) == with_tokens(publish(headers=KIND_B), "b")
    assert rows(made.produce(queue_bind(1, b"b", b"xo", b"", OTHER))) == [("S", b"b"), ("T", b"b")]


def test_a_new_type_of_an_exchange_compiles_the_bindings_of_clients_again() -> None:
    made = bound()
    assert made.produce(publish(headers=KIND_B)) == with_tokens(publish(headers=KIND_B), "b")
    direct = exchange(kind="direct")
    refused = made.state.swap({b"xo": owned(direct, bound=[B])}, Router([direct]))
    assert not refused
    assert clients(made) == 1
    assert made.produce(publish("", headers=())) == with_tokens(publish("", headers=()), "b")
    assert made.produce(publish("key", headers=KIND_B)) == publish("key", headers=KIND_B)


def test_binds_and_unbinds_while_bindings_are_compiled_for_a_new_type_count() -> None:
    made = bound()
    direct = exchange(kind="direct")
    new, router = {b"xo": owned(direct, bound=[B])}, Router([direct])
    made.state.overlay(new, router)  # as before the destinations of the new rules are bound
    again = made.state.recompilations(new, router)
    assert made.state.recompilations(new, router) == again
    made.produce(BIND_OTHER)
    made.answer(BIND_OK * 2)
    made.produce(UNBIND)
    made.answer(UNBIND_OK)
    assert clients(made) == 1
    assert not made.state.swap(new, router)
    assert [stored.binding.identity for stored in xo(made).clients.values()] == [
        compiled.binding.identity for compiled in direct.clients.entries
    ]
    assert clients(made) == 1


def test_a_bind_answered_after_a_reload_counts_for_the_new_rules() -> None:
    made = wire()
    made.produce(BIND)
    again = routed("a")
    made.state.swap(again.exchanges, again.router)
    assert made.answer(BIND_OK * 2) == BIND_OK
    assert clients(made) == 1
    assert B in made.state.exchanges[b"xo"].tokens.bound
    assert made.produce(publish(headers=KIND_B)) == with_tokens(publish(headers=KIND_B), "b")


# -- exclusive queues -------------------------------------------------------------------------------------------------


def test_an_exclusive_queue_is_bound_with_all_candidates() -> None:
    """Nobody else can bind it, so every sidecar has to find a token that it uses."""
    made = wire()
    made.state.set_secrets(Secrets((b"new", b"old")))
    owned = made.state.exchanges[b"xo"]
    owned.carrier_type = CarrierType.TOPIC
    made.produce(client.method(1, commands.Queue.Declare(queue="b", exclusive=True)))
    made.answer(say(1, commands.Queue.DeclareOk("b", 0, 0)))
    sent = split(made.produce(BIND))
    sent_keys = [read_method(QueueBind, frame.payload).routing_key for frame in sent]
    assert is_storage_key(sent_keys[0])
    assert sent_keys[1:] == list(made.state.tokens.candidates(B, one_word=True))
    assert len(sent_keys) == 5
    assert made.answer(BIND_OK * 4) == b""
    assert made.answer(BIND_OK) == BIND_OK
    assert owned.tokens.bound[B] == set(sent_keys[1:])


def test_a_queue_that_was_exclusive_before_it_was_deleted_is_bound_with_one_candidate() -> None:
    made = wire()
    made.state.set_secrets(Secrets((b"new", b"old")))
    for exclusive in (True, False):
        made.produce(client.method(1, commands.Queue.Declare(queue="b", exclusive=exclusive)))
        made.answer(say(1, commands.Queue.DeclareOk("b", 0, 0)))
        if exclusive:
            made.produce(say(1, commands.Queue.Delete(queue="b")))
            made.answer(say(1, commands.Queue.DeleteOk(0)))
            made.upstream()
    assert rows(made.produce(BIND)) == [("S", b"b"), ("T", b"b")]


def test_answers_keep_their_order_although_a_batch_needs_further_tokens() -> None:
    """A binding between two exchanges leads to an exclusive queue, whose token its own connection binds."""
    first, second = exchange(name="xo"), exchange(to_queue("b"), name="second")
    made = Wire(state((first, owned(first)), (second, owned(second)))).open()
    made.produce(client.method(1, commands.Queue.Declare(queue="b", exclusive=True)))
    made.answer(say(1, commands.Queue.DeclareOk("b", 0, 0)))
    made.answer(OWN_OPEN_OK)
    made.answer(OWN_BIND_OK)
    made.answer(OWN_BIND_OK)
    made.upstream()
    made.produce(exchange_bind(1, b"second", b"xo", b"", ENTRIES))
    made.produce(BIND_OTHER)
    made.answer(EXCHANGE_BIND_OK, FLOW_OK)
    assert [frame.channel for frame in split(made.upstream())] == [OWN]
    answered = made.answer(BIND_OK * 2)
    answered += made.answer(OWN_BIND_OK)
    assert names(answered) == ["Exchange.BindOk", "Queue.BindOk"]


# -- routes -----------------------------------------------------------------------------------------------------------


def route(**routes: Plain) -> bytes:
    table = {name.replace("_", "-"): value for name, value in routes.items()}
    return queue_bind(1, b"b", b"xo", b"", ENTRIES + encode_table(arguments(table)))


def test_the_tokens_of_named_routes_are_sent_first() -> None:
    made = wire()
    both = route(x_addq_ontrue="c", x_adde_onfalse="e")
    sent = made.produce(both)
    assert [(frame.channel, frame.name) for frame in split(sent)] == [
        (1, "Exchange.Bind"),
        (1, "Queue.Bind"),
        (1, "Queue.Bind"),
        (1, "Queue.Bind"),
    ]
    assert rows(sent) == [("T", b"e"), ("T", b"c"), ("S", b"b"), ("T", b"b")]
    assert made.answer(EXCHANGE_BIND_OK, BIND_OK * 2) == b""
    assert made.answer(BIND_OK) == BIND_OK
    message = publish(headers=KIND_B)
    assert made.produce(message) == with_tokens(message, "b", "c")


def test_tokens_of_named_routes_are_sent_although_they_are_known_to_be_bound() -> None:
    made = wire()
    for _ in range(2):
        assert rows(made.produce(route(x_addq_ontrue="c"))) == [("T", b"c"), ("S", b"b"), ("T", b"b")]
        made.answer(BIND_OK * 3)


def test_a_route_that_the_broker_refuses_stores_nothing() -> None:
    made = wire()
    made.produce(route(x_addq_ontrue="c"))
    close = say(1, commands.Channel.Close(403, "ACCESS_REFUSED - access to queue 'c' refused", 50, 20))
    assert made.answer(close) == close
    assert clients(made) == 0


OWN_ROUTES = (
    "ACCESS_REFUSED - a binding whose destinations are chosen by message or by a pattern needs "
    "declared.client_routes: any in the configuration of the proxy, or a rules file"
)


@pytest.mark.parametrize(
    "routes",
    [
        {"x_addqre_ontrue": "^c"},
        {"x_addq!re_onfalse": "^c"},
        {"x_add1qre_ontrue": "."},
        {"x_msg_addq_ontrue": ""},
        {"x_msg_adde_onfalse": ""},
        {"x_msg_destq_rk": ""},
    ],
    ids=lambda routes: next(iter(routes)),
)
def test_routes_by_message_or_pattern_are_refused_unless_all_routes_are_permitted(routes: dict[str, str]) -> None:
    made = wire()
    assert made.produce(route(**routes)) == AHEAD
    assert closed(made, made.refused()) == (403, OWN_ROUTES)
    assert clients(made) == 0
    made = wire()
    made.state.client_routes = ClientRoutes.ANY
    assert rows(made.produce(route(**routes))) == [("S", b"b"), ("T", b"b")]


def test_patterns_that_take_away_are_permitted() -> None:
    assert rows(wire().produce(route(x_delqre_ontrue="^c"))) == [("S", b"b"), ("T", b"b")]


def test_named_routes_are_bound_on_demand_if_all_routes_are_permitted() -> None:
    made = wire()
    made.state.client_routes = ClientRoutes.ANY
    assert rows(made.produce(route(x_addq_ontrue="c"))) == [("S", b"b"), ("T", b"b")]


def test_a_route_to_a_name_that_no_queue_can_have_is_refused() -> None:
    made = wire()
    assert made.produce(route(x_addq_ontrue="c" * 256)) == AHEAD
    assert closed(made, made.refused())[0] == 404


# -- unbind -----------------------------------------------------------------------------------------------------------


def unbound(data: bytes) -> list[tuple[bytes, bytes]]:
    """Return the routing key and the entries of each unbind."""
    unbinds = [read_method(QueueUnbind, frame.payload) for frame in split(data)]
    return [(unbind.routing_key, unbind.arguments) for unbind in unbinds]


def test_an_unbind_removes_the_storage_row_only() -> None:
    made = wire()
    stored = read_method(QueueBind, split(made.produce(BIND))[0].payload)
    made.answer(BIND_OK * 2)
    assert unbound(made.produce(UNBIND)) == [(stored.routing_key, stored.arguments)]
    assert made.answer(UNBIND_OK) == UNBIND_OK
    assert clients(made) == 0
    assert B in made.state.exchanges[b"xo"].tokens.bound
    message = publish(headers=KIND_B)
    assert made.produce(message) == message


def test_an_unbind_removes_all_copies_each_with_its_own_arguments() -> None:
    """Two sidecars may have stored the binding at the same time, with the arguments in another order."""
    made = wire()
    first, second = ((b"x-?hkv= kind", Value("S", b"b")), (b"x-?hkv= n", Value("I", 1)))
    for order in ((first, second), (second, first)):
        other = wire()
        other.wall += 1 if order[0] is second else 0
        other.produce(queue_bind(1, b"b", b"xo", b"", encode_table(order)))
        other.answer(BIND_OK * 2)
        [copy] = other.state.exchanges[b"xo"].clients.values()
        made.state.add_binding(copy)
    [stored] = made.state.exchanges[b"xo"].clients.values()
    sent = unbound(made.produce(queue_unbind(1, b"b", b"xo", b"", encode_table((second, first)))))
    assert len(sent) == 2
    assert {key for key, _ in sent} == {stored.key}
    orders = [encode_table((first, second)), encode_table((second, first))]
    assert [kept.startswith(entries) for (_, kept), entries in zip(sent, orders, strict=True)] == [True, True]
    assert made.answer(UNBIND_OK) == b""
    assert made.answer(UNBIND_OK) == UNBIND_OK
    assert clients(made) == 0


def test_an_unbind_also_removes_a_copy_that_is_found_while_it_is_on_the_way() -> None:
    made, other = bound(), wire()
    other.wall += 1
    other.produce(BIND)
    other.answer(BIND_OK * 2)
    [copy] = other.state.exchanges[b"xo"].clients.values()
    assert len(unbound(made.produce(UNBIND))) == 1
    made.state.add_binding(copy)
    made.answer(UNBIND_OK)
    assert len(unbound(made.upstream())) == 1
    assert made.answer(UNBIND_OK) == UNBIND_OK
    assert clients(made) == 0


def test_an_unbind_that_is_not_sent_keeps_the_binding() -> None:
    made = bound()
    message = publish(headers=KIND_B)
    made.produce(publish(to="nowhere"), UNBIND)
    made.answer(say(1, commands.Channel.Close(404, "NOT_FOUND - no exchange 'nowhere'", 60, 40)))
    made.produce(CLOSE_OK, OPEN)
    made.answer(OPEN_OK)
    assert made.produce(message) == with_tokens(message, "b")


def ending(made: Wire) -> EndExchange:
    (request,) = made.relay.connection.pending.requests
    made.relay.connection.pending.requests.clear()
    assert isinstance(request, EndExchange)
    return request


@pytest.mark.parametrize("ended", [True, False])
def test_an_auto_delete_exchange_ends_with_its_last_binding(ended: bool) -> None:
    new = exchange(name="new")
    auto_delete = owned(new, declared=DeclaredExchange(True, True, False, b"", 1))
    made = Wire(state((new, auto_delete))).open()
    made.produce(*(queue_bind(1, b"b", b"new", b"", entries) for entries in (ENTRIES, OTHER)))
    made.answer(BIND_OK * 3)
    made.produce(queue_unbind(1, b"b", b"new", b"", ENTRIES))
    assert made.answer(UNBIND_OK) == UNBIND_OK
    made.produce(queue_unbind(1, b"b", b"new", b"", OTHER))
    assert made.answer(UNBIND_OK) == b""
    request = ending(made)
    assert request.owned is auto_delete
    made.relay.answer(request, ended=ended)
    assert made.producer() == UNBIND_OK


def test_a_strict_unbind_with_other_arguments_is_refused() -> None:
    made = bound()
    assert made.produce(UNBIND_OTHER) == b""
    made.looked_up(b"xo")
    assert closed(made, made.refused()) == (406, "PRECONDITION_FAILED - binding arguments do not match")


def test_an_unbind_with_other_arguments_succeeds_in_broker_mode() -> None:
    made = bound(strict_unbind=False)
    made.produce(UNBIND_OTHER)
    assert names(made.looked_up(b"xo")) == ["Queue.Unbind"]
    assert made.answer(UNBIND_OK) == UNBIND_OK
    assert len(made.state.exchanges[b"xo"].clients) == 1


def test_unbinding_a_missing_binding_succeeds() -> None:
    made = bound()
    made.produce(queue_unbind(1, b"nobody", b"xo", b"", ENTRIES))
    assert names(made.looked_up(b"xo")) == ["Queue.Unbind"]
    assert made.answer(UNBIND_OK) == UNBIND_OK


def test_a_client_can_not_unbind_bindings_of_rules_files() -> None:
    made = wire()
    made.produce(queue_unbind(1, b"a", b"xo", b"", encode_table(arguments(TYPE))))
    assert closed(made, made.refused())[0] == 403


# -- declarations through other sidecars ------------------------------------------------------------------------------

BIND_NEW, UNBIND_NEW = (made(1, b"b", b"new", b"", ENTRIES) for made in (queue_bind, queue_unbind))


def behind() -> Wire:
    """A connection to a sidecar that may not know the exchange ``new`` yet."""
    made = wire()
    made.state.broker_exchanges = {b"amq.topic"}
    return made


def declared_elsewhere(made: Wire) -> None:
    """Add the open exchange ``new``, as if it had been found on the broker."""
    new = exchange(name="new")
    made.state.add_exchange(owned(new, declared=DeclaredExchange(True, False, False, b"", 1)), new)


def test_a_bind_of_an_unknown_exchange_waits_until_it_has_been_looked_up() -> None:
    made = behind()
    assert made.produce(BIND_NEW, BIND) == b""
    declared_elsewhere(made)
    assert rows(made.looked_up(b"new")) == [("S", b"b"), ("T", b"b")]
    assert made.answer(BIND_OK * 2) == BIND_OK
    assert rows(made.upstream()) == [("S", b"b"), ("T", b"b")]
    assert len(made.state.exchanges[b"new"].clients) == 1


@pytest.mark.parametrize("frame", [BIND_NEW, UNBIND_NEW, exchange_bind(1, b"new", b"amq.topic", b"#")])
def test_a_bind_of_an_exchange_that_is_not_open_is_forwarded_after_the_lookup(frame: bytes) -> None:
    made = behind()
    assert made.produce(frame, BIND) == b""
    forwarded = made.looked_up(b"new", "direct")
    assert forwarded.startswith(frame)
    assert rows(forwarded[len(frame) :]) == [("S", b"b"), ("T", b"b")]


def test_a_bind_after_an_unanswered_one_waits_for_the_lookup() -> None:
    made = behind()
    made.produce(BIND)
    assert made.produce(BIND_NEW) == b""
    assert made.answer(BIND_OK * 2) == BIND_OK
    declared_elsewhere(made)
    assert rows(made.looked_up(b"new")) == [("S", b"b"), ("T", b"b")]


def test_a_bind_that_is_refused_after_the_lookup_names_the_bind() -> None:
    made = behind()
    made.produce(exchange_bind(1, b"new", b"amq.topic", b"#"))
    declared_elsewhere(made)
    assert names(made.looked_up(b"new")) == ["Channel.Flow"]
    assert closed(made, made.answer(FLOW_OK))[0] == 540
    made = behind()
    made.produce(queue_bind(1, b"b", b"new", b"a.key", ENTRIES))
    declared_elsewhere(made)
    made.looked_up(b"new")
    assert closed(made, made.refused())[0] == 406


def test_an_exchange_is_not_bound_after_its_channel_was_closed_during_the_lookup() -> None:
    made = behind()
    made.state.broker_exchanges = {b"nowhere"}
    made.produce(publish(to="nowhere"), BIND_NEW)
    made.answer(say(1, commands.Channel.Close(404, "NOT_FOUND - no exchange 'nowhere'", 60, 40)))
    assert made.looked_up(b"new") == b""


def test_an_unknown_binding_is_looked_up_before_it_is_removed() -> None:
    made = bound()
    stored = next(iter(made.state.exchanges[b"xo"].clients.values()))
    made.state.remove_binding(stored)
    assert made.produce(UNBIND) == b""
    made.state.add_binding(stored)
    ((key, _),) = unbound(made.looked_up(b"xo"))
    assert key == stored.key
    assert made.answer(UNBIND_OK) == UNBIND_OK
    assert not made.state.exchanges[b"xo"].clients


def test_a_bind_is_refused_if_its_exchange_could_not_be_looked_up() -> None:
    """The exchange may be open, and a binding that the broker evaluates would bypass the rules."""
    made = behind()
    made.produce(BIND_NEW)
    assert made.looked_up(b"new", NOT_LOOKED_UP) == AHEAD
    assert closed(made, made.refused())[0] == 406


# -- queue delivery ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", [BIND, UNBIND])
def test_clients_can_not_bind_to_exchanges_with_queue_delivery(frame: bytes) -> None:
    made = Wire(routed("a", delivery=Delivery.QUEUE)).open()
    assert made.produce(frame) == AHEAD
    code, text = closed(made, made.refused())
    assert code == 403
    assert "delivery queue" in text


def test_a_binding_that_can_not_be_stored_is_refused() -> None:
    first, second = exchange(name="xo"), exchange(to_queue("a"), name="second")
    made = Wire(state((first, owned(first)), (second, owned(second, Delivery.QUEUE)))).open()
    made.produce(exchange_bind(1, b"second", b"xo", b"", ENTRIES))
    assert closed(made)[0] == 540


# -- exchanges --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exists", [True, False])
def test_binding_an_open_exchange_to_a_broker_exchange_is_refused(exists: bool) -> None:
    made = wire()
    frame = exchange_bind(1, b"xo" if exists else b"another", b"amq.topic", b"#")
    left = made.produce(frame)
    if exists:
        assert names(left) == ["Channel.Flow"]
        assert closed(made, made.answer(FLOW_OK))[0] == 540
    else:
        assert left == frame


def test_binding_an_open_exchange_to_an_open_exchange_needs_no_token() -> None:
    first, second = exchange(name="xo"), exchange(to_queue("a"), name="second")
    made = Wire(state((first, owned(first)), (second, owned(second)))).open()
    stored, ahead = split(made.produce(exchange_bind(1, b"second", b"xo", b"", ENTRIES)))
    assert rows(stored.raw) == [("S", b"second")]
    assert ahead.raw == AHEAD
    assert made.answer(EXCHANGE_BIND_OK) == b""
    assert made.answer(FLOW_OK) == EXCHANGE_BIND_OK
    assert made.state.router.destinations(b"xo") == {("queue", b"a")}


def test_replies_to_client_and_sidecar_binds_are_matched_by_order() -> None:
    made = wire()
    made.produce(queue_bind(1, b"b", b"amq.topic", b"#") + BIND)
    assert made.answer(BIND_OK) == BIND_OK
    assert made.answer(BIND_OK) == b""
    assert made.answer(BIND_OK) == BIND_OK
