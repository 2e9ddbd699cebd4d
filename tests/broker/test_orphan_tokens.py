from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from proxy.broker.connection import ControlConnection, ControlSettings
from proxy.broker.methods import Bind, Method, Refusal
from proxy.broker.reconcile.desired import TokenRights, desired_state, record_file_destinations
from proxy.broker.reconcile.executor import Executor
from proxy.broker.reconcile.observed import ObservedState
from proxy.broker.reconcile.orphan_tokens import OrphanTokens
from proxy.relay.vhost import OwnedExchange, VhostState
from proxy.routing.router import Router
from tests.broker.clients import declare_here, stored, text
from tests.broker.observed import queues, state


class FakeConnection(ControlConnection):
    """A connection that records binds and unbinds; at an unbind, clients do `meanwhile`."""

    def __init__(self) -> None:
        self.bound: list[bytes] = []
        self.meanwhile: Callable[[], object] = lambda: None

    async def call_all(self, methods: Sequence[Method]) -> list[Refusal | None]:
        binds = [method for method in methods if isinstance(method, Bind)]
        self.bound += [bind.destination[1] for bind in binds if not bind.unbinds]
        if any(bind.unbinds for bind in binds):
            self.meanwhile()
        return [None] * len(methods)


class Scene:
    """The orphaned tokens of a virtual host."""

    def __init__(self, known: VhostState) -> None:
        self.known = known
        self.connection = FakeConnection()
        self.executor = Executor(ControlSettings((), "control", ""), known, self.connection, ObservedState())
        self.rights = TokenRights(own_routes=True)
        record_file_destinations(known.exchanges, known.router)
        self.orphans = OrphanTokens(known, self.rights)

    async def run_pass(self) -> list[bytes]:
        """Run one pass; return what was unbound."""
        desired = desired_state(self.known.exchanges, self.known.router, self.rights)
        actions = self.orphans.find(desired, 0.0)
        await self.executor.unbind(actions)
        await self.executor.bind(self.orphans.needed_again(actions))
        return [action.destination[1] for action in actions]


A, B = stored("ox", "a"), stored("ox", "b")


@pytest.fixture
def scene() -> Scene:
    scene = Scene(VhostState("/", Router(())))
    exchange = declare_here(scene.known, "ox", A, B)
    for destination in queues("a", "b", "demanded"):
        exchange.tokens.bind_ok(destination)
    return scene


@pytest.fixture
def ox(scene: Scene) -> OwnedExchange:
    return scene.known.exchanges[b"ox"]


async def test_needed_and_requested_tokens_are_kept(scene: Scene) -> None:
    assert [await scene.run_pass() for _ in range(3)] == [[], [], []]


async def test_a_token_not_needed_in_two_passes_is_unbound(scene: Scene, ox: OwnedExchange) -> None:
    await scene.run_pass()
    scene.known.remove_binding(A)
    epoch = scene.known.epoch
    assert [await scene.run_pass() for _ in range(3)] == [[], [b"a"], []]
    assert ox.bound == queues("b", "demanded")
    assert scene.known.epoch > epoch


async def test_a_token_needed_again_before_the_second_pass_is_kept(scene: Scene) -> None:
    await scene.run_pass()
    scene.known.remove_binding(A)
    await scene.run_pass()
    scene.known.add_binding(A)
    assert await scene.run_pass() == []


async def test_a_token_needed_again_during_its_unbind_is_bound_again(scene: Scene) -> None:
    await scene.run_pass()
    scene.known.remove_binding(A)
    await scene.run_pass()
    scene.connection.meanwhile = lambda: scene.known.add_binding(A)
    await scene.run_pass()
    assert scene.connection.bound == [b"a"]


async def test_with_the_last_binding_every_token_is_unbound(scene: Scene) -> None:
    for binding in (A, B):
        scene.known.remove_binding(binding)
    assert [await scene.run_pass() for _ in range(2)] == [[], [b"a", b"b", b"demanded"]]


async def test_a_noted_exchange_is_cleaned_up_in_the_next_pass(scene: Scene, ox: OwnedExchange) -> None:
    for binding in (A, B):
        scene.known.remove_binding(binding)
    scene.orphans.note(ox)
    assert await scene.run_pass() == [b"a", b"b", b"demanded"]


async def test_a_token_that_a_route_needs_is_kept(scene: Scene) -> None:
    await scene.run_pass()
    scene.known.remove_binding(A)
    scene.known.add_binding(stored("ox", "b", ((b"x-addq-ontrue", text("a")),)))
    assert [await scene.run_pass() for _ in range(3)] == [[], [], []]


async def test_tokens_of_the_file_and_of_its_publishes_are_kept() -> None:
    scene = Scene(state("/", {"documents": queues("a")}))
    for destination in queues("a", "demanded", "client"):
        scene.known.exchanges[b"documents"].tokens.bind_ok(destination)
    client = stored("documents", "client")
    scene.known.add_binding(client)
    await scene.run_pass()
    scene.known.remove_binding(client)
    assert [await scene.run_pass() for _ in range(2)] == [[], [b"client"]]
    assert scene.connection.bound == [b"client"]  # rules of another sidecar may need it
    assert scene.known.exchanges[b"documents"].bound == queues("a", "demanded")
