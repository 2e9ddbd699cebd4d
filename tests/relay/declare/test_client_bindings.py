"""Tests binds and unbinds from clients: storage keys, destination tokens, replies and permissions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC

import pytest
from pamqp import commands

from proxy.amqp.method_frames import QueueBind, QueueUnbind, read_method
from proxy.amqp.tables import encode_table
from proxy.relay.connection_state import BindDestinations, PermissionCheck
from proxy.relay.declare.bindings import CHECKED_AT_ONCE, ClientReach, Refusals
from proxy.relay.declare.storage import PIN, STORAGE
from proxy.relay.declare.token_bindings import check_permission
from proxy.relay.publish.plan import ClientRules
from proxy.relay.tokens import grant_key, token
from proxy.relay.vhost import BindingCopy, DeclaredExchange, Delivery, StoredBinding
from proxy.routing.bindings.binding import Binding
from proxy.routing.bindings.exchange_types import compile_open
from proxy.routing.decision import QueueNames
from proxy.values import Destination, Table, Value
from tests import client
from tests.broker.clients import storage_key
from tests.client import Frame, exchange_bind, names, queue_bind, queue_unbind, split
from tests.relay.wire import (
    AHEAD,
    CLOSE_OK,
    FLOW_OK,
    OPEN,
    OPEN_OK,
    OWN,
    OWN_BIND_OK,
    OWN_OPEN_OK,
    TUNING,
    TYPE,
    Wire,
    owned,
    publish,
    routed,
    say,
    state,
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
KIND_B: Table = ((b"kind", Value("S", b"b")),)


def wire(**rules: object) -> Wire:
    return Wire(routed("a"), rules=ClientRules(**rules)).open()  # type: ignore[arg-type]


def bound(*more: bytes, **rules: object) -> Wire:
    """A connection whose client has bound the queue ``q`` and the given destinations."""
    made = wire(**rules)
    for bind in (BIND, *more):
        made.produce(bind)
        made.answer(BIND_OK)
    return made


def other_connection(made: Wire) -> Wire:
    """Another connection to the same virtual host."""
    return Wire(made.state, rules=ClientRules()).open()


def marked(**rules: object) -> Wire:
    """A virtual host in which another connection of this sidecar has already bound the token of the queue."""
    made = wire(**rules)
    made.state.exchanges[b"xo"].tokens.asserted(("queue", b"b"), 1, 0.0, object())
    return made


def closed(made: Wire, data: bytes = b"") -> tuple[object, str]:
    closes = [frame for frame in split(data or made.producer()) if frame.name.endswith(".Close")]
    refused = closes[0].arguments["class_id"], closes[0].arguments["method_id"]
    assert refused in ((50, 20), (50, 50), (40, 30), (40, 40))  # the close names the client's own bind or unbind
    return closes[0].arguments["reply_code"], str(closes[0].arguments["reply_text"])


def keys(frames: list[Frame]) -> list[bytes]:
    return [read_method(QueueBind, frame.payload).routing_key for frame in frames]


def test_a_bind_to_a_marked_destination_is_sent_twice_and_answered_once() -> None:
    made = marked()
    stored, tokened = split(made.produce(BIND))
    assert read_method(QueueBind, stored.payload).routing_key.startswith(STORAGE)
    assert read_method(QueueBind, stored.payload).arguments.startswith(ENTRIES)
    assert read_method(QueueBind, tokened.payload).routing_key == token("queue", b"b")
    assert made.answer(BIND_OK) == b""
    assert made.answer(BIND_OK) == BIND_OK
    assert len(made.state.exchanges[b"xo"].clients) == 1


# -- several binds in sequence -----------------------------------------------------------------------------------------


def numbered(number: int, queue: bytes = b"b") -> bytes:
    return queue_bind(1, queue, b"xo", b"", encode_table(((b"x-?hkv= n", Value("I", number)),)))


def test_further_binds_are_sent_without_waiting_and_answered_in_order() -> None:
    made = wire()
    assert names(made.produce(numbered(1), numbered(2, b"c"), numbered(3))) == ["Queue.Bind"] * 3
    assert [names(made.answer(BIND_OK)) for _ in range(3)] == [["Queue.BindOk"]] * 3
    assert len(made.state.exchanges[b"xo"].clients) == 3
    assert made.produce(client.method(1, commands.Queue.Declare(queue="d"))) != b""


def test_other_methods_wait_for_earlier_binds_and_later_binds_wait_for_them() -> None:
    made = wire()
    message = publish(headers=KIND_B)
    assert len(split(made.produce(numbered(1), numbered(2), BIND))) == 3
    assert made.produce(message, numbered(4)) == b""
    made.answer(BIND_OK * 2)
    assert made.upstream() == b""
    made.answer(BIND_OK)
    left = made.upstream()
    assert left.startswith(with_tokens(message, "b"))
    assert names(left) == ["Basic.Publish", "Header", "Body", "Queue.Bind"]


def test_an_invalid_bind_is_refused_after_the_replies_to_earlier_ones() -> None:
    made = wire()
    bad = queue_bind(1, b"b", b"xo", b"not empty", ENTRIES)
    assert len(split(made.produce(numbered(1), bad, numbered(2)))) == 1
    assert names(made.answer(BIND_OK)) == ["Queue.BindOk"]
    assert made.upstream() == AHEAD
    assert closed(made, made.refused())[0] == 406
    assert len(made.state.exchanges[b"xo"].clients) == 1


def test_a_refused_bind_ends_the_binds_that_follow_it() -> None:
    made = wire()
    made.produce(numbered(1), numbered(2, b"nowhere"), numbered(3))
    close = say(1, commands.Channel.Close(404, "NOT_FOUND - no queue", 50, 20))
    assert names(made.answer(BIND_OK, close)) == ["Queue.BindOk", "Channel.Close"]
    made.produce(CLOSE_OK, OPEN)
    made.answer(OPEN_OK)
    assert len(made.state.exchanges[b"xo"].clients) == 1
    assert names(made.produce(numbered(4))) != []


def test_the_same_bind_twice_in_a_row_makes_one_binding() -> None:
    made = wire()
    first = split(made.produce(numbered(1), numbered(1)))
    assert len(first) == 1
    made.answer(BIND_OK)
    again = split(made.upstream())
    assert again[0] == first[0]
    assert made.answer(BIND_OK * len(again)) == BIND_OK
    [stored] = made.state.exchanges[b"xo"].clients.values()
    assert len(stored.copies) == 1


def test_the_number_of_unanswered_binds_is_limited() -> None:
    made = wire()
    frames = [numbered(number, b"q%d" % number) for number in range(600)]
    assert len(split(made.produce(*frames))) == 256
    assert made.answer(BIND_OK * 127).count(BIND_OK) == 127
    assert made.upstream() == b""
    assert made.answer(BIND_OK) == BIND_OK
    assert len(split(made.upstream())) == 128  # sent although 128 binds are still unanswered
    assert made.answer(BIND_OK * 256).count(BIND_OK) == 256
    assert len(split(made.upstream())) == 216
    assert made.answer(BIND_OK * 216).count(BIND_OK) == 216
    assert len(made.state.exchanges[b"xo"].clients) == 600
    assert made.upstream() == b""


def test_what_waits_behind_many_binds_waits_for_all_of_them() -> None:
    made = wire()
    frames = [numbered(number, b"q%d" % number) for number in range(256)]
    declare = client.method(1, commands.Exchange.Declare(exchange="new", exchange_type="x-open"))
    assert len(split(made.produce(*frames, declare, publish(to="amq.fanout")))) == 256
    assert made.answer(BIND_OK * 200).count(BIND_OK) == 200
    assert made.upstream() == b""
    made.answer(BIND_OK * 56)
    assert "Basic.Publish" not in names(made.upstream())


def test_a_token_that_this_connection_has_bound_is_not_bound_again() -> None:
    made = bound()
    [stored] = split(made.produce(numbered(1)))
    assert read_method(QueueBind, stored.payload).routing_key.startswith(STORAGE)
    assert made.answer(BIND_OK) == BIND_OK


@pytest.mark.parametrize("how", ["declared again", "declared on another connection", "looked at", "gone"])
def test_a_token_is_bound_again_if_the_queue_may_have_been_replaced(how: str) -> None:
    made = bound()
    declare = client.method(1, commands.Queue.Declare(queue="b"))
    if how == "declared again":
        made.produce(declare)
        made.answer(FLOW_OK, OWN_OPEN_OK)
        made.answer(say(OWN, commands.Queue.DeclareOk("b", 0, 0)))
        assert split(made.upstream())[-1].raw == declare
        made.answer(say(1, commands.Queue.DeclareOk("b", 0, 0)))
    elif how == "declared on another connection":
        other_connection(made).produce(declare)
    elif how == "looked at":
        made.state.exchanges[b"xo"].tokens.look(0.0)
    else:
        made.state.exchanges[b"xo"].tokens.not_bound(("queue", b"b"))
    assert token("queue", b"b") in keys(
        [frame for frame in split(made.produce(numbered(1))) if frame.name == "Queue.Bind"]
    )


def test_a_publish_after_an_unanswered_bind_uses_the_binding() -> None:
    made = wire()
    message = publish(headers=KIND_B)
    assert names(made.produce(queue_bind(1, b"b", b"xo", b"", ENTRIES, nowait=True) + message)) == ["Queue.Bind"]
    assert made.answer(BIND_OK) == b""
    assert made.upstream() == with_tokens(message, "b")


def test_an_empty_queue_name_is_the_queue_declared_last() -> None:
    made = wire()
    made.produce(say(1, commands.Queue.Declare(queue="")))
    made.answer(say(1, commands.Queue.DeclareOk("amq.gen-1", 0, 0)))
    made.produce(queue_bind(1, b"", b"xo", b"", ENTRIES))
    # The queue name is then also the routing key, which an open exchange refuses.
    assert closed(made, made.refused())[0] == 406


def unbound(frames: list[Frame]) -> list[tuple[bytes, bool]]:
    """Return the routing key of each unbind, and whether it has arguments, i.e. removes a client's binding."""
    unbinds = [read_method(QueueUnbind, frame.payload) for frame in frames if frame.name == "Queue.Unbind"]
    return [(unbind.routing_key, bool(unbind.arguments)) for unbind in unbinds]


