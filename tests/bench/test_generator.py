from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from pamqp import commands, frame

from tests.bench.generator import Generator
from tests.bench.publishes import Ring, Shape

SHAPE = Shape("bench", ("key.0", "key.1"), ("kind.0",), distinct=True)
WINDOW = 50


class Acknowledging:
    """The broker's end of a connection, which acks all complete publishes after each read."""

    def __init__(self, ring: Ring) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.received = 0
        self.most_unconfirmed = 0
        self._stride = ring.stride
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        confirmed = 0
        while data := self.theirs.recv(8_192):
            self.received += len(data)
            whole = self.received // self._stride
            self.most_unconfirmed = max(self.most_unconfirmed, whole - confirmed)
            if whole > confirmed:
                confirmed = whole
                self.theirs.sendall(frame.marshal(commands.Basic.Ack(confirmed, multiple=True), 1))

    def close(self) -> None:
        self.ours.close()
        self._thread.join()
        self.theirs.close()


@pytest.fixture
def ring() -> Ring:
    return Ring(SHAPE, distinct_count=1_000)


@pytest.fixture
def broker(ring: Ring) -> Iterator[Acknowledging]:
    end = Acknowledging(ring)
    yield end
    end.close()


@pytest.fixture(params=[False, True], ids=["on arrival", "once per tick"])
def generator(request: pytest.FixtureRequest, ring: Ring, broker: Acknowledging) -> Generator:
    return Generator(broker.ours, ring, WINDOW, polls=request.param)


def test_a_run_ends_with_every_publish_whole_and_confirmed(
    generator: Generator, broker: Acknowledging, ring: Ring
) -> None:
    generator.run(seconds=0.05, warm_up_seconds=0.0, watch={})

    assert generator.confirmed > 0
    assert broker.received == generator.confirmed * ring.stride


def test_pings_are_confirmed_one_by_one(generator: Generator, broker: Acknowledging) -> None:
    times = generator.ping(7)

    assert len(times) == generator.confirmed == 7
    assert broker.most_unconfirmed == 1
