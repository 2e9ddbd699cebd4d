"""Exchanges of type x-open that applications declare, on a RabbitMQ without that type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from oxproxy.amqp.method_frames import queue_declare
from tests.broker.delivery.applications import Application, entries
from tests.broker.delivery.site import standing, vhost_status
from tests.broker.observed import Outside
from tests.producer import Closed, until
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar


@pytest.fixture
def app(sidecar: Sidecar, vhost: str) -> Iterator[Application]:
    with Application(sidecar.port, vhost) as made:
        yield made


def on_broker(outside: Outside, name: str) -> dict[str, Any] | None:
    listed = outside.broker.api("GET", f"exchanges/{outside.vhost}")
    return next((exchange for exchange in listed if exchange["name"] == name), None)


# -- declare -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [("durable",), ("auto_delete",), ("durable", "internal")], ids="+".join)
def test_the_carrier_has_the_declared_flags_and_arguments(
    sidecar: Sidecar, outside: Outside, flags: Sequence[str]
) -> None:
    table = {"max-payload-size": 10, "mine": "kept"}
    with Application(sidecar.port, outside.vhost) as app:
        durable, auto_delete, internal = (name in flags for name in ("durable", "auto_delete", "internal"))
        app.exchange("ox", table, durable=durable, auto_delete=auto_delete, internal=internal)
    carrier = outside.exchange("ox")
    assert carrier["type"] == ("topic" if outside.broker.version < (3, 13) else "direct")
    assert {name for name in ("durable", "auto_delete", "internal") if carrier[name]} == set(flags)
    arguments = carrier["arguments"]
    assert (arguments["x-open-exchange"], arguments["max-payload-size"], arguments["mine"]) == (True, 10, "kept")


def test_arguments_without_effect_are_accepted_as_by_the_plugin(app: Application) -> None:
    app.exchange("ox", {"max-payload-sise": 9, "x-owner": "billing"})
    app.queues("a")
    app.bind("a", "ox")
    assert app.reached("ox", (), "a") == ["a"]


# -- declare again -----------------------------------------------------------------------------------------------------


def test_a_declare_is_compared_with_the_declare_through_another_sidecar(
    broker: Broker, sidecar: Sidecar, vhost: str
) -> None:
    with Sidecar(broker, settings={"inventory": {"refresh": "1h"}}) as second_sidecar:
        with Application(second_sidecar.port, vhost) as second:
            second.queues("there")
        with Application(sidecar.port, vhost) as app:
            app.exchange("ox", {"max-payload-size": 100})
        with Application(second_sidecar.port, vhost) as second:
            assert "inequivalent arg 'max-payload-size'" in second.refused(second.declaring("ox")).text
            second.exchange("ox", {"max-payload-size": 100})


def test_an_open_exchange_is_not_direct_and_a_direct_exchange_is_not_open(app: Application, outside: Outside) -> None:
    where = f"in vhost '{outside.vhost}'"
    app.exchange("ox")
    app.exchange("real", kind="direct")
    for name in ("real", "amq.direct"):
        close = app.refused(app.declaring(name))
        assert close.text == (
            f"PRECONDITION_FAILED - inequivalent arg 'type' for exchange '{name}' {where}: "
            "received 'x-open' but current is 'direct'"
        )


@pytest.mark.parametrize(("before", "now"), [(6, 5), (6, None), (None, 5), (6, 2**40)])
def test_an_inequivalent_number_is_refused_with_the_text_of_the_broker(
    app: Application, before: int | None, now: int | None
) -> None:
    """The broker itself compares numbers of queues only."""
    filters = [{} if size is None else {"max-payload-size": size} for size in (before, now)]
    app.exchange("ox", filters[0])
    text = app.refused(app.declaring("ox", filters[1])).text
    limits = [entries({} if size is None else {"x-max-length": size}) for size in (before, now)]
    app.send(queue_declare(1, b"q", limits[0]))
    app.expect("Queue.DeclareOk")
    of_queue = app.refused(queue_declare(1, b"q", limits[1])).text
    assert text.replace("max-payload-size", "x-max-length").replace("exchange 'ox'", "queue 'q'") == of_queue


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("amq.mine", "exchange name 'amq.mine' contains reserved prefix 'amq.*'"),
        ("", "operation not permitted on the default exchange"),
    ],
)
def test_the_brokers_own_names_are_refused_with_its_texts(app: Application, name: str, text: str) -> None:
    close = app.refused(app.declaring(name))
    assert (close.code, close.method, close.text) == (403, (40, 10), f"ACCESS_REFUSED - {text}")


def test_no_client_takes_over_an_exchange_of_the_broker(sidecar: Sidecar, vhost: str) -> None:
    with Application(sidecar.port, vhost) as app:
        app.queues("q")
        for name, code in (("amq.direct", 406), ("", 403)):
            assert app.refused(app.declaring(name)).code == code
        app.bind("q", "amq.direct", {}, "k")
        assert app.reached("amq.direct", {}, "q", key="k") == ["q"]
        assert app.reached("", {}, "q", key="q") == ["q"]


# -- passive declare, delete -------------------------------------------------------------------------------------------


def test_a_passive_declare_checks_whether_the_exchange_exists(app: Application) -> None:
    assert app.refused(app.declaring("ox", passive=True)).code == 404
    app.exchange("ox", {"max-payload-size": 100})
    app.exchange("ox", passive=True)
    app.delete("ox")
    close = app.refused(app.declaring("ox", passive=True))
    assert (close.code, close.method) == (404, (40, 10))


def test_a_delete_with_if_unused_keeps_a_bound_exchange(app: Application, outside: Outside) -> None:
    app.exchange("ox")
    app.queues("a")
    app.bind("a", "ox")
    close = app.refused(app.deleting("ox", if_unused=True))
    assert (close.code, close.method) == (406, (40, 20))
    assert close.text == f"PRECONDITION_FAILED - exchange 'ox' in vhost '{outside.vhost}' in use"
    assert app.reached("ox", None, "a") == ["a"]
    app.unbind("a", "ox")
    app.delete("ox", if_unused=True)
    assert on_broker(outside, "ox") is None
    assert app.refused(app.declaring("ox", passive=True)).code == 404


def test_an_auto_delete_exchange_is_deleted_with_its_last_binding(app: Application, outside: Outside) -> None:
    app.exchange("ox", auto_delete=True)
    app.queues("a", "b")
    app.exchange("ox", passive=True)  # it is not deleted before something was bound
    app.bind("a", "ox")
    app.bind("b", "ox")
    app.unbind("a", "ox")
    assert app.reached("ox", None, "a", "b") == ["b"]
    app.unbind("b", "ox")
    assert app.refused(app.declaring("ox", passive=True)).code == 404
    assert on_broker(outside, "ox") is None


@pytest.mark.parametrize("route", [{}, {"x-addq-ontrue": "b"}], ids=str)
def test_an_auto_delete_exchange_is_deleted_with_the_queue_of_its_last_binding(
    app: Application, outside: Outside, route: dict[str, str]
) -> None:
    """`route`: arguments of an earlier binding."""
    app.exchange("ox", auto_delete=True)
    app.queues("a", "b")
    app.bind("b", "ox", route)
    app.bind("a", "ox")
    app.unbind("b", "ox", route)
    outside.delete_queue("a")

    def gone() -> bool:
        app.send(app.declaring("ox", passive=True))
        frame = app.frame()
        if frame.name == "Exchange.DeclareOk":
            return False
        assert frame.name == "Channel.Close"
        return True

    until(gone, seconds=5)


def test_a_deleted_exchange_loses_its_bindings(app: Application, outside: Outside) -> None:
    app.exchange("ox")
    app.queues("a")
    app.bind("a", "ox", {"x-?hkex": "x"})
    app.bind("a", "ox")
    app.delete("ox")
    app.delete("ox")  # as in RabbitMQ, deleting a missing exchange is not an error
    app.exchange("ox")
    assert app.send_settled("ox", "k", {"x": 1}, mandatory=True).returned
    assert app.take("a") == []
    app.delete("ox")
    app.publish("ox", "k")
    assert app.closed().code == 404


def test_unroutable_messages_go_to_the_alternate_exchange(app: Application, outside: Outside) -> None:
    outside.make_exchange("spare", "fanout")
    app.queues("a", "fallback")
    app.bind("fallback", "spare")
    app.exchange("ox", {"alternate-exchange": "spare", "min-payload-size-silent": 2})
    app.bind("a", "ox", {"x-?hkex": "known"})
    assert app.reached("ox", {"known": 1}, "a", "fallback") == ["a"]
    settled = app.send_settled("ox", "key", {"other": 1}, mandatory=True)
    assert settled == (True, [])
    [message] = app.take("fallback")
    assert message.key == "key"
    assert app.send_settled("ox", "key", {"known": 1}, b"1").acked  # dropped silently: the alternate exchange gets it
    assert [len(app.take(queue)) for queue in ("a", "fallback")] == [0, 1]


def test_an_exchange_is_deleted_after_the_replies_to_binds_of_the_control_plane(
    broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """RabbitMQ 4.3 keeps a binding that is created while its exchange is deleted.

    The next exchange with this name has the binding, but does not route by it.
    """
    settings = {"inventory": {"refresh": "1h"}, "declared": {"client_routes": "any"}}
    folder = tmp_path_factory.mktemp("deleted")
    with standing(broker, folder, "queues: [a]", settings, lambda outside: outside.make_queue("b")) as site:
        control = site.upstream()
        with Application(site.sidecar.port, site.vhost) as app:
            upstream = site.upstream()
            app.exchange("ox")
            app.bind("a", "ox", {"x-addqre-ontrue": "^b$"})
            control.reading.clear()
            before = len(control.named("Queue.Bind"))
            publisher = site.producer()
            publisher.publish("ox", "k", {}, b"body")
            until(lambda: len(control.named("Queue.Bind")) > before)
            app.send(app.deleting("ox"))
            app.open(2)  # the sidecar has read the delete
            assert not upstream.named("Exchange.Delete")
            control.reading.set()
            app.expect("Exchange.DeleteOk")
            with suppress(Closed):  # the publish may arrive after the exchange has been deleted
                publisher.settle()
            site.bodies("a", "b")  # empties the queues
            app.exchange("ox")
            app.bind("a", "ox", {"x-addqre-ontrue": "^b$"})
            assert app.reached("ox", (), "a", "b") == ["a", "b"]


# -- permissions -------------------------------------------------------------------------------------------------------


def test_declaring_needs_the_clients_own_permission(broker: Broker, sidecar: Sidecar, outside: Outside) -> None:
    with broker.temporary_user() as name:
        broker.grant(name, outside.vhost, configure="^mine$", write="", read="")
        with Application(sidecar.port, outside.vhost, name) as app:
            app.exchange("mine")
            close = app.refused(app.declaring("other"))
            assert close.code == 403
            assert "access to exchange 'other'" in close.text
            assert on_broker(outside, "other") is None
        with Application(sidecar.port, outside.vhost) as app:
            app.exchange("other", {"max-payload-size": 5})  # the refused declare has had no effect


def test_foreign_bindings_are_no_longer_reported_after_their_exchange_is_deleted(
    sidecar: Sidecar, outside: Outside
) -> None:
    def foreign() -> object:
        return vhost_status(sidecar, outside.vhost)["foreign"]

    outside.make_queues("a")
    with Application(sidecar.port, outside.vhost) as app:
        app.exchange("ox")
        outside.bind("ox", "a", "foreign.key")
        until(lambda: foreign() == {"ox": ["queue a with key 'foreign.key'"]})
        app.delete("ox")
        until(lambda: foreign() == {})


def test_only_rules_files_can_request_queue_delivery(app: Application, outside: Outside) -> None:
    close = app.refused(app.declaring("ox", {"x-delivery": "queue"}))
    assert (close.code, close.method) == (406, (40, 10))
    assert "x-delivery: expected carrier" in close.text
    assert on_broker(outside, "ox") is None
    app.exchange("ox", {"x-delivery": "carrier"})
