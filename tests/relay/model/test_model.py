"""Runs real sidecars against a model of the broker: no interleaving of their steps loses a message.

Small cases are run in every order; larger ones are drawn at random.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from oxproxy.values import Destination
from tests.relay.model.world import Action, Connection, LostError, Sidecar, World, every_run, interleave

Q: Destination = ("queue", b"q")
R: Destination = ("queue", b"r")
E: Destination = ("exchange", b"e")
#: number of actions of clients and control planes in a random run
_ACTIONS = 12


def run_all(run: Callable[[Callable[[int], int]], Awaitable[None]]) -> int:
    """Run every sequence of choices; return their number."""

    async def all_runs() -> int:
        count = 0
        for one_run in every_run(run):
            await one_run
            count += 1
        return count

    with capture_logs():
        return asyncio.run(all_runs())


# -- every interleaving ------------------------------------------------------------------------------------------------


def replaced_beside(world: World) -> list[Action]:
    """Another client deletes the queue, and declares it again, directly on the broker."""
    return [
        Action("delete beside", None, lambda: world.broker.delete_queue(b"q")),
        Action("declare beside", None, lambda: world.broker.queues.add(b"q")),
    ]


def bind_and_publish(world: World, connection: Connection) -> list[Action]:
    return [
        Action("bind", connection, lambda: world.bind(connection, ("1", Q))),
        Action("publish", connection, lambda: world.publish(connection, "1")),
    ]


@pytest.mark.parametrize("topic", [False, True])
def test_a_queue_replaced_during_a_bind_receives_what_was_promised(topic: bool) -> None:
    async def run(choose: Callable[[int], int]) -> None:
        world = await World(topic=topic).begin()
        world.broker.queues.add(b"q")
        await interleave(world, choose, bind_and_publish(world, world.connections[0]), replaced_beside(world))

    assert run_all(run) > 100


@pytest.mark.parametrize("secrets", [((b"s",), (b"s",)), ((b"s",), (b"t", b"s"))], ids=["one secret", "two secrets"])
def test_the_same_bind_through_two_sidecars_reaches_the_queue_through_both(secrets: Sequence[Sequence[bytes]]) -> None:
    async def run(choose: Callable[[int], int]) -> None:
        world = await World(secrets, at_once=True).begin()
        world.broker.queues.add(b"q")
        first, second = world.connections[0], world.connections[2]
        await interleave(world, choose, bind_and_publish(world, first)[:1], bind_and_publish(world, second)[:1])

    assert run_all(run) > 10


@pytest.mark.parametrize("lists", [0, 1], ids=["the same sidecar lists", "another sidecar lists"])
def test_a_listing_during_a_bind_keeps_the_binding(lists: int) -> None:
    async def run(choose: Callable[[int], int]) -> None:
        world = await World(at_once=True).begin()
        world.broker.queues.add(b"q")
        sidecar, made = world.sidecars[lists], world.connections[0]
        listing = Action("list", None, lambda: sidecar.start(sidecar.list_bindings()))
        await interleave(world, choose, bind_and_publish(world, made), [listing])

    assert run_all(run) > 50


def test_the_model_finds_the_loss_if_the_token_row_is_sent_first() -> None:
    async def run(choose: Callable[[int], int]) -> None:
        world = await World(token_first=True).begin()
        world.broker.queues.add(b"q")
        await interleave(world, choose, bind_and_publish(world, world.connections[0]), replaced_beside(world))

    with pytest.raises(LostError, match="queue"):
        run_all(run)


# -- random interleavings ----------------------------------------------------------------------------------------------


def _run_pass(sidecar: Sidecar) -> None:
    sidecar.start(sidecar.run_pass())


class Actions:
    """What clients and control planes may do next in a random run."""

    def __init__(self, world: World, random: Random, destinations: Sequence[Destination]) -> None:
        self.world, self.random, self.destinations = world, random, destinations

    def possible(self) -> list[Action]:
        world = self.world
        found = [action for made in world.connections if len(made.awaited) < 3 for action in self._of_client(made)]
        for sidecar in world.sidecars:
            if not sidecar.looking:
                found.append(Action("pass", None, partial(_run_pass, sidecar)))
                if world.file:
                    named = self.random.choice(((), (("1", Q),), (("2", R), ("1", E))))
                    reload = lambda sidecar=sidecar, named=named: sidecar.start(sidecar.reload(named))  # noqa: E731
                    found.append(Action("reload", None, reload))
        for name in (b"q", b"r"):
            found.append(Action("delete beside", None, partial(world.broker.delete_queue, name)))
            found.append(Action("declare beside", None, partial(world.broker.queues.add, name)))
        return found

    def _of_client(self, made: Connection) -> list[Action]:
        world, random = self.world, self.random
        kind, other, destination = random.choice("12"), random.choice("12"), random.choice(self.destinations)
        name = random.choice("qr")
        found = [
            Action("bind", made, lambda: world.bind(made, (kind, destination))),
            Action("bind twice", made, lambda: world.bind(made, (kind, destination), (other, Q))),
            Action("unbind", made, lambda: world.unbind(made, kind, destination)),
            Action("declare queue", made, lambda: world.declare_queue(made, name)),
            Action("delete queue", made, lambda: world.delete_queue(made, name)),
            Action("publish", made, lambda: world.publish(made, kind)),
        ]
        if not world.file:
            found.append(Action("declare exchange", made, lambda: world.declare_exchange(made)))
        return found

    def draw(self) -> Action:
        possible = self.possible()
        name = self.random.choice(sorted({action.name for action in possible}))
        return self.random.choice([action for action in possible if action.name == name])


async def random_run(world: World, random: Random, destinations: Sequence[Destination]) -> None:
    await world.begin()
    world.broker.queues.add(b"q")
    actions, left = Actions(world, random, destinations), random.randint(3, _ACTIONS)
    while left or world.steps():
        steps = world.steps()
        if left and (not steps or random.random() < 0.3):
            left -= 1
            action = actions.draw()
            await world.step(action.name, action.take)
        else:
            await world.step(*random.choice(steps))
    await world.finish()


SAME, CHANGING = ((b"s",), (b"s",)), ((b"s",), (b"t", b"s"), (b"s", b"t"))
WORLDS = {
    "two sidecars": lambda: World(SAME),
    "three sidecars during a change of secrets": lambda: World(CHANGING),
    "topic carrier": lambda: World(SAME, topic=True),
    "auto-delete exchange": lambda: World(SAME, auto_delete=True),
    "exchange of a rules file and reloads": lambda: World(SAME, file=True),
    "rules files during a change of secrets": lambda: World(CHANGING, file=True),
}


@pytest.mark.parametrize("made", WORLDS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(random=st.randoms(use_true_random=False), destinations=st.sampled_from([(Q,), (Q, R), (Q, E)]))
def test_random_interleavings_keep_all_promises(made: str, random: Random, destinations: Sequence[Destination]) -> None:
    with capture_logs():
        asyncio.run(random_run(WORLDS[made](), random, destinations))
