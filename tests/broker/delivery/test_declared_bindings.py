"""Binds and unbinds of applications on open exchanges: errors, permissions, identity, order, chains of exchanges."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pamqp import commands

from oxproxy.amqp.method_frames import exchange_delete
from oxproxy.values import Table, Value
from tests.broker.delivery.applications import Application, declared
from tests.broker.observed import Outside
from tests.client import exchange_bind, exchange_unbind, method
from tests.producer import until
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar

STOP = {"x-stop-ontrue": ""}


@pytest.fixture
def app(sidecar: Sidecar, vhost: str) -> Iterator[Application]:
    with Application(sidecar.port, vhost) as made:
        made.exchange("ox")
        made.queues("a", "b")
        yield made


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_an_invalid_bind_is_refused_and_changes_nothing(app: Application) -> None:
    app.bind("b", "ox")
    text = "PRECONDITION_FAILED - Unknown or invalid argument's key '<<\"x-unknown\">>'"
    wrong = {"x-unknown": 1}
    for frame, asked in (
        (app.binding("a", "ox", wrong), (50, 20)),
        (app.chaining("amq.fanout", "ox", wrong), (40, 30)),
    ):
        close = app.refused(frame)
        assert (close.code, close.text, close.method) == (406, text, asked)
    assert app.reached("ox", {}, "a", "b") == ["b"]


def test_a_bind_with_nowait_takes_effect(app: Application) -> None:
    app.send(app.binding("a", "ox", nowait=True), app.binding("b", "ox", {"x-?hkex": "x"}, nowait=True))
    assert app.reached("ox", {"x": 1}, "a", "b") == ["a", "b"]


def test_with_nowait_exchanges_are_declared_bound_unbound_and_deleted(app: Application, outside: Outside) -> None:
    outside.make_exchange("real", "fanout")
    app.bind("a", "real")
    names = (b"real", b"second", b"")
    app.send(
        app.declaring("second", nowait=True),
        exchange_bind(1, *names, nowait=True),
    )
    assert app.reached("second", {}, "a") == ["a"]
    app.send(exchange_unbind(1, *names, nowait=True))
    assert app.reached("second", {}, "a") == []
    app.send(exchange_delete(1, b"second", nowait=True))
    assert app.refused(app.declaring("second", passive=True)).code == 404


def test_a_refusal_with_nowait_closes_the_channel(app: Application) -> None:
    close = app.refused(app.binding("a", "ox", {"x-unknown": 1}, nowait=True))
    assert (close.code, close.method) == (406, (50, 20))
    assert app.refused(app.binding("nowhere", "ox", nowait=True)).code == 404


def test_a_missing_queue_or_exchange_gets_the_brokers_404(app: Application) -> None:
    for frame, asked in ((app.binding("nowhere", "ox"), (50, 20)), (app.chaining("nowhere", "ox"), (40, 30))):
        close = app.refused(frame)
        assert (close.code, close.method) == (404, asked)
        assert "nowhere" in close.text
    assert app.refused(app.binding("a", "no exchange")).code == 404
    assert app.send_settled("ox", "k", {}, mandatory=True).returned


def test_an_exclusive_queue_of_another_connection_gets_the_brokers_405(
    app: Application, sidecar: Sidecar, vhost: str
) -> None:
    with Application(sidecar.port, vhost) as owner:
        owner.send(method(1, commands.Queue.Declare(queue="own", exclusive=True)))
        owner.expect("Queue.DeclareOk")
        close = app.refused(app.binding("own", "ox"))
        assert (close.code, close.method) == (405, (50, 20))
        owner.bind("own", "ox")


def test_an_exchange_is_bound_and_unbound_by_the_clients_permissions(
    broker: Broker, sidecar: Sidecar, vhost: str, app: Application, outside: Outside, user: str
) -> None:
    outside.make_exchange("far", "fanout")
    broker.grant(user, vhost, configure="", write="^amq.fanout$", read="^ox$")
    with Application(sidecar.port, vhost, user) as second:
        for frame, asked in ((second.chaining("far", "ox"), (40, 30)), (second.unchaining("far", "ox"), (40, 40))):
            close = second.refused(frame)
            assert (close.code, close.method) == (403, asked)
            assert "access to exchange 'far'" in close.text
        second.chain("amq.fanout", "ox")
        second.unchain("amq.fanout", "ox")


def test_the_error_of_a_declare_refused_after_a_bind_names_the_declare(app: Application) -> None:
    app.send(app.binding("a", "ox"), method(1, commands.Queue.Declare(queue="nowhere", passive=True)))
    app.expect("Queue.BindOk")
    close = app.closed()
    assert (close.code, close.method) == (404, (50, 10))


def test_the_brokers_permissions_of_the_client_decide(
    broker: Broker, sidecar: Sidecar, vhost: str, app: Application, user: str
) -> None:
    broker.grant(user, vhost, configure="", write="^a$", read="^ox$")
    with Application(sidecar.port, vhost, user) as second:
        second.bind("a", "ox")
        for frame, asked in ((second.binding("b", "ox"), (50, 20)), (second.unbinding("b", "ox"), (50, 50))):
            close = second.refused(frame)
            assert (close.code, close.method) == (403, asked)
            assert "access to queue 'b'" in close.text
        assert app.reached("ox", {}, "a", "b") == ["a"]
        second.unbind("a", "ox")
    broker.grant(user, vhost, configure="", write="^a$", read="")
    with Application(sidecar.port, vhost, user) as second:
        close = second.refused(second.binding("a", "ox"))
        assert (close.code, close.method) == (403, (50, 20))
        assert "access to exchange 'ox'" in close.text
    assert app.send_settled("ox", "k", {}, mandatory=True).returned


# -- identity ----------------------------------------------------------------------------------------------------------


def number(letter: str, of: float) -> Table:
    return ((b"x-?hkv= n", Value(letter, of)),)


def test_bindings_that_differ_only_in_arguments_are_separate(app: Application) -> None:
    app.bind("a", "ox", {"x-?hkv= n": 1})
    app.bind("a", "ox", {"x-?hkv= n": 2})
    assert [app.reached("ox", {"n": n}, "a") for n in (1, 2, 3)] == [["a"], ["a"], []]
    app.unbind("a", "ox", {"x-?hkv= n": 1})
    assert [app.reached("ox", {"n": n}, "a") for n in (1, 2)] == [[], ["a"]]


def test_bindings_that_differ_only_in_types_of_arguments_are_separate(app: Application) -> None:
    for letter in ("I", "l", "d"):
        app.bind("a", "ox", number(letter, 1))
    for letter in ("I", "l"):
        app.unbind("a", "ox", number(letter, 1))
        assert app.reached("ox", {"n": 1}, "a") == ["a"]
    app.unbind("a", "ox", number("d", 1))
    assert app.reached("ox", {"n": 1}, "a") == []


def test_unbinding_with_other_arguments_is_refused(app: Application, outside: Outside) -> None:
    outside.make_exchange("far", "fanout")
    app.bind("a", "ox", number("I", 1))
    app.chain("far", "ox", number("I", 1))
    close = app.refused(app.unbinding("a", "ox", number("l", 1)))
    text = "PRECONDITION_FAILED - binding arguments do not match"
    assert (close.code, close.text, close.method) == (406, text, (50, 50))
    close = app.refused(app.unchaining("far", "ox", number("l", 1)))
    assert (close.code, close.text, close.method) == (406, text, (40, 40))
    assert app.reached("ox", {"n": 1}, "a") == ["a"]


def test_unbinding_a_missing_binding_is_no_error(app: Application) -> None:
    app.bind("a", "ox")
    app.unbind("b", "ox", {"x-?hkex": "x"})
    app.unbind("b", "ox")
    app.unchain("amq.fanout", "ox")
    app.unbind("nowhere", "ox")  # as in RabbitMQ since 3.2
    app.unchain("nowhere", "ox")
    assert app.reached("ox", {}, "a") == ["a"]


def test_with_unbind_broker_an_unbind_with_other_arguments_is_ignored(broker: Broker, vhost: str) -> None:
    with (
        Sidecar(broker, settings={"declared": {"unbind": "broker"}}) as silent,
        Application(silent.port, vhost) as app,
    ):
        app.exchange("ox")
        app.queues("a")
        app.bind("a", "ox", number("I", 1))
        app.unbind("a", "ox", number("l", 1))
        assert app.reached("ox", {"n": 1}, "a") == ["a"]
        app.unbind("a", "ox", number("I", 1))
        assert app.reached("ox", {"n": 1}, "a") == []


def test_binds_to_the_brokers_own_exchanges_are_forwarded(app: Application, outside: Outside) -> None:
    app.exchange("plain", kind="direct")
    app.bind("a", "plain", {"n": 1}, "k")
    app.unbind("a", "plain", {"n": 2}, "k")
    assert app.reached("plain", {}, "a") == ["a"]
    assert ("queue", b"a", b"k") in outside.bindings("plain")


# -- order -------------------------------------------------------------------------------------------------------------


def test_of_equal_orders_the_last_binding_is_visited_first(app: Application) -> None:
    app.bind("a", "ox", STOP)
    app.bind("b", "ox", STOP)
    assert app.reached("ox", {}, "a", "b") == ["b"]
    app.bind("a", "ox", STOP)  # it already exists, so nothing changes
    assert app.reached("ox", {}, "a", "b") == ["b"]
    app.unbind("a", "ox", STOP)
    app.bind("a", "ox", STOP)
    assert app.reached("ox", {}, "a", "b") == ["a"]


# -- queues that are deleted -------------------------------------------------------------------------------------------


def test_a_deleted_queue_loses_its_bindings(app: Application) -> None:
    app.bind("a", "ox")
    app.bind("b", "ox")
    app.send(app.deleting_queue("a"))
    app.expect("Queue.DeleteOk")
    app.queues("a")
    assert app.reached("ox", {}, "a", "b") == ["b"]
    app.bind("a", "ox")
    assert app.reached("ox", {}, "a", "b") == ["a", "b"]


@pytest.mark.parametrize("how", ["deleted", "expired"])
def test_a_queue_deleted_on_the_broker_loses_its_bindings(
    sidecar: Sidecar, app: Application, outside: Outside, how: str
) -> None:
    if how == "expired":
        outside.make_queue("brief", x_expires=500)
    else:
        outside.make_queue("brief")
    app.bind("brief", "ox")
    app.bind("b", "ox")
    assert app.reached("ox", {}, "b") == ["b"]
    if how == "deleted":
        outside.delete_queue("brief")

    until(lambda: declared(sidecar, outside.vhost) == {"ox": 1}, seconds=10)
    outside.make_queue("brief")
    assert app.reached("ox", {}, "brief", "b") == ["b"]


@pytest.mark.parametrize("how", ["exclusive", "auto_delete"])
def test_a_queue_declared_repeatedly_is_bound_each_time(
    sidecar: Sidecar, vhost: str, app: Application, how: str
) -> None:
    for number in range(3):  # well within one refresh interval
        with Application(sidecar.port, vhost) as owner:
            tag = commands.Basic.Consume(queue="brief", no_ack=True)
            frames = [
                method(1, commands.Queue.Declare(queue="brief", exclusive=how == "exclusive", auto_delete=True)),
                owner.binding("brief", "ox", {"x-?hkex": "x"}),
                owner.binding("brief", "ox", {"x-?hkex": "y"}),
                method(1, tag),
            ]
            owner.send(*frames)
            for name in ("Queue.DeclareOk", "Queue.BindOk", "Queue.BindOk", "Basic.ConsumeOk"):
                owner.expect(name)
            assert app.send_settled("ox", "k", {"x": 1}, b"%d" % number).acked
            assert owner.delivery().body == b"%d" % number
            owner.close()


def test_a_queue_declared_again_on_one_connection_is_bound_again(app: Application, outside: Outside) -> None:
    app.bind("a", "ox", {"x-?hkv= n": 1})
    for number in range(2, 5):
        outside.delete_queue("a")
        app.send(
            method(1, commands.Queue.Declare(queue="a", durable=True)), app.binding("a", "ox", {"x-?hkv= n": number})
        )
        app.expect("Queue.DeclareOk")
        app.expect("Queue.BindOk")
        assert app.reached("ox", {"n": number}, "a") == ["a"]


def test_pipelined_methods_take_effect_in_order(app: Application) -> None:
    """Binds, an unbind, a publish and a declare, all sent before the first reply."""
    frames = [app.binding(queue, "ox", {"x-?hkv= n": n}) for n in range(300) for queue in ("a", "b")]
    app.send(*frames, app.unbinding("a", "ox", {"x-?hkv= n": 299}))
    app.publish("ox", "k", {"n": 299}, b"1")
    app.publish("ox", "k", {"n": 298}, b"2")
    app.send(app.binding("a", "ox", {"x-?hkv= n": 299}))
    app.publish("ox", "k", {"n": 299}, b"3")
    for _ in frames:
        app.expect("Queue.BindOk")
    app.expect("Queue.UnbindOk")
    acks = bound = 0
    while acks < 3:
        frame = app.expect("Basic.Ack", "Queue.BindOk")
        bound += frame.name == "Queue.BindOk"
        if frame.name == "Basic.Ack":
            tag = frame.arguments["delivery_tag"]
            acks = max(acks, int(str(tag))) if frame.arguments["multiple"] else acks + 1
    assert bound == 1
    assert [[message.body for message in app.take(queue)] for queue in ("a", "b")] == [[b"2", b"3"], [b"1", b"2", b"3"]]


def test_an_exchange_deleted_and_declared_again_after_pipelined_binds_has_none_of_them(
    app: Application,
) -> None:
    """All methods are sent before the first reply; those after the delete concern a new exchange."""
    count = 40
    binds = [app.binding(queue, "ox", {"x-?hkv= n": n}) for n in range(count) for queue in ("a", "b")]
    app.send(
        *binds,
        app.deleting("ox"),
        app.declaring("ox", {"max-payload-size": 4}),
        app.binding("a", "ox", {"x-?hkv= n": 7}),
        app.deleting("ox"),
        app.declaring("ox", {"max-payload-size": 3}),
        app.binding("b", "ox", {"x-?hkv= n": 7}),
    )
    app.publish("ox", "k", {"n": 7}, b"123")
    app.publish("ox", "k", {"n": 8}, b"123")
    expected = ["Queue.BindOk"] * len(binds)
    for _ in range(2):
        expected += ["Exchange.DeleteOk", "Exchange.DeclareOk", "Queue.BindOk"]
    for name in expected:
        app.expect(name)
    app.settle_all(2)
    assert [[message.body for message in app.take(queue)] for queue in ("a", "b")] == [[], [b"123"]]
    app.publish("ox", "k", body=b"1234")
    assert app.closed().text == "PRECONDITION_FAILED - Max size payload hit."
    app.open(confirm=True)
    app.unbind("b", "ox", {"x-?hkv= n": 7})
    app.delete("ox", if_unused=True)


# -- exchanges bound to exchanges --------------------------------------------------------------------------------------


def test_an_open_exchange_bound_to_an_open_one_is_evaluated_once_for_a_message(app: Application) -> None:
    app.exchange("next")
    app.chain("next", "ox", {"x-?hkv= n": 1})
    app.chain("next", "ox", {"x-?hkex": "n"})
    app.chain("ox", "next")
    app.bind("a", "next", {"x-?hkv= more": 1})
    app.bind("b", "ox")
    assert app.reached("ox", {"n": 1, "more": 1}, "a", "b") == ["a", "b"]
    assert app.reached("ox", {"n": 1}, "a", "b") == ["b"]
    assert app.reached("next", {"more": 1}, "a", "b") == ["a", "b"]
    app.unchain("next", "ox", {"x-?hkv= n": 1})
    app.unchain("next", "ox", {"x-?hkex": "n"})
    assert app.reached("ox", {"n": 1, "more": 1}, "a", "b") == ["b"]


@pytest.fixture(scope="module")
def free(broker: Broker) -> Iterator[Sidecar]:
    """A sidecar that permits clients' bindings whose destinations messages choose."""
    with Sidecar(broker, settings={"declared": {"client_routes": "any"}}) as running:
        yield running


