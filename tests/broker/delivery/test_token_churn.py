"""Two sidecars in front of one broker while applications bind and unbind the same queues through both.

Each application publishes only messages that match an existing binding of its own. Such a message is never
unroutable, whatever the other sidecar removes at that moment.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.broker.delivery.applications import Application
from tests.broker.observed import Outside
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar

QUEUES = ("a", "b")
#: Maximum number of bindings of an application.
MOST = 4
#: Number of publishes after each bind or unbind.
PUBLISHES = 5


def churned(port: int, vhost: str, number: int, publishes: int) -> list[str]:
    """Bind, unbind and publish; return the messages that were returned."""
    draw = random.Random(number)
    returned: list[str] = []
    with Application(port, vhost) as app:
        app.exchange("ox")
        bound: list[tuple[str, str]] = []
        made = published = 0
        while published < publishes:
            if len(bound) < MOST and (not bound or draw.random() < 0.5):
                made += 1
                value, queue = f"{number}.{made}", draw.choice(QUEUES)
                # Some also have a route to the other queue.
                route = {"x-addq-ontrue": "c"} if draw.random() < 0.2 else {}
                app.bind(queue, "ox", {"x-?hkv= n": value, **route})
                bound.append((value, queue + "+" * bool(route)))
            else:
                value, queue = bound.pop(draw.randrange(len(bound)))
                route = {"x-addq-ontrue": "c"} if queue.endswith("+") else {}
                app.unbind(queue.rstrip("+"), "ox", {"x-?hkv= n": value, **route})
            for value, queue in draw.choices(bound, k=PUBLISHES) if bound else ():
                app.publish("ox", "k", {"n": value}, mandatory=True)
                settled = app.settle()
                assert settled.acked
                published += 1
                if settled.returned:
                    returned.append(f"{value} to {queue} after {published}")
    return returned


def run(broker: Broker, vhost: str, publishes: int, refresh: str) -> list[str]:
    outside = Outside(broker, vhost)
    for queue in (*QUEUES, "c"):
        outside.make_queue(queue, **{"x-max-length": 1})
    with ExitStack() as stack:
        settings = {"inventory": {"refresh": refresh}}
        ports = [stack.enter_context(Sidecar(broker, settings=settings)).port for _ in range(2)]
        with Application(ports[0], vhost) as app:
            app.exchange("ox")
        with ThreadPoolExecutor() as pool:
            works = [pool.submit(churned, port, vhost, number, publishes // 2) for number, port in enumerate(ports)]
            return [text for work in works for text in work.result()]


def test_bindings_through_one_sidecar_are_found_while_the_other_unbinds(broker: Broker, vhost: str) -> None:
    assert run(broker, vhost, 2_000, "500ms") == []


@pytest.mark.matrix
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("refresh", ["1s", "5s"])
def test_none_of_many_publishes_is_unroutable(broker: Broker, vhost: str, refresh: str) -> None:
    assert run(broker, vhost, 50_000, refresh) == []
