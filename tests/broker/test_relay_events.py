from __future__ import annotations

from collections.abc import Callable

import pytest

from proxy.broker.connection import ControlConnection, ControlSettings, DeclaredSettings
from proxy.broker.reconcile.diff import BindToken
from proxy.broker.reconcile.reconciler import Reconciler
from proxy.broker.reconcile.relay_requests import RelayRequests
from proxy.broker.task_supervisor import Supervisor
from proxy.relay.vhost import Delivery, OwnedExchange, VhostState
from tests.broker.clients import declare_here, stored, text
from tests.broker.observed import exchanges, owned, queues, state


class FakeExecutor:
    """Binds every token, without a broker. It does not implement binding on demand."""

    def __init__(self) -> None:
        self.bound: list[tuple[bytes, bytes]] = []

    async def bind_one(self, token: BindToken) -> str | None:
        exchange, destination = token
        self.bound.append((exchange.name, destination[1]))
        exchange.tokens.bind_ok(destination)
        return None


class Scene:
    """Notifications to a virtual host."""

    def __init__(self, known: VhostState, own_routes: bool = True) -> None:
        self.known = known
        self.executor = FakeExecutor()
        self.passes_requested = 0
        limits = ControlSettings(
            (), "guest", "guest", deadline_seconds=5, declared=DeclaredSettings(own_routes=own_routes)
        )
        reconciler = Reconciler(limits, known, ControlConnection(limits, "/"), None)
        reconciler.executor = self.executor  # type: ignore[assignment]
        self.rights = reconciler.rights
        self.requests = RelayRequests(
            reconciler, Supervisor(), lambda: None, lambda exchange: None, self.request_refresh
        )
        self.requests.connected.set()

    def request_refresh(self) -> None:
        self.passes_requested += 1

    async def ensure(self, queue: str) -> None:
        await self.requests.ensure(("queue", queue.encode()))


@pytest.fixture
def scene() -> Scene:
    """An exchange of a rules file, and a client's exchange with a binding that has a route."""
    scene = Scene(state("/", {"documents": queues("a")}))
    declare_here(scene.known, "ox", stored("ox", "own", ((b"x-addq-ontrue", text("route")),)))
    return scene


def test_a_declare_waits_for_tokens_of_rules_and_not_for_those_that_clients_bind(scene: Scene) -> None:
    scene.known.exchanges[b"documents"].tokens.bind_ok(("queue", b"demanded"))
    names = ("a", "demanded", "own", "route", "other")
    assert [scene.requests.interested(name.encode()) for name in names] == [True, True, False, False, False]
    declare_here(scene.known, "all", stored("all", "q", ((b"x-addqre-ontrue", text("^x")),)))
    assert scene.requests.interested(b"other")


async def test_a_queue_gets_the_tokens_that_it_may_have(scene: Scene) -> None:
    for destination in queues("demanded by a client"):
        scene.known.exchanges[b"ox"].tokens.bind_ok(destination)
    for destination in queues("demanded"):
        scene.known.exchanges[b"documents"].tokens.bind_ok(destination)
    for name in ("a", "own", "route", "demanded", "demanded by a client", "other"):
        await scene.ensure(name)
    assert scene.executor.bound == [
        (b"documents", b"a"),
        (b"documents", b"demanded"),
        (b"ox", b"demanded by a client"),
    ]


async def test_a_clients_route_is_bound_if_it_may_reach_any_queue() -> None:
    scene = Scene(state("/", {}), own_routes=False)
    declare_here(scene.known, "ox", stored("ox", "own", ((b"x-addq-ontrue", text("route")),)))
    declare_here(scene.known, "outer", stored("outer", "ox", kind="exchange"))
    for name in ("own", "route"):
        await scene.ensure(name)
    assert scene.executor.bound == [(b"outer", b"route"), (b"ox", b"route")]


def test_a_deleted_queue_removes_the_bindings_of_clients(scene: Scene) -> None:
    known = scene.known
    known.add_binding(stored("documents", "own"))
    ox = known.exchanges[b"ox"]
    for destination in queues("own", "route"):
        ox.tokens.bind_ok(destination)
    epoch = known.epoch
    scene.requests.queue_deleted(b"own")
    assert known.exchanges[b"documents"].clients == ox.clients == {}
    assert ox.bound == queues("route")
    assert scene.passes_requested == 1  # for the tokens that no binding needs
    assert known.missing == {}
    assert known.epoch > epoch


def test_a_deleted_queue_that_rules_or_routes_name_is_missing(scene: Scene) -> None:
    scene.requests.queue_deleted(b"a")
    scene.requests.queue_deleted(b"route")
    assert scene.known.missing == {("queue", b"a"): "deleted", ("queue", b"route"): "deleted"}
    assert scene.passes_requested == 0


def test_a_deleted_exchange_removes_its_bindings_and_those_to_it(scene: Scene) -> None:
    known = scene.known
    declare_here(known, "outer", stored("outer", "ox", kind="exchange"), stored("outer", "amq.topic", kind="exchange"))
    for destination in exchanges("amq.topic"):
        known.exchanges[b"outer"].tokens.bind_ok(destination)
    known.remove_exchange(b"ox")
    scene.requests.changed(b"ox")
    assert set(known.exchanges) == {b"documents", b"outer"}
    assert [client.binding.destination for client in known.exchanges[b"outer"].clients.values()] == [b"amq.topic"]
    scene.requests.changed(b"amq.topic")
    assert known.exchanges[b"outer"].clients == {}
    assert known.exchanges[b"outer"].bound == set()
    scene.requests.changed(b"documents")  # the rules file's binding stays
    assert b"documents" in known.exchanges


def test_a_thousand_queues_and_bindings_do_not_compute_the_desired_state(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("needs were computed")

    monkeypatch.setattr("proxy.broker.reconcile.reconciler.desired_state", never)
    monkeypatch.setattr("proxy.broker.reconcile.desired._reached", never)
    scene = Scene(state("/", {"documents": queues("a")}))
    declare_here(scene.known, "ox")
    for number in range(1_000):
        name = f"q{number}"
        assert not scene.requests.interested(name.encode())
        scene.requests.declared(("queue", name.encode()))
        scene.known.add_binding(stored("ox", name, (), number))
        assert not scene.requests.interested(name.encode())
    scene.requests.queue_deleted(b"q500")
    assert len(scene.known.exchanges[b"ox"].clients) == 999


@pytest.mark.parametrize("make", [lambda: owned("x", Delivery.QUEUE), lambda: owned("x")])
def test_a_declared_queue_is_missing_until_it_has_its_token(make: Callable[[], OwnedExchange]) -> None:
    exchange = make()
    scene = Scene(state("/", {"x": queues("a")}, exchange))
    scene.known.missing["queue", b"a"] = "does not exist"
    scene.requests.declared(("queue", b"a"))
    assert (("queue", b"a") in scene.known.missing) == (exchange.delivery is Delivery.CARRIER)
