"""The rows on the broker for clients' bindings: storage rows come and go with them, token rows stay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pamqp import commands

from oxproxy.relay.tokens import is_token
from tests.broker.delivery.applications import Application
from tests.broker.delivery.site import standing
from tests.broker.observed import Outside
from tests.client import method
from tests.producer import until
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar

FIRST, SECOND, THIRD = ({"x-?hkv= n": n} for n in (1, 2, 3))
#: Number of publishes in progress while a binding is removed.
PUBLISHES = 500


@pytest.fixture
def outside(broker: Broker, vhost: str) -> Outside:
    made = Outside(broker, vhost)
    made.make_queues("a", "b")
    return made


@pytest.fixture(scope="module")
def sidecar(broker: Broker) -> Iterator[Sidecar]:
    with Sidecar(broker) as running:
        yield running


@pytest.fixture
def app(sidecar: Sidecar, vhost: str) -> Iterator[Application]:
    with Application(sidecar.port, vhost) as made:
        made.exchange("ox", auto_delete=True)
        yield made


def keys(outside: Outside, exchange: str = "ox") -> tuple[int, int]:
    """Number of token rows and of storage rows of the queue `a`."""
    bound_keys = [key for _, queue, key in outside.bindings(exchange) if queue == b"a"]
    tokens = sum(map(is_token, bound_keys))
    return tokens, len(bound_keys) - tokens


def test_each_binding_has_a_storage_row_and_its_destination_one_token_row(app: Application, outside: Outside) -> None:
    app.bind("a", "ox", FIRST)
    assert keys(outside) == (1, 1)
    app.bind("a", "ox", FIRST)
    assert keys(outside) == (1, 1)
    app.bind("a", "ox", SECOND)
    assert keys(outside) == (1, 2)
    assert [app.reached("ox", {"n": n}, "a") for n in (1, 2, 3)] == [["a"], ["a"], []]
    app.unbind("a", "ox", FIRST)
    assert keys(outside) == (1, 1)
    assert [app.reached("ox", {"n": n}, "a") for n in (1, 2)] == [[], ["a"]]


def test_messages_of_another_binding_arrive_while_the_first_is_removed(
    app: Application, sidecar: Sidecar, vhost: str, outside: Outside
) -> None:
    app.bind("a", "ox", FIRST)
    app.bind("a", "ox", SECOND)
    with Application(sidecar.port, vhost) as second:
        for _ in range(PUBLISHES):
            second.publish("ox", "k", {"n": 2}, mandatory=True)
        app.unbind("a", "ox", FIRST)
        for _ in range(PUBLISHES):
            second.publish("ox", "k", {"n": 2}, mandatory=True)
        second.settle_all(2 * PUBLISHES)  # and nothing is returned
    assert [app.reached("ox", {"n": n}, "a")[:1] for n in (1, 2)] == [["a"], ["a"]]
    assert keys(outside) == (1, 1)


def test_bindings_read_after_a_restart_are_removed(
    app: Application, broker: Broker, vhost: str, outside: Outside
) -> None:
    app.bind("a", "ox", FIRST)
    app.bind("a", "ox", SECOND)
    with Sidecar(broker) as later, Application(later.port, vhost) as again:
        again.bind("a", "ox", FIRST)
        assert keys(outside) == (1, 2)
        again.unbind("a", "ox", FIRST)
        assert keys(outside) == (1, 1)
        assert [again.reached("ox", {"n": n}, "a") for n in (1, 2)] == [[], ["a"]]
        again.unbind("a", "ox", SECOND)
        assert again.refused(again.declaring("ox", passive=True)).code == 404


def test_after_both_unbinds_a_token_row_is_left_and_if_unused_deletes(app: Application, outside: Outside) -> None:
    app.exchange("stays")
    for arguments in (FIRST, SECOND):
        app.bind("a", "stays", arguments)
    assert app.refused(app.deleting("stays", if_unused=True)).code == 406
    for arguments in (FIRST, SECOND):
        app.unbind("a", "stays", arguments)
    assert keys(outside, "stays") == (1, 0)
    app.delete("stays", if_unused=True)
    assert app.refused(app.declaring("stays", passive=True)).code == 404


def test_an_exclusive_queue_is_reached_while_its_first_binding_is_removed(
    app: Application, sidecar: Sidecar, vhost: str, outside: Outside
) -> None:
    with Application(sidecar.port, vhost) as owner:
        owner.send(method(1, commands.Queue.Declare(queue="a.own", exclusive=True)))
        owner.expect("Queue.DeclareOk")
        for arguments in (FIRST, SECOND):
            owner.bind("a.own", "ox", arguments)
        owner.unbind("a.own", "ox", FIRST)
        assert [app.reached("ox", {"n": n}) for n in (1, 2)] == [[], []]
        assert len(owner.take("a.own")) == 1
        owner.unbind("a.own", "ox", SECOND)
    assert app.refused(app.declaring("ox", passive=True)).code == 404


def test_a_queue_declared_again_on_the_broker_is_reached_by_a_bind_of_another_connection(
    app: Application, sidecar: Sidecar, vhost: str, outside: Outside
) -> None:
    app.exchange("stays")
    app.bind("a", "stays", FIRST)
    outside.delete_queue("a")
    outside.make_queues("a")
    with Application(sidecar.port, vhost) as second:
        second.bind("a", "stays", SECOND)
        assert second.reached("stays", {"n": 2}, "a") == ["a"]


def test_pipelined_binds_need_one_token_row_and_all_take_effect(app: Application, outside: Outside) -> None:
    everything = [{"x-?hkv= n": n} for n in range(100)]
    app.send(*(app.binding("a", "ox", arguments) for arguments in everything))
    for _ in everything:
        app.expect("Queue.BindOk")
    assert keys(outside) == (1, 100)
    assert app.reached("ox", {"n": 99}, "a") == ["a"]


# -- two sidecars on one broker ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def blind(broker: Broker) -> Iterator[list[Sidecar]]:
    """Two sidecars that do not refresh."""
    with ExitStack() as stack:
        settings = {"inventory": {"refresh": "1h"}}
        yield [stack.enter_context(Sidecar(broker, settings=settings)) for _ in range(2)]


@pytest.fixture
def pair(blind: list[Sidecar], vhost: str, outside: Outside) -> Iterator[tuple[Application, Application]]:
    """Applications connected to these two sidecars, and an exchange that both know."""
    with ExitStack() as stack:
        here, there = (stack.enter_context(Application(sidecar.port, vhost)) for sidecar in blind)
        here.exchange("ox")
        here.bind("a", "ox", FIRST)
        there.exchange("ox")  # this sidecar reads the exchange now
        assert there.reached("ox", {"n": 1}, "a") == ["a"]
        yield here, there


def test_a_binding_through_one_sidecar_works_while_the_other_removes_its_own(
    pair: tuple[Application, Application],
) -> None:
    here, there = pair
    for arguments in (SECOND, THIRD):
        there.bind("a", "ox", arguments)
    here.unbind("a", "ox", FIRST)  # this sidecar does not know the other's bindings
    assert [there.reached("ox", {"n": n}, "a") for n in (2, 3)] == [["a"], ["a"]]
    here.bind("a", "ox", FIRST)
    for arguments in (SECOND, THIRD):
        there.unbind("a", "ox", arguments)
    assert here.reached("ox", {"n": 1}, "a") == ["a"]


def test_a_binding_made_through_both_sidecars_can_be_removed_through_either(
    pair: tuple[Application, Application], outside: Outside
) -> None:
    here, there = pair
    here.bind("b", "ox", FIRST)
    there.bind("b", "ox", FIRST)  # this sidecar has not been notified of the binding
    assert there.reached("ox", {"n": 1}, "b") == ["b"]
    there.unbind("b", "ox", FIRST)
    assert here.reached("ox", {"n": 1}, "b") == ["b"]
    here.unbind("b", "ox", FIRST)
    assert outside.client_bindings("ox") == ["a"]


def test_an_exchange_declared_through_one_sidecar_is_bound_through_the_other(
    pair: tuple[Application, Application], outside: Outside
) -> None:
    here, there = pair
    for name in ("new", "next"):
        here.exchange(name)
    # If the other sidecar forwarded these binds, the broker would store them, and the rules would not apply.
    there.bind("b", "new", FIRST)
    there.chain("next", "ox", SECOND)
    there.bind("b", "next", {})
    assert [there.reached("new", {"n": n}, "b") for n in (1, 2)] == [["b"], []]
    assert [there.reached("ox", {"n": n}, "b") for n in (1, 2)] == [[], ["b"]]
    assert outside.client_bindings("new") == ["b"]


def test_a_publish_to_an_exchange_declared_through_the_other_sidecar_is_evaluated(
    pair: tuple[Application, Application],
) -> None:
    here, there = pair
    here.exchange("new")
    here.bind("b", "new", FIRST)
    assert [there.reached("new", {"n": n}, "b") for n in (1, 2)] == [["b"], []]
    here.exchange("plain", kind="fanout")
    here.bind("b", "plain")
    assert there.reached("plain", {}, "b") == ["b"]
    there.publish("missing")
    assert there.closed().code == 404


def test_an_exchange_bound_through_one_sidecar_is_unbound_through_the_other(
    pair: tuple[Application, Application], outside: Outside
) -> None:
    here, there = pair
    here.exchange("next")
    here.chain("next", "ox", SECOND)
    there.unchain("next", "ox", SECOND)
    assert outside.client_bindings("ox") == ["a"]


@pytest.mark.parametrize("name", ["ox", "new"])
def test_a_binding_made_through_one_sidecar_is_removed_through_the_other(
    pair: tuple[Application, Application], outside: Outside, name: str
) -> None:
    here, there = pair
    here.exchange(name)
    here.bind("b", name, FIRST)
    there.unbind("b", name, FIRST)
    assert there.reached(name, {"n": 1}, "b") == []
    assert "b" not in outside.client_bindings(name)


# -- bindings of rules -------------------------------------------------------------------------------------------------


RULES = """
queues: [a, b]
exchanges:
  - name: filed
    bindings: [{queue: %s, arguments: {"x-?hkv= to": file}}]
"""


def test_a_destination_of_rules_and_an_application_is_reached_after_either_unbinds(
    broker: Broker, tmp_path: Path
) -> None:
    settings = {"inventory": {"refresh": "100ms", "foreign_bindings": "remove"}}
    with standing(broker, tmp_path, RULES % "a", settings) as site:
        with Application(site.sidecar.port, site.vhost) as app:
            app.bind("a", "filed", FIRST)
            assert [app.reached("filed", table, "a") for table in ({"n": 1}, {"to": "file"})] == [["a"], ["a"]]
            site.reload(RULES % "b")
            assert [app.reached("filed", table, "a") for table in ({"n": 1}, {"to": "file"})] == [["a"], []]
            site.bind("filed", "a", "foreign.key")
            until(lambda: site.logged("foreign binding removed"))
            assert app.reached("filed", {"n": 1}, "a") == ["a"]
            site.reload(RULES % "a")
            app.unbind("a", "filed", FIRST)
            assert [app.reached("filed", table, "a") for table in ({"n": 1}, {"to": "file"})] == [[], ["a"]]