def test_an_unbind_that_is_not_sent_keeps_the_token() -> None:
    made = bound()
    message = publish(headers=KIND_B)
    made.produce(publish(to="nowhere"), queue_unbind(1, b"b", b"xo", b"", ENTRIES))
    made.answer(say(1, commands.Channel.Close(404, "NOT_FOUND - no exchange 'nowhere'", 60, 40)))
    made.produce(say(1, commands.Channel.CloseOk(), commands.Channel.Open()))
    made.answer(say(1, commands.Channel.OpenOk()))
    assert made.produce(message) == with_tokens(message, "b")


def test_the_token_is_kept_while_another_binding_needs_it() -> None:
    made = bound(BIND_OTHER)
    (frame,) = split(made.produce(UNBIND_OTHER))
    assert read_method(QueueUnbind, frame.payload).routing_key.startswith(STORAGE)


@pytest.mark.parametrize("refusal", [b"", say(OWN, commands.Channel.Close(404, "NOT_FOUND - no queue 'b'", 50, 20))])
def test_a_token_replaces_a_binding_on_which_others_rely(refusal: bytes) -> None:
    made = bound(BIND_OTHER)
    assert names(made.produce(UNBIND)) == ["Channel.Flow"]
    made.answer(FLOW_OK, OWN_OPEN_OK)
    _, plain = split(made.upstream())
    assert (read_method(QueueBind, plain.payload).routing_key, plain.channel) == (token("queue", b"b"), OWN)
    assert PIN in read_method(QueueBind, plain.payload).arguments
    made.answer(refusal or OWN_BIND_OK)
    assert unbound(split(made.upstream())) == [(token("queue", b"b"), True)]
    assert made.answer(UNBIND_OK) == UNBIND_OK
    assert [stored.entries for stored in made.state.exchanges[b"xo"].clients.values()] == [OTHER]
    assert ("queue", b"b") in made.state.exchanges[b"xo"].bound