@pytest.fixture
def anyone(free: Sidecar, vhost: str) -> Iterator[Application]:
    with Application(free.port, vhost) as made:
        made.exchange("ox")
        made.queues("a", "b")
        yield made


def test_an_open_exchange_that_a_message_chooses_reaches_its_destinations_with_the_first_message(
    anyone: Application,
) -> None:
    app = anyone
    app.queues("c", "d")
    app.exchange("second")
    app.exchange("third")
    app.bind("a", "ox", {"x-msg-adde-ontrue": ""})
    app.bind("b", "second", {"x-msg-adde-ontrue": "", "x-?hkex": "further"})
    app.bind("b", "second")
    app.bind("c", "third", {"x-msg-addq-ontrue": ""})
    assert app.reached("ox", {"x-adde-ontrue": "second"}, "a", "b") == ["a", "b"]
    chosen = {"x-adde-ontrue": ["second", "third"], "x-addq-ontrue": "d", "further": True}
    assert app.reached("ox", chosen, "a", "b", "c", "d") == ["a", "b", "c", "d"]


def test_chosen_open_exchanges_are_reached_one_after_another(anyone: Application) -> None:
    app = anyone
    app.queues("c")
    app.exchange("second")
    app.exchange("third")
    app.bind("a", "ox", {"x-adde-ontrue": "second", "x-delq-ontrue": "a"})
    app.bind("b", "second", {"x-msg-adde-ontrue": ""})
    app.bind("b", "third", {"x-msg-addq-ontrue": ""})
    assert app.reached("ox", {"x-adde-ontrue": "third", "x-addq-ontrue": "c"}, "a", "b", "c") == ["b", "c"]


