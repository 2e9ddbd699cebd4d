"""What stands on the broker for a client's bindings: as few bindings as messages and a restart need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from proxy.amqp.tokens import token
from tests.broker.world import Outside
from tests.delivery.applications import Application
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar

FIRST, SECOND = {"x-?hkv= n": 1}, {"x-?hkv= n": 2}
TOKEN = token("queue", b"a")
#: Publishes under way while a binding goes.
PUBLISHES = 500


@pytest.fixture
def outside(broker: Broker, vhost: str) -> Outside:
    made = Outside(broker, vhost)
    made.make_queues("a", "b")
    return made


@pytest.fixture
def sidecar(broker: Broker, outside: Outside) -> Iterator[Sidecar]:
    with Sidecar(broker) as running:
        yield running


@pytest.fixture
def app(sidecar: Sidecar, vhost: str) -> Iterator[Application]:
    with Application(sidecar.port, vhost) as made:
        made.exchange("ox", auto_delete=True)
        yield made


def keys(outside: Outside) -> list[bytes]:
    """Keys of the bindings to `a`, tokens first."""
    found = [key for _, queue, key in outside.bindings("ox") if queue == b"a"]
    return sorted(found, key=lambda key: (key != TOKEN, key))


def test_one_binding_is_one_on_the_broker_and_further_ones_have_keys_of_their_own(
    app: Application, outside: Outside
) -> None:
    app.bind("a", "ox", FIRST)
    assert keys(outside) == [TOKEN]
    app.bind("a", "ox", FIRST)
    assert keys(outside) == [TOKEN]
    app.bind("a", "ox", SECOND)
    first, second = keys(outside)
    assert first == TOKEN
    assert second.startswith(b"x.o.p.e.n.x.b.")
    assert [app.reached("ox", {"n": n}, "a") for n in (1, 2, 3)] == [["a"], ["a"], []]


def test_messages_of_another_binding_arrive_while_the_first_one_goes(
    app: Application, sidecar: Sidecar, vhost: str, outside: Outside
) -> None:
    app.bind("a", "ox", FIRST)
    app.bind("a", "ox", SECOND)
    with Application(sidecar.port, vhost) as other:
        for _ in range(PUBLISHES):
            other.publish("ox", "k", {"n": 2}, mandatory=True)
        app.unbind("a", "ox", FIRST)
        for _ in range(PUBLISHES):
            other.publish("ox", "k", {"n": 2}, mandatory=True)
        other.settle_all(2 * PUBLISHES)  # and nothing comes back
    assert [app.reached("ox", {"n": n}, "a")[:1] for n in (1, 2)] == [["a"], ["a"]]
    assert len(keys(outside)) == 2


def test_bindings_read_back_after_a_restart_go_from_where_they_are(
    app: Application, broker: Broker, vhost: str, outside: Outside
) -> None:
    app.bind("a", "ox", FIRST)
    app.bind("a", "ox", SECOND)
    with Sidecar(broker) as later, Application(later.port, vhost) as again:
        again.bind("a", "ox", FIRST)
        assert len(keys(outside)) == 2
        again.unbind("a", "ox", FIRST)
        assert keys(outside)[0] == TOKEN
        assert [again.reached("ox", {"n": n}, "a") for n in (1, 2)] == [[], ["a"]]
        again.unbind("a", "ox", SECOND)
        assert again.refused(again.declaring("ox", passive=True)).code == 404