def test_without_a_sidecar_channel_the_token_is_bound_on_the_clients_channel() -> None:
    made = bound(BIND_OTHER)
    made.relay.connection.upstream.sidecar_channel.number = None
    (plain,) = split(made.produce(UNBIND))
    assert (plain.name, read_method(QueueBind, plain.payload).routing_key) == ("Queue.Bind", token("queue", b"b"))
    assert made.answer(BIND_OK) == b""
    assert unbound(split(made.upstream())) == [(token("queue", b"b"), True)]
    assert made.answer(UNBIND_OK) == UNBIND_OK


def test_a_bind_during_removal_of_the_last_binding_makes_a_separate_binding() -> None:
    made = bound()
    other = other_connection(made)
    made.produce(UNBIND)
    (mark,) = split(other.produce(BIND_OTHER))
    assert read_method(QueueBind, mark.payload).routing_key == token("queue", b"b")
    other.answer(BIND_OK)
    made.answer(UNBIND_OK * 2)
    assert ("queue", b"b") in made.state.exchanges[b"xo"].bound


@pytest.mark.parametrize("sure", [True, False])
def test_a_bind_that_relied_on_a_removed_binding_binds_the_token(sure: bool) -> None:
    first = bound()
    made = other_connection(first)
    if sure:  # this connection has already bound the token, and has removed that binding
        made.produce(numbered(1))
        made.answer(BIND_OK * 2)
        made.produce(queue_unbind(1, b"b", b"xo", b"", encode_table(((b"x-?hkv= n", Value("I", 1)),))))
        made.answer(UNBIND_OK)
    sent = keys(split(made.produce(numbered(2))))
    assert [key == token("queue", b"b") for key in sent] == ([False] if sure else [False, True])
    gone = split(first.produce(UNBIND))
    assert len(gone) == (2 if sure else 1)
    if sure:  # the binding that it relied on is removed too
        assert made.answer(BIND_OK) == b""
        assert keys(split(made.upstream())) == [token("queue", b"b")]
        sent = sent[:1]
    first.answer(UNBIND_OK * len(gone))
    assert made.answer(BIND_OK * len(sent)) == BIND_OK
    assert ("queue", b"b") in made.state.exchanges[b"xo"].bound


