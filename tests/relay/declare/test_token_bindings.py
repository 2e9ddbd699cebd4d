"""Tokens bound with a producer's own rights, on the channel that it never sees."""

from __future__ import annotations

from pamqp import commands

from proxy.relay.connection_state import PermissionCheck
from proxy.relay.declare.token_bindings import (
    bind_tokens,
    check_permission,
    tokens_of,
    withdraw,
)
from proxy.relay.tokens import grant_key, token
from proxy.relay.vhost import Delivery, OwnedExchange
from proxy.routing.bindings.binding import Reach
from proxy.values import Destination
from tests.client import names, split
from tests.relay.wire import OWN, Wire, owned, routed, say, state
from tests.routing.building import exchange, to_queue

QUEUE: Destination = ("queue", b"mine")
OTHER: Destination = ("exchange", b"theirs")


def test_what_is_bound_counts_as_bound_and_what_is_refused_has_a_reason() -> None:
    wire = Wire(routed("a")).open()
    connection = wire.relay.connection
    owned = wire.state.exchanges[b"xo"]
    ended = []
    bind_tokens(connection, [(owned, QUEUE), (owned, OTHER)], lambda: ended.append(True))
    assert names(wire.upstream()) == ["Channel.Open"]
    wire.answer(say(OWN, commands.Channel.OpenOk()))
    assert names(wire.upstream()) == ["Queue.Bind"]
    wire.answer(say(OWN, commands.Queue.BindOk()))
    assert names(wire.upstream()) == ["Exchange.Bind"]
    assert not ended
    assert wire.answer(say(OWN, commands.Channel.Close(403, "ACCESS_REFUSED - no", 40, 30))) == b""
    assert ended == [True]
    assert QUEUE in owned.bound
    assert OTHER not in owned.bound
    assert "ACCESS_REFUSED" in wire.state.missing[OTHER]


# -- reach ------------------------------------------------------------------------------------------------------------


class Question:
    """A client is asked whether it may bind a destination; the broker's answers are ours to give."""

    def __init__(self, destination: Destination = QUEUE, delivery: Delivery = Delivery.CARRIER) -> None:
        self.wire = Wire(routed("a", delivery=delivery)).open()
        self.owned: OwnedExchange = self.wire.state.exchanges[b"xo"]
        self.reach: Reach = self.owned.reach("client")
        self.answers: list[bool] = []
        check = PermissionCheck(self.owned, self.reach, destination)
        check_permission(self.wire.relay.connection, check, self._done)
        self.wire.answer(say(OWN, commands.Channel.OpenOk()))

    def _done(self) -> None:
        self.answers.append(True)

    def asked(self) -> list[tuple[str, object]]:
        found = [frame for frame in split(self.wire.upstream()) if not frame.name.startswith("Channel.")]
        return [(frame.name, frame.arguments["routing_key"]) for frame in found]

    def refuse(self, code: int, text: str) -> None:
        self.wire.answer(say(OWN, commands.Channel.Close(code, text, 50, 20)))


def test_what_a_client_could_bind_is_within_its_reach_and_kept_on_the_broker() -> None:
    question = Question()
    assert question.asked() == [("Queue.Bind", token(*QUEUE).decode())]
    question.wire.answer(say(OWN, commands.Queue.BindOk()))
    key = grant_key("client", *QUEUE)
    assert question.asked() == [("Queue.Bind", key.decode())]
    assert question.answers == []
    question.wire.answer(say(OWN, commands.Queue.BindOk()))
    assert question.answers == [True]
    assert QUEUE in question.reach.allowed
    assert QUEUE in question.owned.bound
    assert question.owned.grants == {key: QUEUE}


def test_what_a_client_could_not_bind_is_out_of_its_reach() -> None:
    question = Question()
    question.refuse(403, "ACCESS_REFUSED - no")
    assert question.answers == [True]
    assert question.reach.refused == {QUEUE: "403 ACCESS_REFUSED - no"}
    assert not question.owned.grants
    assert QUEUE not in question.owned.bound


def test_where_nothing_can_be_bound_the_permissions_are_asked_by_unbinding_nothing() -> None:
    question = Question(delivery=Delivery.QUEUE)
    assert question.asked() == [("Queue.Unbind", grant_key("client", *QUEUE).decode())]
    question.refuse(404, "NOT_FOUND - no exchange 'xo' in vhost '/'")
    assert QUEUE in question.reach.allowed
    refused = Question(delivery=Delivery.QUEUE)
    refused.refuse(403, "ACCESS_REFUSED - no")
    assert QUEUE not in refused.reach.allowed


def test_an_exchange_that_is_evaluated_here_needs_no_token() -> None:
    question = Question(("exchange", b"xo"))
    assert question.asked() == [("Exchange.Bind", grant_key("client", "exchange", b"xo").decode())]


def test_tokens_and_grants_are_withdrawn_in_one_go() -> None:
    wire = Wire(routed("a")).open()
    owned = wire.state.exchanges[b"xo"]
    owned.grant(b"key", QUEUE)
    owned.tokens.asserted(("queue", b"a"), b"1 pin", 0.0, None)
    ended: list[bool] = []
    withdraw(wire.relay.connection, owned, [("queue", b"a")], [b"key"], lambda: ended.append(True))
    assert not owned.bound
    assert not owned.grants
    wire.answer(say(OWN, commands.Channel.OpenOk()))
    assert names(wire.upstream()) == ["Channel.Open", "Queue.Unbind"]
    wire.answer(say(OWN, commands.Channel.Close(403, "ACCESS_REFUSED - no", 50, 50)))
    assert not ended
    wire.answer(say(OWN, commands.Channel.OpenOk()))
    wire.answer(say(OWN, commands.Queue.UnbindOk()))
    assert ended == [True]


def test_nothing_to_withdraw_is_done_at_once() -> None:
    wire = Wire(routed("a")).open()
    ended: list[bool] = []
    withdraw(wire.relay.connection, wire.state.exchanges[b"xo"], [], [], lambda: ended.append(True))
    assert ended == [True]
    assert wire.upstream() == b""


def test_a_queue_has_a_token_on_each_carrier_whose_rules_name_it() -> None:
    one, two, three = (exchange(to_queue(queue), name=name) for name, queue in (("1", "q"), ("2", "q"), ("3", "r")))
    pairs = [(made, owned(made)) for made in (one, two, three)]
    remote_targets = exchange(to_queue("q"), name="4")
    of = state(*pairs, (remote_targets, owned(remote_targets, Delivery.QUEUE)))
    assert tokens_of(of, b"q") == [(pairs[0][1], ("queue", b"q")), (pairs[1][1], ("queue", b"q"))]
