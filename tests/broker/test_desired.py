"""The destinations whose tokens the control user may bind, and those that it must bind: pure functions."""

from __future__ import annotations

import pytest

from proxy.broker.management_api import QueueInfo
from proxy.broker.reconcile.desired import TokenRights, desired_state, record_file_destinations
from proxy.broker.reconcile.diff import believed_tokens
from proxy.broker.reconcile.observed import ObservedState
from proxy.relay.vhost import Delivery, VhostState
from proxy.routing.bindings.binding import Binding
from proxy.routing.exchange import Exchange
from proxy.routing.router import Router
from proxy.values import Table, Value
from tests.broker.clients import declare_here, stored, text
from tests.broker.observed import exchanges, owned, queues, router


def routing_to(*names: str) -> Table:
    return ((b"x-addq-ontrue", Value("A", tuple(Value("S", name.encode()) for name in names))),)


def learned(known: VhostState, own_routes: bool) -> TokenRights:
    record_file_destinations(known.exchanges, known.router)
    return TokenRights(own_routes)


@pytest.fixture
def known() -> VhostState:
    """An exchange of a rules file that has a binding with a route."""
    rules = Exchange(b"ruled", "x-open")
    rules.bind(Binding(b"ruled", "queue", b"file", b"", routing_to("file route")))
    return VhostState("/", Router([rules]), {b"ruled": owned("ruled")})


def bind_clients(known: VhostState) -> None:
    declare_here(known, "ox", stored("ox", "own", routing_to("route")))
    known.add_binding(stored("ruled", "client", routing_to("client route")))


def test_routes_of_clients_give_no_right_to_a_token_with_own_routes(known: VhostState) -> None:
    rights = learned(known, own_routes=True)
    bind_clients(known)
    desired = desired_state(known.exchanges, known.router, rights)
    assert desired.tokens == {b"ruled": queues("file", "file route", "client"), b"ox": queues("own")}
    for queue, holders in {b"file route": [b"ruled"], b"client": [b"ruled"], b"own": [b"ox"], b"route": []}.items():
        assert [holder.name for holder in rights.holders(known.exchanges, known.router, queue)] == holders


def test_routes_of_clients_give_the_same_rights_as_a_files_without_own_routes(known: VhostState) -> None:
    rights = learned(known, own_routes=False)
    bind_clients(known)
    desired = desired_state(known.exchanges, known.router, rights)
    assert desired.tokens_of(known.exchanges[b"ox"]) == queues("own", "route")
    assert desired.tokens_of(known.exchanges[b"ruled"]) == queues("file", "file route", "client", "client route")
    [holder] = rights.holders(known.exchanges, known.router, b"route")
    assert holder.name == b"ox"


@pytest.mark.parametrize("own_routes", [True, False])
def test_a_chain_of_exchanges_needs_the_tokens_of_its_end(own_routes: bool) -> None:
    known = VhostState("/", Router(()))
    for name, goes_on in (("first", "second"), ("second", "third"), ("third", "first")):
        declare_here(known, name, stored(name, goes_on, kind="exchange"))
    known.add_binding(stored("third", "end"))
    rights = learned(known, own_routes)
    desired = desired_state(known.exchanges, known.router, rights)
    assert all(desired.tokens_of(exchange) == queues("end") for exchange in known.exchanges.values())
    holders = rights.holders(known.exchanges, known.router, b"end")
    assert [holder.name for holder in holders] == [b"first", b"second", b"third"]


def test_an_evaluated_alternate_exchange_continues_the_chain() -> None:
    known = VhostState("/", Router(()))
    declare_here(known, "first", arguments=((b"alternate-exchange", text("second")),))
    declare_here(known, "second", stored("second", "end"), arguments=((b"alternate-exchange", text("amq.fanout")),))
    rights = learned(known, own_routes=True)
    desired = desired_state(known.exchanges, known.router, rights)
    assert desired.tokens == {b"first": queues("end") | exchanges("amq.fanout"), b"second": queues("end")}


def test_a_clients_route_to_another_exchange_gives_no_right_to_its_queues() -> None:
    known = VhostState("/", Router(()))
    declare_here(known, "secret", stored("secret", "secrets"))
    declare_here(known, "ox", stored("ox", "own", ((b"x-adde-ontrue", text("secret")),)))
    assert desired_state(known.exchanges, known.router, learned(known, own_routes=True)).tokens[b"ox"] == queues("own")
    assert desired_state(known.exchanges, known.router).tokens[b"ox"] == queues("own", "secrets")


def test_queue_delivery_of_a_client_does_not_prevent_the_start() -> None:
    known = VhostState("/", Router(()))
    declare_here(known, "ox", stored("ox", "inner", kind="exchange"), delivery=Delivery.QUEUE)
    desired = desired_state(known.exchanges, known.router)
    assert desired.published == {}
    assert desired.existing == {("exchange", b"inner"): ""}


def test_without_a_listing_of_bindings_only_tokens_that_can_exist_are_verified() -> None:
    names = "a", "gone", "mine"
    exchange = owned("x", bound=queues(*names))
    desired = desired_state({b"x": exchange}, router({"x": queues(*names)}))
    known = ObservedState()
    known.queues_listed({}, {b"a": QueueInfo(b"a"), b"mine": QueueInfo(b"mine", exclusive=True)})
    believed, gone = believed_tokens(desired, (), known)
    assert [token.destination for token in believed] == [("queue", b"a")]
    assert [token.destination for token in gone] == [("queue", b"gone")]


def test_a_token_bound_with_a_clients_rights_is_not_verified_with_the_control_users() -> None:
    exchange = owned("x", bound=queues("a", "route"))
    exchange.clients["some"] = None  # type: ignore[assignment]
    desired = desired_state({b"x": exchange}, router({"x": queues("a")}))
    believed, gone = believed_tokens(desired, (), ObservedState())
    assert ([token.destination for token in believed], gone) == ([("queue", b"a")], [])
