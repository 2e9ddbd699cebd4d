from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from proxy.broker.reconcile.desired import TokenRights, desired_state
from proxy.broker.reconcile.executor import Token
from proxy.broker.reconcile.orphan_tokens import OrphanTokens
from proxy.relay.vhost import OwnedExchange, VhostState
from proxy.routing.router import Router
from tests.broker.clients import declare_here, stored, text
from tests.broker.world import queues, state


class Hand:
    """Unbinds and binds what it is told to; clients do `meanwhile` while it unbinds."""

    def __init__(self) -> None:
        self.unbound: list[bytes] = []
        self.bound: list[bytes] = []
        self.handed_over: list[bytes] = []
        self.meanwhile: Callable[[], object] = lambda: None

    async def unbind(self, rows: Sequence[tuple[Token, Sequence[bytes]]]) -> None:
        self.unbound += [destination[1] for (_, destination), _ in rows]
        self.meanwhile()

    async def hand_over(self, tokens: Sequence[Token]) -> None:
        self.handed_over += [destination[1] for _, destination in tokens]

    async def bind(self, tokens: Sequence[Token]) -> dict[Token, str]:
        self.bound += [destination[1] for _, destination in tokens]
        return {}


class Scene:
    """The strays of a virtual host."""

    def __init__(self, known: VhostState) -> None:
        self.known = known
        self.hand = Hand()
        self.rights = TokenRights(own_routes=True)
        self.rights.learn(known.exchanges, known.router)
        self.orphans = OrphanTokens(known, self.hand, self.rights)  # type: ignore[arg-type]

    async def look(self) -> list[bytes]:
        """Look once: what is unbound?"""
        self.hand.unbound = []
        await self.orphans.unbind(desired_state(self.known.exchanges, self.known.router, self.rights))
        return self.hand.unbound


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


async def test_what_is_needed_or_asked_for_stays(scene: Scene) -> None:
    assert [await scene.look() for _ in range(3)] == [[], [], []]


async def test_what_two_looks_find_useless_goes(scene: Scene, ox: OwnedExchange) -> None:
    await scene.look()
    scene.known.remove_binding(A)
    epoch = scene.known.epoch
    assert [await scene.look() for _ in range(3)] == [[], [b"a"], []]
    assert ox.bound == queues("b", "demanded")
    assert scene.known.epoch > epoch


async def test_what_is_bound_again_in_time_stays(scene: Scene) -> None:
    await scene.look()
    scene.known.remove_binding(A)
    await scene.look()
    scene.known.add_binding(A)
    assert await scene.look() == []


async def test_what_is_bound_while_it_is_unbound_is_bound_again(scene: Scene) -> None:
    await scene.look()
    scene.known.remove_binding(A)
    await scene.look()
    scene.hand.meanwhile = lambda: scene.known.add_binding(A)
    await scene.look()
    assert scene.hand.bound == [b"a"]


async def test_with_the_last_binding_every_token_goes(scene: Scene) -> None:
    for binding in (A, B):
        scene.known.remove_binding(binding)
    assert [await scene.look() for _ in range(2)] == [[], [b"a", b"b", b"demanded"]]


async def test_an_end_that_was_noticed_is_believed_at_once(scene: Scene, ox: OwnedExchange) -> None:
    for binding in (A, B):
        scene.known.remove_binding(binding)
    scene.orphans.note(ox)
    assert await scene.look() == [b"a", b"b", b"demanded"]


async def test_what_a_route_still_names_stays(scene: Scene) -> None:
    await scene.look()
    scene.known.remove_binding(A)
    scene.known.add_binding(stored("ox", "b", ((b"x-addq-ontrue", text("a")),)))
    assert [await scene.look() for _ in range(3)] == [[], [], []]


async def test_tokens_of_the_file_and_of_its_publishes_stay() -> None:
    scene = Scene(state("/", {"documents": queues("a")}))
    for destination in queues("a", "demanded", "client"):
        scene.known.exchanges[b"documents"].tokens.bind_ok(destination)
    client = stored("documents", "client")
    scene.known.add_binding(client)
    await scene.look()
    scene.known.remove_binding(client)
    assert [await scene.look() for _ in range(2)] == [[], [b"client"]]
    assert scene.hand.handed_over == [b"client"]  # rules of another sidecar may need it
    assert scene.known.exchanges[b"documents"].bound == queues("a", "demanded")
