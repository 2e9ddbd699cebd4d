"""The destinations whose tokens have to be bound: pure functions."""

from __future__ import annotations

import pytest

from oxproxy.broker.management_api import QueueInfo
from oxproxy.broker.reconcile.desired import desired_state
from oxproxy.broker.reconcile.diff import Observation, believed_tokens
from oxproxy.broker.reconcile.observed import ObservedState
from oxproxy.relay.tokens import Tokens
from oxproxy.relay.vhost import VhostState
from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.router import Router
from oxproxy.values import Table, Value
from tests.broker.clients import declare_here, stored, text
from tests.broker.observed import exchanges, owned, queues, router


def routing_to(*names: str) -> Table:
    return ((b"x-addq-ontrue", Value("A", tuple(Value("S", name.encode()) for name in names))),)


@pytest.fixture
def known() -> VhostState:
    """An exchange of a rules file that has a binding with a route."""
    rules = Exchange(b"ruled", "x-open")
    rules.bind(Binding(b"ruled", "queue", b"file", b"", routing_to("file route")))
    return VhostState("/", Router([rules]), {b"ruled": owned("ruled")})


def bind_clients(known: VhostState) -> None:
    declare_here(known, "ox", stored("ox", "own", routing_to("route")))
    known.add_binding(stored("ruled", "client", routing_to("client route")))


def test_all_destinations_of_rules_and_clients_need_tokens(known: VhostState) -> None:
    bind_clients(known)
    assert desired_state(known.exchanges, known.router).tokens == {
        b"ruled": queues("file", "file route", "client", "client route"),
        b"ox": queues("own", "route"),
    }


def test_a_chain_of_exchanges_needs_the_tokens_of_its_end() -> None:
    known = VhostState("/", Router(()))
    for name, goes_on in (("first", "second"), ("second", "third"), ("third", "first")):
        declare_here(known, name, stored(name, goes_on, kind="exchange"))
    known.add_binding(stored("third", "end"))
    desired = desired_state(known.exchanges, known.router)
    assert all(desired.tokens_of(exchange) == queues("end") for exchange in known.exchanges.values())


def test_an_evaluated_alternate_exchange_continues_the_chain() -> None:
    known = VhostState("/", Router(()))
    declare_here(known, "first", arguments=((b"alternate-exchange", text("second")),))
    declare_here(known, "second", stored("second", "end"), arguments=((b"alternate-exchange", text("amq.fanout")),))
    desired = desired_state(known.exchanges, known.router)
    assert desired.tokens == {b"first": queues("end") | exchanges("amq.fanout"), b"second": queues("end")}


def test_without_a_listing_of_bindings_only_tokens_that_can_exist_are_verified() -> None:
    names = "a", "gone", "mine"
    exchange = owned("x", bound=queues(*names))
    desired = desired_state({b"x": exchange}, router({"x": queues(*names)}))
    known = ObservedState()
    known.queues_listed({}, {b"a": QueueInfo(b"a"), b"mine": QueueInfo(b"mine", exclusive=True)})
    believed = believed_tokens(desired, (), Observation(known, Tokens()))
    assert [token.destination for token in believed] == [("queue", b"a")]