def test_a_bind_that_binds_the_token_late_is_answered_before_later_binds() -> None:
    first = bound()
    made = other_connection(first)
    made.produce(numbered(1))
    made.answer(BIND_OK * 2)
    made.produce(queue_unbind(1, b"b", b"xo", b"", encode_table(((b"x-?hkv= n", Value("I", 1)),))))
    made.answer(UNBIND_OK)
    relying, later = numbered(2), exchange_bind(1, b"amq.fanout", b"xo", b"", ENTRIES)
    assert names(made.produce(relying, later)) == ["Queue.Bind", "Exchange.Bind"]
    first.produce(UNBIND)
    first.answer(UNBIND_OK * 2)
    assert made.answer(BIND_OK) == b""
    assert keys(split(made.upstream())) == [token("queue", b"b")]
    assert made.answer(say(1, commands.Exchange.BindOk())) == b""
    assert names(made.answer(BIND_OK)) == ["Queue.BindOk", "Exchange.BindOk"]
    assert made.produce(client.method(1, commands.Queue.Declare(queue="d"))) != b""


def test_a_replacement_token_is_removed_if_no_binding_is_left() -> None:
    made = bound(BIND_OTHER)
    made.produce(UNBIND)
    other = other_connection(made)
    other.produce(UNBIND_OTHER)
    assert other.answer(UNBIND_OK) == UNBIND_OK
    made.answer(FLOW_OK, OWN_OPEN_OK)
    made.answer(OWN_BIND_OK)
    assert unbound(split(made.upstream())) == [(token("queue", b"b"), True)] * 2
    assert made.answer(UNBIND_OK) == b""
    assert made.answer(UNBIND_OK) == UNBIND_OK
    assert ("queue", b"b") not in made.state.exchanges[b"xo"].bound


def test_a_bind_answered_after_a_reload_counts_for_the_new_rules() -> None:
    made = wire()
    made.produce(BIND)
    again = routed("a")
    made.state.swap(again.exchanges, again.router)
    assert made.answer(BIND_OK) == BIND_OK
    assert made.state.exchanges[b"xo"] is again.exchanges[b"xo"]
    assert len(again.exchanges[b"xo"].clients) == 1
    assert ("queue", b"b") in again.exchanges[b"xo"].bound


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
    made.state.plain_exchanges = {b"amq.topic"}
    return made


def declared_elsewhere(made: Wire) -> None:
    """Add the open exchange ``new``, as if it had been found on the broker."""
    new = exchange(name="new")
    made.state.add_exchange(owned(new, declared=DeclaredExchange(True, False, False, b"", 1)), new)


def test_a_bind_of_an_unknown_exchange_waits_until_it_has_been_looked_up() -> None:
    made = behind()
    assert made.produce(BIND_NEW, BIND) == b""
    declared_elsewhere(made)
    (stored,) = split(made.looked_up(b"new"))
    assert keys([stored]) == [token("queue", b"b")]
    first, second = split(made.answer(BIND_OK) + made.upstream())
    assert (first.name, second.name) == ("Queue.BindOk", "Queue.Bind")
    assert len(made.state.exchanges[b"new"].clients) == 1


