"""Two sidecars on one broker, while queues change through them and directly.

In the end, every token is correct, and messages reach the queues that rules and bindings select, and no others.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.broker.delivery.site import vhost_status
from tests.broker.observed import Outside, queues
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar

#: Maximum time from the last change until every token is correct: as documented, and while other tests run.
PROMISED_SECONDS, LOADED_SECONDS = 5.0, 60.0
CLIENTS, RULES = "made.by.clients", "made.by.rules"


class Churn:
    """Random changes, and the expected state after them.

    Args:
        outside: the virtual host.
        sidecars: two sidecars.
        channels: a channel through each sidecar, and a channel directly to the broker.
        names: names of the queues.
        seed: seed of the random choices.
    """

    def __init__(
        self, outside: Outside, sidecars: list[Sidecar], channels: list[BlockingChannel], names: list[str], seed: int
    ) -> None:
        self._outside = outside
        self._sidecars = sidecars
        self._channels = channels
        self._names = names
        self._random = random.Random(seed)
        self.existing: set[str] = set()
        self.bound: set[str] = set()

    def step(self) -> None:
        """Declare, delete, bind or unbind one queue."""
        draw, number = self._random, self._random.randrange(len(self._names))
        name, anyone = self._names[number], draw.choice(self._channels)
        # A queue is bound and unbound through the same sidecar, because the other may not know the binding yet.
        owner, how = self._channels[number % 2], {"x-?hkv= number": number}
        if name not in self.existing:
            anyone.queue_declare(name, durable=True)
            self.existing.add(name)
        elif draw.random() < 0.4:
            anyone.queue_delete(name)
            self.existing.discard(name)
            self.bound.discard(name)
        elif name not in self.bound:
            owner.queue_bind(name, CLIENTS, "", how)
            self.bound.add(name)
        else:
            owner.queue_unbind(name, CLIENTS, "", how)
            self.bound.discard(name)

    def differences(self) -> dict[str, set[str]]:
        """Differences from the expected state."""
        wrong: dict[str, set[str]] = {}
        for exchange, wanted in ((RULES, self.existing), (CLIENTS, self.bound)):
            there = self._outside.bound(exchange)
            wrong[f"tokens that {exchange} lacks"] = {str(item) for item in queues(*wanted) - there}
            wrong[f"tokens of queues that do not exist on {exchange}"] = {
                str(item) for item in there - queues(*self.existing)
            }
        for number, sidecar in enumerate(self._sidecars):
            status = vhost_status(sidecar, self._outside.vhost)
            missing = {f"queue {name}" for name in set(self._names) - self.existing}
            wrong[f"what sidecar {number} takes for missing"] = missing ^ set(status["missing"])
            count = status["declared"].get(CLIENTS, 0)
            wrong[f"bindings that sidecar {number} knows"] = set() if count == len(self.bound) else {str(count)}
        return {what: which for what, which in wrong.items() if which}

    def deliveries(self) -> dict[str, int]:
        """Publish one message for each queue, and one for all queues, through both sidecars; return what arrived."""
        *through, direct = self._channels
        for channel in through:
            channel.basic_publish(RULES, "", b"")
            for number in range(len(self._names)):
                channel.basic_publish(CLIENTS, "", b"", pika.BasicProperties(headers={"number": number}))
        return {name: direct.queue_purge(name).method.message_count for name in self.existing}

    def expected(self) -> dict[str, int]:
        return {name: 2 * (1 + (name in self.bound)) for name in self.existing}


@contextmanager
def churned(broker: Broker, folder: Path, count: int, seed: int) -> Iterator[Churn]:
    """Two sidecars with rules for this number of queues."""
    vhost = f"churn-{seed}-{count}"
    broker.create_vhost(vhost)
    with ExitStack() as stack:
        stack.callback(broker.delete_vhost, vhost)
        names = [f"q{number}" for number in range(count)]
        bindings = "".join(f"      - {{queue: {name}}}\n" for name in names)
        rules = folder / "rules.yaml"
        rules.write_text(f"vhost: {vhost}\nexchanges:\n  - name: {RULES}\n    bindings:\n{bindings}")
        settings = {"inventory": {"refresh": "2s"}, "declared": {"announce": True}}
        sidecars = [stack.enter_context(Sidecar(broker, [rules], settings)) for _ in range(2)]
        channels = []
        for port in (*(sidecar.port for sidecar in sidecars), broker.port):
            connection = pika.BlockingConnection(
                pika.ConnectionParameters(
                    "127.0.0.1",
                    port,
                    vhost,
                    pika.PlainCredentials(broker.username, broker.password),
                    heartbeat=0,
                )
            )
            stack.callback(connection.close)
            channels.append(connection.channel())
            channels[-1].confirm_delivery()
        for channel in channels[:2]:
            channel.exchange_declare(CLIENTS, "x-open", durable=True)
        yield Churn(Outside(broker, vhost), sidecars, channels, names, seed)


def settle(churn: Churn, seconds: float) -> float:
    """Wait until there are no differences; return the duration.

    Raises:
        AssertionError: with the differences, if it takes too long.
    """
    ended = time.monotonic()
    while wrong := churn.differences():
        assert time.monotonic() - ended < seconds, wrong
        time.sleep(0.1)  # the broker does not report changes to a listing
    return time.monotonic() - ended


@pytest.mark.timeout(300)
def test_after_the_last_change_nothing_is_missing(broker: Broker, tmp_path: Path) -> None:
    with churned(broker, tmp_path, 60, 1) as churn:
        for _ in range(3):
            for _ in range(200):
                churn.step()
            settle(churn, LOADED_SECONDS)
            assert churn.deliveries() == churn.expected()


@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_a_thousand_queues_for_five_minutes(broker: Broker, tmp_path: Path) -> None:
    with churned(broker, tmp_path, 1000, 2) as churn:
        until = time.monotonic() + 300
        steps = 0
        while time.monotonic() < until:
            churn.step()
            steps += 1
        print(f"{steps} changes, right {settle(churn, PROMISED_SECONDS):.1f} s after the last one")  # shown with -s
        assert churn.deliveries() == churn.expected()