@pytest.mark.parametrize("chained_first", [True, False], ids=["bound after the exchanges", "bound before them"])
def test_an_exclusive_queue_bound_through_two_open_exchanges_gets_messages_of_the_first(
    app: Application, chained_first: bool
) -> None:
    app.exchange("behind")
    app.declare("mine", exclusive=True)
    if chained_first:
        app.chain("behind", "ox", {"x-?hkex": "on"})
    app.bind("mine", "behind", {"x-?hkex": "n"})
    if not chained_first:
        app.chain("behind", "ox", {"x-?hkex": "on"})
    assert app.reached("ox", {"on": 1, "n": 1}, "mine") == ["mine"]
    assert app.reached("ox", {"on": 1}, "mine") == []
    assert app.reached("behind", {"n": 1}, "mine") == ["mine"]


def test_a_standard_exchange_bound_to_an_open_one_gets_the_original_key(app: Application, outside: Outside) -> None:
    outside.make_exchange("real", "topic")
    app.bind("a", "real", key="one.*")
    app.chain("real", "ox", {"x-?hkex": "x"})
    for key, reached in (("one.two", ["a"]), ("two", [])):
        assert app.send_settled("ox", key, {"x": 1}).acked
        assert [queue for queue in ("a", "b") for _ in app.take(queue)] == reached
    app.send_settled("ox", "one.two", {"x": 1})
    assert [message.key for message in app.take("a")] == ["one.two"]
    app.unchain("real", "ox", {"x-?hkex": "x"})
    assert app.reached("ox", {"x": 1}, "a", key="one.two") == []