@pytest.mark.parametrize("frame", [BIND_NEW, UNBIND_NEW, exchange_bind(1, b"new", b"amq.topic", b"#")])
def test_a_bind_of_an_exchange_that_is_not_open_is_forwarded_after_the_lookup(frame: bytes) -> None:
    made = behind()
    assert made.produce(frame, BIND) == b""
    forwarded = made.looked_up(b"new", "direct")
    assert forwarded.startswith(frame)
    assert names(forwarded[len(frame) :]) == ["Queue.Bind"]


def test_a_bind_after_an_unanswered_one_waits_for_the_lookup() -> None:
    made = behind()
    made.produce(BIND)
    assert made.produce(BIND_NEW) == b""
    assert made.answer(BIND_OK) == BIND_OK
    declared_elsewhere(made)
    assert names(made.looked_up(b"new")) == ["Queue.Bind"]


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
    made.state.plain_exchanges = {b"nowhere"}
    made.produce(publish(to="nowhere"), BIND_NEW)
    made.answer(say(1, commands.Channel.Close(404, "NOT_FOUND - no exchange 'nowhere'", 60, 40)))
    assert made.looked_up(b"new") == b""


def test_an_unknown_binding_is_looked_up_before_it_is_removed() -> None:
    made = bound()
    stored = next(iter(made.state.exchanges[b"xo"].clients.values()))
    made.state.remove_binding(stored)
    assert made.produce(UNBIND) == b""
    made.state.add_binding(stored)
    (unbind,) = split(made.looked_up(b"xo"))
    # An auto-delete exchange is deleted with its last binding, so later unbinds would get a 404.
    assert unbound([unbind]) == [(token("queue", b"b"), True)]
    assert made.answer(UNBIND_OK) == UNBIND_OK
    assert not made.state.exchanges[b"xo"].clients


# -- permissions ------------------------------------------------------------------------------------------------------

C, D = ("queue", b"c"), ("queue", b"d")
TO_C = ENTRIES + encode_table(((b"x-addq-ontrue", Value("S", b"c")),))


def reaching(*names_of_queues: bytes, **routes: str) -> tuple[Wire, list[Frame]]:
    """Bind with dynamic routes while these queues exist, and reply to all requests that precede the permission checks.

    Return the connection and all frames sent upstream.
    """
    made = wire()
    made.state.queues = QueueNames(tuple(sorted(names_of_queues)), 1)
    table = tuple((name.replace("_", "-").encode(), Value("S", text.encode())) for name, text in routes.items())
    frames = split(made.produce(queue_bind(1, b"b", b"xo", b"", ENTRIES + encode_table(table))))
    made.answer(BIND_OK)
    made.answer(OWN_OPEN_OK)
    return made, frames + split(made.upstream())


def test_permissions_for_routed_queues_are_checked_before_the_binding_is_made() -> None:
    made, frames = reaching(b"b", b"c", x_addq_ontrue="c")
    assert [(frame.channel, frame.name) for frame in frames] == [
        (1, "Queue.Bind"),
        (OWN, "Channel.Open"),
        (OWN, "Queue.Bind"),
    ]
    made.answer(OWN_BIND_OK)
    assert keys(split(made.upstream())) == [grant_key("", *C)]
    made.answer(OWN_BIND_OK)
    (kept,) = split(made.upstream())
    assert read_method(QueueBind, kept.payload).routing_key.startswith(STORAGE)
    assert not made.state.exchanges[b"xo"].clients
    assert made.answer(BIND_OK) == BIND_OK
    (stored,) = made.state.exchanges[b"xo"].clients.values()
    assert stored.binding.reach is made.state.exchanges[b"xo"].reach("")


def test_a_binding_that_names_a_queue_without_permission_is_refused() -> None:
    made, _ = reaching(b"b", b"c", x_addq_ontrue="c")
    data = made.answer(say(OWN, commands.Channel.Close(403, "ACCESS_REFUSED - access to queue 'c' refused", 50, 20)))
    assert closed(made, data) == (403, "ACCESS_REFUSED - access to queue 'c' refused")
    assert not made.state.exchanges[b"xo"].clients
    made.answer(OWN_OPEN_OK)
    assert unbound(split(made.upstream())) == [(token("queue", b"b"), True)]


