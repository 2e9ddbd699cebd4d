"""Random declarations through two sidecars, which are killed and reloaded, have the effects that a model predicts."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from pamqp import commands

from tests.broker.delivery.applications import Application, declared
from tests.producer import Closed, Producer
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar

QUEUES = [f"queue-{number}" for number in range(5)]
#: The exchange of the rules file, to which clients bind too, and exchanges that clients declare. Messages may go from
#: each exchange to later ones.
RULED, *DECLARED = EXCHANGES = ["ruled", "first", "second", "third"]
NUMBERS = range(3)
#: Maximum time until both sidecars route as the model predicts, while other tests run.
SECONDS = 60.0


class Bound(NamedTuple):
    """A binding: messages with this number go to the destination and, if it is not empty, to the added queue."""

    exchange: str
    destination: str
    number: int
    added: str = ""

    @property
    def arguments(self) -> dict[str, object]:
        route = {"x-addq-ontrue": self.added} if self.added else {}
        return {"x-?hkv= number": self.number, **route}


class Model:
    """What was declared, and where messages go."""

    def __init__(self) -> None:
        self.queues: set[str] = set()
        self.exchanges = {RULED}
        self.bindings: set[Bound] = set()
        #: Removed bindings. If one were made again at once, the other sidecar might know only the previous copy.
        self.removed: set[Bound] = set()
        #: bindings of the rules file: number and queue
        self.file: set[tuple[int, str]] = set()

    def delete(self, name: str) -> None:
        self.queues.discard(name)
        self.exchanges.discard(name)
        self.remove({bound for bound in self.bindings if name in (bound.exchange, bound.destination)})

    def remove(self, bindings: set[Bound]) -> None:
        self.bindings -= bindings
        self.removed |= bindings

    def queues_of(self, exchange: str, number: int) -> set[str]:
        found = {queue for wanted, queue in self.file if (exchange, number) == (RULED, wanted)}
        for bound in self.bindings:
            if (bound.exchange, bound.number) == (exchange, number):
                further = bound.destination in self.exchanges
                found |= self.queues_of(bound.destination, number) if further else {bound.destination}
                found.add(bound.added)
        return found & self.queues


class World:
    """Two sidecars and their applications, which follow the model.

    Args:
        rules: the rules file of both sidecars.
        direct: a connection directly to the broker.
        later: whether the routes of bindings may name queues that do not exist yet.
    """

    def __init__(
        self, sidecars: list[Sidecar], vhost: str, rules: Path, direct: Producer, random: Random, *, later: bool
    ) -> None:
        self.model = Model()
        self._later = later
        self._sidecars = sidecars
        self._vhost = vhost
        self._rules = rules
        self._direct = direct
        self._random = random
        self._apps = [Application(sidecar.port, vhost) for sidecar in sidecars]

    def close(self) -> None:
        for app in self._apps:
            app.disconnect()

    def kill(self) -> None:
        """Kill one of the sidecars and start it again."""
        number = self._random.randrange(2)
        self._apps[number].disconnect()
        os.kill(self._sidecars[number].process_id, signal.SIGKILL)
        self._sidecars[number].stop()
        self._sidecars[number].start()
        self._apps[number] = Application(self._sidecars[number].port, self._vhost)

    def step(self) -> None:
        """Make one change, through either sidecar or, if it concerns a queue, directly."""
        random, model, app = self._random, self.model, self._random.choice(self._apps)
        changes: list[Callable[[Application], None]] = [
            self._declare_queue, self._delete_queue, self._declare_exchange, self._delete_exchange, self._reload,
            self._bind, self._unbind,
        ]  # fmt: skip
        (change,) = random.choices(changes, (14, 4, 8, 1, 1, 30, 12))
        if model.queues or change != self._bind:
            change(app)

    def _declare_queue(self, app: Application) -> None:
        name = self._random.choice(QUEUES)
        self._random.choice((app, self._direct)).declare(name, durable=True)
        self.model.queues.add(name)

    def _delete_queue(self, app: Application) -> None:
        name = self._random.choice(QUEUES)
        self._random.choice((app, self._direct)).ask(commands.Queue.Delete(queue=name))
        self.model.delete(name)

    def _declare_exchange(self, app: Application) -> None:
        name = self._random.choice(DECLARED)
        app.exchange(name)
        self.model.exchanges.add(name)

    def _delete_exchange(self, app: Application) -> None:
        name = self._random.choice(DECLARED)
        app.delete(name)
        self.model.delete(name)

    def _reload(self, _app: Application) -> None:
        random, model = self._random, self.model
        model.file = {(random.choice(NUMBERS), random.choice(QUEUES)) for _ in range(random.randrange(5))}
        write_rules(self._rules, self._vhost, model.file)
        for sidecar in self._sidecars:
            os.kill(sidecar.process_id, signal.SIGHUP)

    def _bind(self, app: Application) -> None:
        random, model = self._random, self.model
        source = random.choice(sorted(model.exchanges))
        later = [name for name in EXCHANGES[EXCHANGES.index(source) + 1 :] if name in model.exchanges]
        destinations = [*sorted(model.queues), *later[:1]]
        named = QUEUES if self._later else sorted(model.queues)
        added = random.choice(named) if named and random.random() < 0.2 else ""
        bound = Bound(source, random.choice(destinations), random.choice(NUMBERS), added)
        if bound not in model.bindings | model.removed:
            bind = app.chain if bound.destination in model.exchanges else app.bind
            bind(bound.destination, bound.exchange, bound.arguments)
            model.bindings.add(bound)

    def _unbind(self, app: Application) -> None:
        model = self.model
        if model.bindings:
            bound = self._random.choice(sorted(model.bindings))
            unbind = app.unchain if bound.destination in model.exchanges else app.unbind
            unbind(bound.destination, bound.exchange, bound.arguments)
            model.remove({bound})

    def differences(self) -> dict[object, object]:
        """Where messages go through each sidecar, and the bindings that it knows, if these differ from the model."""
        wrong: dict[object, object] = {}
        for at, app in enumerate(self._apps):
            known = +Counter(declared(self._sidecars[at], self._vhost))
            if known != (counts := Counter(bound.exchange for bound in self.model.bindings)):
                wrong[at] = (known, counts)
            for exchange in EXCHANGES:
                for number in NUMBERS:
                    there = exchange in self.model.exchanges
                    expected = sorted(self.model.queues_of(exchange, number)) if there else 404
                    reached = self._reached(app, exchange, number)
                    if reached != expected:
                        wrong[at, exchange, number] = (reached, expected)
        return wrong

    def _reached(self, app: Application, exchange: str, number: int) -> list[str] | int:
        app.publish(exchange, "key", {"number": number}, mandatory=True)
        try:
            settled = app.settle()
        except Closed as closed:
            app.call(commands.Channel.CloseOk())
            app.open(confirm=True)
            return closed.code
        queues = [queue for queue in sorted(self.model.queues) for _ in self._direct.take(queue)]
        assert bool(settled.returned) != bool(queues)
        return queues

    def settle(self) -> None:
        """Wait until messages go where the model predicts."""
        end = time.monotonic() + SECONDS
        while wrong := self.differences():
            assert time.monotonic() < end, (wrong, sorted(self.model.bindings), self.model.file)
            time.sleep(0.2)  # no event reports that a sidecar has read the changes
        self.model.removed.clear()


def write_rules(file: Path, vhost: str, pairs: set[tuple[int, str]]) -> None:
    """Write a rules file in one step, since the sidecars may read it at any time."""
    bindings = [
        f'{{queue: {queue}, arguments: {{"x-?hkv= number": {number}, "x-?hkex": number}}}}'
        for number, queue in sorted(pairs)
    ]
    new = file.with_suffix(".new")
    new.write_text(f"vhost: {vhost}\nexchanges: [{{name: {RULED}, bindings: [{', '.join(bindings)}]}}]\n")
    new.rename(file)


@contextmanager
def world(broker: Broker, vhost: str, folder: Path, seed: int) -> Iterator[World]:
    random, rules = Random(seed), folder / "rules.yaml"
    write_rules(rules, vhost, set())
    announce, routes = random.random() < 0.5, random.choice(("own", "any"))
    settings = {"inventory": {"refresh": "1s"}, "declared": {"announce": announce, "client_routes": routes}}
    with ExitStack() as stack:
        folders = [folder / "one", folder / "other"]
        for place in folders:
            place.mkdir()
        sidecars = [stack.enter_context(Sidecar(broker, [rules], settings, place)) for place in folders]
        direct = stack.enter_context(Producer(broker.port, vhost)).open()
        made = World(sidecars, vhost, rules, direct, random, later=routes == "any")
        stack.callback(made.close)
        yield made


def run(made: World, rounds: int) -> None:
    for _ in range(rounds):
        for _ in range(50):
            made.step()
        made.kill()
        for _ in range(50):
            made.step()
        made.settle()


@pytest.mark.timeout(300)
def test_messages_go_where_the_model_predicts(broker: Broker, vhost: str, tmp_path: Path) -> None:
    with world(broker, vhost, tmp_path, 1) as made:
        run(made, 3)


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2, 13))
def test_messages_go_where_the_model_predicts_for_long(broker: Broker, vhost: str, tmp_path: Path, seed: int) -> None:
    with world(broker, vhost, tmp_path, seed) as made:
        run(made, 10)