@pytest.mark.parametrize("source", ["amq.direct", "real"])
def test_binding_an_open_exchange_to_a_standard_one_is_refused_with_the_reason(
    sidecar: Sidecar, vhost: str, app: Application, outside: Outside, source: str
) -> None:
    outside.make_exchange("real", "fanout")
    app.send(app.chaining("ox", source, key="k"))
    close = app.closed(0)
    assert (close.code, close.method) == (540, (40, 30))
    assert close.text.startswith("NOT_IMPLEMENTED - exchange 'ox' is evaluated by the proxy, but the broker would")
    assert outside.bindings(source) == set()


def test_a_bind_from_a_missing_exchange_gets_the_brokers_404(app: Application) -> None:
    close = app.refused(app.chaining("ox", "nowhere"))
    assert (close.code, close.method) == (404, (40, 30))
    assert close.text.startswith("NOT_FOUND - no exchange 'nowhere'")
    assert app.reached("ox", None) == []


def test_binds_between_standard_exchanges_are_forwarded(app: Application, outside: Outside) -> None:
    outside.make_exchange("one", "fanout")
    outside.make_exchange("two", "fanout")
    app.chain("two", "one")
    app.bind("a", "two")
    assert app.reached("one", {}, "a") == ["a"]
    app.unchain("two", "one")
    assert app.reached("one", {}, "a") == []


@pytest.mark.parametrize("kind", ["x-open", "fanout"])
def test_bindings_to_a_deleted_exchange_are_removed(app: Application, kind: str) -> None:
    app.exchange("next", kind=kind)
    app.chain("next", "ox")
    app.bind("a", "next")
    assert app.reached("ox", {}, "a") == ["a"]
    app.delete("next")
    assert app.send_settled("ox", "k", {}, mandatory=True).returned
    app.exchange("next", kind=kind)
    app.bind("a", "next")
    assert app.reached("ox", {}, "a") == []


def test_a_queue_reached_both_ways_has_one_copy(app: Application, outside: Outside) -> None:
    outside.make_exchange("copies", "fanout")
    app.bind("a", "copies")
    app.bind("a", "ox")
    app.chain("copies", "ox")
    assert app.reached("ox", {}, "a") == ["a"]