def test_a_refused_permission_counts_although_a_reconcile_pass_ends_before_the_last_reply() -> None:
    made = wire()
    made.state.queues = QueueNames((b"b", b"c", b"d"), 1)
    routes = ((b"x-addq-ontrue", Value("A", (Value("S", b"c"), Value("S", b"d")))),)
    made.produce(queue_bind(1, b"b", b"xo", b"", ENTRIES + encode_table(routes)))
    made.answer(BIND_OK)
    made.answer(OWN_OPEN_OK)
    made.answer(OWN_BIND_OK)  # binds the token of c; its permission check is sent after the token of d is bound
    made.answer(say(OWN, commands.Channel.Close(403, "ACCESS_REFUSED - access to queue 'd' refused", 50, 20)))
    made.state.clear_refusals()
    made.answer(OWN_OPEN_OK)
    assert closed(made, made.answer(OWN_BIND_OK)) == (403, "ACCESS_REFUSED - access to queue 'd' refused")
    assert not made.state.exchanges[b"xo"].clients


def test_a_regex_does_not_select_a_queue_without_permission() -> None:
    made, _ = reaching(b"b", b"c", b"d", x_addqre_ontrue="^[cd]$")
    made.answer(say(OWN, commands.Channel.Close(403, "ACCESS_REFUSED - access to queue 'c' refused", 50, 20)))
    made.answer(OWN_OPEN_OK)
    made.answer(OWN_BIND_OK)
    made.answer(OWN_BIND_OK)
    assert made.answer(BIND_OK) == BIND_OK
    reach = made.state.exchanges[b"xo"].reach("")
    assert (reach.allowed, list(reach.refused)) == ({D}, [C])
    made.upstream()
    message = publish(headers=KIND_B)
    assert made.produce(message) == with_tokens(message, "b", "d")


def test_without_reach_limits_no_permissions_are_checked() -> None:
    made = wire()
    made.state.own_routes = False
    made.state.queues = QueueNames((b"b", b"c"), 1)
    assert [frame.channel for frame in split(made.produce(queue_bind(1, b"b", b"xo", b"", TO_C)))] == [1]
    made.answer(BIND_OK)
    (stored,) = made.state.exchanges[b"xo"].clients.values()
    assert stored.binding.reach is None


def granted() -> Wire:
    """A connection whose client has bound ``b`` with a route to ``c``, which the client has permission to bind."""
    made, _ = reaching(b"b", b"c", x_addq_ontrue="c")
    made.answer(OWN_BIND_OK)
    made.answer(OWN_BIND_OK)
    made.answer(BIND_OK)
    made.upstream()
    return made


def test_granted_bindings_are_removed_with_the_last_binding_of_the_client() -> None:
    made = granted()
    made.produce(queue_unbind(1, b"b", b"xo", b"", TO_C))
    assert made.answer(UNBIND_OK, UNBIND_OK) == b""
    (frame,) = split(made.upstream())
    assert read_method(QueueUnbind, frame.payload).routing_key == token(*C)
    made.answer(say(OWN, commands.Queue.UnbindOk()))
    (frame,) = split(made.upstream())
    assert read_method(QueueUnbind, frame.payload).routing_key == grant_key("", *C)
    assert made.answer(say(OWN, commands.Queue.UnbindOk())) == UNBIND_OK
    assert not made.state.exchanges[b"xo"].reaches


def test_a_bind_succeeds_although_a_queue_of_its_route_has_just_been_deleted() -> None:
    made = granted()
    made.state.exchanges[b"xo"].tokens.deleted(C)
    other = OTHER + encode_table(((b"x-addq-ontrue", Value("S", b"c")),))
    (stored,) = split(made.produce(queue_bind(1, b"b", b"xo", b"", other)))
    assert made.answer(BIND_OK) == b""
    (pin,) = split(made.upstream())
    assert (pin.channel, keys([stored, pin])[1]) == (OWN, token(*C))
    assert made.answer(say(OWN, commands.Channel.Close(404, "NOT_FOUND", 50, 20))) == BIND_OK
    assert len(made.state.exchanges[b"xo"].clients) == 2


def test_an_unbind_on_a_channel_closed_by_the_broker_is_not_answered() -> None:
    """The route's token and grant are unbound on the sidecar's channel. The closed channel gets no more frames."""
    made, _ = reaching(b"b", b"c", x_addq_ontrue="c")
    made.answer(OWN_BIND_OK, OWN_BIND_OK, BIND_OK)
    made.produce(queue_unbind(1, b"b", b"xo", b"", TO_C))
    made.answer(UNBIND_OK, UNBIND_OK)
    close = say(1, commands.Channel.Close(404, "NOT_FOUND - no queue", 60, 20))
    assert made.answer(close) == close
    assert made.answer(say(OWN, commands.Queue.UnbindOk(), commands.Queue.UnbindOk())) == b""


def test_a_message_to_an_unchecked_queue_waits_for_the_permission_check() -> None:
    made, _ = reaching(b"b", x_addqre_ontrue="^[cd]$")
    made.answer(BIND_OK)
    made.state.queues = QueueNames((b"b", b"c"), 2)
    made.state.changed()
    owned = made.state.exchanges[b"xo"]
    message = publish(headers=KIND_B)
    assert made.produce(message) == b""
    request = made.request()
    assert isinstance(request, BindDestinations)
    assert request.permission_checks == (PermissionCheck(owned, owned.reach(""), C),)
    check_permission(made.relay.connection, request.permission_checks[0], lambda: made.relay.answer(request))
    made.answer(OWN_BIND_OK)
    made.upstream()
    made.answer(OWN_BIND_OK)
    assert made.upstream() == with_tokens(message, "b", "c")


# -- queue delivery ---------------------------------------------------------------------------------------------------


def unkept() -> Wire:
    return Wire(routed("a", delivery=Delivery.QUEUE)).open()


def queue_exists(made: Wire) -> bytes:
    """Reply that the queue exists; the sidecar then checks the client's permissions."""
    assert made.answer(say(1, commands.Queue.DeclareOk("b", 0, 0))) == b""
    return made.answer(OWN_OPEN_OK)


def test_in_queue_delivery_a_bind_checks_existence_and_permissions_of_the_queue() -> None:
    made = unkept()
    (frame,) = split(made.produce(BIND))
    assert (frame.name, frame.arguments["passive"]) == ("Queue.Declare", True)
    queue_exists(made)
    assert names(made.upstream()) == ["Channel.Open", "Queue.Unbind"]
    assert made.answer(say(OWN, commands.Channel.Close(404, "NOT_FOUND - no exchange", 50, 50))) == BIND_OK
    assert len(made.state.exchanges[b"xo"].clients) == 1


@pytest.mark.parametrize(("refused", "shown"), [((50, 10), (50, 20)), ((60, 40), (60, 40))])
def test_in_queue_delivery_a_bind_of_a_missing_queue_is_refused_as_a_bind(
    refused: tuple[int, int], shown: tuple[int, int]
) -> None:
    made = unkept()
    made.produce(BIND)
    close = commands.Channel.Close(404, "NOT_FOUND - no queue 'b' in vhost '/'", *refused)
    (frame,) = split(made.answer(say(1, close)))
    assert (frame.arguments["class_id"], frame.arguments["method_id"]) == shown
    assert frame.arguments["reply_text"] == close.reply_text
    assert not made.state.exchanges[b"xo"].clients


@pytest.mark.parametrize("nowait", [False, True], ids=["with a reply", "without a reply"])
def test_in_queue_delivery_methods_after_the_delete_of_a_bound_queue_wait_for_it(nowait: bool) -> None:
    made = unkept()
    made.produce(queue_bind(1, b"b", b"xo", b"", ENTRIES))
    queue_exists(made)
    made.answer(say(OWN, commands.Channel.Close(404, "NOT_FOUND - no exchange", 50, 50)))
    made.upstream()
    delete, later = say(1, commands.Queue.Delete(0, "b", nowait=nowait)), say(1, commands.Queue.Declare(0, "c"))
    assert made.produce(delete, later) == say(1, commands.Queue.Delete(0, "b"))
    delete_ok = say(1, commands.Queue.DeleteOk(0))
    assert made.answer(delete_ok) == (b"" if nowait else delete_ok)
    assert made.upstream() == later


def test_in_queue_delivery_a_bind_without_permission_is_refused() -> None:
    made = unkept()
    made.produce(BIND)
    queue_exists(made)
    data = made.answer(say(OWN, commands.Channel.Close(403, "ACCESS_REFUSED - access to queue 'b' refused", 50, 50)))
    assert closed(made, data) == (403, "ACCESS_REFUSED - access to queue 'b' refused")
    assert not made.state.exchanges[b"xo"].clients


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
    (frame,) = split(made.produce(exchange_bind(1, b"second", b"xo", b"", ENTRIES)))
    assert frame.name == "Exchange.Bind"
    made.answer(say(1, commands.Exchange.BindOk()))
    made.produce(publish(headers=KIND_B))
    assert made.state.router.destinations(b"xo") == {("queue", b"a")}


def test_replies_to_client_and_sidecar_binds_are_matched_by_order() -> None:
    made = marked()
    plain = queue_bind(1, b"b", b"amq.topic", b"#")
    made.produce(plain + BIND)
    assert made.answer(BIND_OK) == BIND_OK
    assert made.answer(BIND_OK) == b""
    assert made.answer(BIND_OK) == BIND_OK


A, B, E = ("queue", b"a"), ("queue", b"b"), ("exchange", b"e")


class Client:
    """A connection whose client binds to ``xo``, in a virtual host in which the given queues exist."""

    def __init__(self, *queues: str) -> None:
        self.wire = Wire(routed("z")).open()
        self.state = self.wire.state
        self.state.queues = QueueNames(tuple(sorted(name.encode() for name in queues)), 1)
        self.reach = ClientReach(self.wire.relay.connection)
        self.owned = self.state.exchanges[b"xo"]

    def chosen(self, entries: Mapping[str, Plain]) -> list[Destination]:
        return self.reach.chosen_destinations(self.owned, compile_open(to_queue("main", entries), UTC))[0]

    def bind(self, binding: Binding, client: str = "") -> StoredBinding:
        key = storage_key(binding.destination_type, binding.destination, b"", b"")
        self.state.add_binding(StoredBinding(binding, b"", key, (BindingCopy(1, client, key),)))
        return self.owned.clients[binding.identity]

    def leave(self, client: str = "") -> list[bytes]:
        """Remove the bindings of a client; answer the resulting unbinds, and return their routing keys."""
        self.reach.remove_unneeded(self.owned, client, (), lambda: None)
        unbound = []
        while frames := split(self.wire.upstream()):
            (frame,) = frames
            if frame.name == "Channel.Open":
                self.wire.answer(say(OWN, commands.Channel.OpenOk()))
            else:
                unbound.append(read_method(QueueUnbind, frame.payload).routing_key)
                self.wire.answer(say(OWN, commands.Queue.UnbindOk()))
        return unbound


@pytest.mark.parametrize(
    ("entries", "chosen"),
    [
        ({"x-addq-ontrue": many("b", "ghost")}, [B]),
        ({"x-addq-onfalse": "a"}, [A]),
        ({"x-adde-ontrue": "e"}, [E]),
        ({"x-addqre-ontrue": "^b"}, [B]),
        ({"x-addq!re-ontrue": "^b"}, [A]),
        ({"x-add1qre-ontrue": "."}, [A, B]),
        ({"x-delq-ontrue": "a", "x-msg-addq-ontrue": ""}, []),
        ({}, []),
    ],
)
def test_permissions_are_checked_for_existing_routed_queues(
    entries: dict[str, Plain], chosen: list[Destination]
) -> None:
    assert Client("a", "b").chosen(entries) == chosen


def test_permission_checks_of_a_large_virtual_host_are_limited_in_number() -> None:
    client = Client(*(f"q{number}" for number in range(CHECKED_AT_ONCE + 10)))
    assert len(client.chosen({"x-addqre-ontrue": "."})) == CHECKED_AT_ONCE


def test_all_permission_checks_fail_if_the_broker_allows_no_further_channel() -> None:
    wire = Wire(routed("z"), tuning=replace(TUNING, channel_max_upstream=TUNING.channel_max_producer))
    owned = wire.state.exchanges[b"xo"]
    destinations = [("queue", f"q{number}".encode()) for number in range(CHECKED_AT_ONCE)]
    answers: list[Refusals] = []
    ClientReach(wire.relay.connection).check(owned, destinations, answers.append)
    assert [refusals.keys() for refusals in answers] == [set(destinations)]
    assert owned.reach("").refused.keys() == set(destinations)


def test_granted_bindings_are_kept_while_the_client_has_a_binding() -> None:
    client = Client()
    stored = client.bind(to_queue("a", {"x-addq-ontrue": "b"}))
    client.owned.grant(grant_key("", *B), B)
    client.owned.tokens.asserted(B, b"1 pin", 0.0, None)
    assert client.leave() == []
    client.state.remove_binding(stored)
    assert client.leave() == [token(*B), grant_key("", *B)]
    assert not client.owned.reaches
    assert not client.owned.grants
    assert B not in client.owned.bound


def test_granted_bindings_that_others_need_are_kept() -> None:
    client = Client()
    stored = client.bind(to_queue("a", {"x-addq-ontrue": "b"}))
    client.bind(to_queue("b"), "another")
    client.owned.grant(grant_key("", *B), B)
    client.owned.tokens.bind_ok(B)
    client.state.remove_binding(stored)
    assert client.leave() == [grant_key("", *B)]
    assert B in client.owned.bound
