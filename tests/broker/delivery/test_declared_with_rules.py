"""Rules files and applications on one exchange, and the destinations that applications may reach."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.delivery.applications import Application, declared
from tests.broker.delivery.site import Site, standing
from tests.rabbitmq import Broker

RULES = """
queues: [a, b, secret, secret.too]
exchanges:
  - name: filed
    arguments: {max-payload-size: 100}
    bindings:
      - {queue: a, arguments: {"x-?hkv= to": a}}
      - {queue: a, arguments: {"x-?hkv= to": tie, x-stop-ontrue: ""}}
      - {queue: secret, arguments: {"x-?hkv= to": secret}}
      - {exchange: amq.fanout, arguments: {"x-?hkv= to": copies}}
  - name: routed
    type: topic
    bindings:
      - {queue: a, routing_key: "a.#"}
  - name: keyed
    type: direct
    bindings:
      - {queue: a, routing_key: a}
"""
ALL = ("a", "b", "secret", "secret.too")
TIE = {"x-?hkv= to": "tie", "x-stop-ontrue": ""}


@pytest.fixture(scope="module")
def running(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with standing(broker, folder, RULES, {"inventory": {"refresh": "200ms"}}) as site:
        yield site


@pytest.fixture
def site(running: Site) -> Iterator[Site]:
    yield running
    for queue in ALL:
        running.take(queue)
    running.tidy()


@pytest.fixture
def app(site: Site) -> Iterator[Application]:
    with Application(site.sidecar.port, site.vhost) as made:
        yield made


def restart(site: Site, *connected: Application) -> None:
    """Restart the sidecar, after closing the connections that would not reply to its Connection.Close."""
    for application in connected:
        application.disconnect()
    site.sidecar.stop()
    site.sidecar.start()


# -- one exchange, declared by the file --------------------------------------------------------------------------------


def test_bindings_of_files_and_applications_are_used_and_the_file_comes_first_in_ties(
    site: Site, app: Application
) -> None:
    app.bind("b", "filed", {"x-?hkv= to": "a"})
    app.bind("b", "filed", TIE)
    assert app.reached("filed", {"to": "a"}, *ALL) == ["a", "b"]
    assert app.reached("filed", {"to": "tie"}, *ALL) == ["a"]
    app.unbind("b", "filed", TIE)
    app.unbind("b", "filed", {"x-?hkv= to": "a"})
    assert app.reached("filed", {"to": "a"}, *ALL) == ["a"]


def test_applications_cannot_unbind_what_the_file_binds(app: Application) -> None:
    close = app.refused(app.unbinding("a", "filed", {"x-?hkv= to": "a"}))
    assert (close.code, close.method) == (403, (50, 50))
    assert close.text == "ACCESS_REFUSED - the binding to 'a' belongs to a rules file of the proxy"
    app.bind("a", "filed", {"x-?hkv= to": "a"})  # it exists already
    assert app.refused(app.unbinding("a", "filed", {"x-?hkv= to": "a"})).code == 403
    close = app.refused(app.unchaining("amq.fanout", "filed", {"x-?hkv= to": "copies"}))
    assert (close.code, close.method) == (403, (40, 40))
    assert app.reached("filed", {"to": "a"}, *ALL) == ["a"]


def test_applications_cannot_delete_what_the_file_declares(app: Application) -> None:
    close = app.refused(app.deleting("filed"))
    assert (close.code, close.method) == (403, (40, 20))
    assert close.text == "ACCESS_REFUSED - exchange 'filed' is declared by a rules file of the proxy"
    assert app.reached("filed", {"to": "a"}, *ALL) == ["a"]


def test_a_line_break_in_a_name_which_the_broker_removes_leads_around_no_rule(app: Application) -> None:
    assert app.refused(app.deleting("fi\nled")).code == 403
    assert app.refused(app.unbinding("a", "filed\r\n", {"x-?hkv= to": "a"})).code == 403
    assert "inequivalent arg" in app.refused(app.declaring("\nfiled", {"max-payload-size": 99})).text
    close = app.refused(app.binding("b", "fil\ned", {}, "k"))
    assert "Forbidden declaration of binding's routing key" in close.text
    app.bind("\rb", "filed\n", {"x-?hkv= to": "b"})
    assert app.reached("filed", {"to": "b"}, *ALL) == ["b"]
    app.unbind("b", "filed", {"x-?hkv= to": "b"})
    assert app.reached("filed", {"to": "b"}, *ALL) == []
    assert app.reached("filed", {"to": "a"}, *ALL) == ["a"]


def test_the_declaration_of_the_file_wins(app: Application) -> None:
    app.exchange("filed", {"max-payload-size": 100})
    assert "inequivalent arg 'max-payload-size'" in app.refused(app.declaring("filed", {"max-payload-size": 99})).text


@pytest.mark.parametrize(("exchange", "key", "other"), [("routed", "b.*", "b.c"), ("keyed", "b", "b")])
def test_applications_bind_to_exchanges_of_other_types_that_are_evaluated_here(
    site: Site, app: Application, exchange: str, key: str, other: str
) -> None:
    app.bind("b", exchange, {"n": 1}, key)
    app.bind("b", exchange, {"n": 2}, key)
    assert app.reached(exchange, {}, *ALL, key=other) == ["b"]
    assert app.reached(exchange, {}, *ALL, key="a") == ["a"]
    assert app.refused(app.unbinding("b", exchange, {"n": 3}, key)).text.endswith("binding arguments do not match")
    restart(site, app)
    with Application(site.sidecar.port, site.vhost) as after:
        assert after.reached(exchange, {}, *ALL, key=other) == ["b"]
        after.unbind("b", exchange, {"n": 1}, key)
        assert after.reached(exchange, {}, *ALL, key=other) == ["b"]
        after.unbind("b", exchange, {"n": 2}, key)
        assert after.reached(exchange, {}, *ALL, key=other) == []


def test_a_restart_keeps_bindings_of_files_and_applications(site: Site, app: Application) -> None:
    app.bind("b", "filed", {"x-?hkv= to": "a"})
    restart(site, app)
    assert declared(site.sidecar, site.vhost) == {"filed": 1}
    with Application(site.sidecar.port, site.vhost) as after:
        assert after.reached("filed", {"to": "a"}, *ALL) == ["a", "b"]
        assert after.refused(after.unbinding("a", "filed", {"x-?hkv= to": "a"})).code == 403
        after.unbind("b", "filed", {"x-?hkv= to": "a"})


# -- destinations of a client's routes ---------------------------------------------------------------------------------


@pytest.fixture
def limited(site: Site) -> Iterator[Application]:
    """An application that may publish and bind the queues a and b, but neither of the secret queues."""
    with site.broker.temporary_user() as name:
        site.broker.grant(name, site.vhost, configure="^mine$", write="^(a|b|mine|filed|amq.default)$", read=".*")
        with Application(site.sidecar.port, site.vhost, name) as made:
            yield made


@pytest.fixture(params=["mine", "filed"])
def exchange(request: pytest.FixtureRequest, site: Site, limited: Application) -> Iterator[str]:
    """An exchange that a client declared, or one of the rules file."""
    if request.param == "mine":
        limited.exchange("mine")
    yield str(request.param)
    if request.param == "mine":
        with Application(site.sidecar.port, site.vhost) as after:
            after.delete("mine")


def test_a_route_that_names_what_the_client_may_not_bind_is_refused(
    site: Site, app: Application, limited: Application, exchange: str
) -> None:
    for way in ("ontrue", "onfalse"):
        arguments = {"x-?hkv= to": "x", f"x-addq-{way}": ["a", "secret"]}
        close = limited.refused(limited.binding("b", exchange, arguments))
        assert (close.code, close.method) == (403, (50, 20))
        assert "access to queue 'secret'" in close.text
    assert app.reached(exchange, {"to": "x"}, *ALL) == []
    assert ("queue", b"secret.too") not in site.bound(exchange) if exchange in carriers(site) else True


def carriers(site: Site) -> set[str]:
    listed = site.broker.api("GET", f"exchanges/{site.vhost}?columns=name")
    return {each["name"] for each in listed}


@pytest.mark.parametrize(
    "route",
    [{"x-addqre-ontrue": "^a$"}, {"x-add1qre-onfalse": "^a$"}, {"x-msg-addq-ontrue": ""}, {"x-msg-destq-rk": ""}],
    ids=str,
)
def test_a_route_by_pattern_or_by_message_is_refused(
    limited: Application, exchange: str, route: dict[str, str]
) -> None:
    close = limited.refused(limited.binding("b", exchange, {"x-?hkv= to": "x", **route}))
    assert (close.code, close.method) == (403, (50, 20))
    assert "declared.client_routes: any" in close.text
    assert "a rules file" in close.text


def test_a_route_that_names_what_the_client_may_bind_is_used_through_every_sidecar(
    site: Site, app: Application, limited: Application, exchange: str
) -> None:
    arguments = {"x-?hkv= to": "x", "x-addq-ontrue": "a", "x-delqre-ontrue": "^secret"}
    limited.bind("b", exchange, arguments)
    assert app.reached(exchange, {"to": "x"}, *ALL) == ["a", "b"]
    restart(site, app, limited)
    with Application(site.sidecar.port, site.vhost) as sender:
        assert sender.reached(exchange, {"to": "x"}, *ALL) == ["a", "b"]
        sender.unbind("b", exchange, arguments)
        assert sender.reached(exchange, {"to": "x"}, *ALL) == []


def test_a_route_to_a_queue_that_does_not_exist_is_refused_as_by_the_broker(app: Application) -> None:
    close = app.refused(app.binding("b", "filed", {"x-?hkv= to": "x", "x-addq-ontrue": "later"}))
    assert (close.code, close.method) == (404, (50, 20))
    assert "no queue 'later'" in close.text


def test_with_client_routes_any_a_route_reaches_every_queue(
    broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    settings = {"declared": {"client_routes": "any"}}
    with (
        broker.temporary_user() as name,
        standing(broker, folder, RULES, settings) as site,
    ):
        broker.grant(name, site.vhost, configure="^mine$", write="^(b|mine)$", read=".*")
        with Application(site.sidecar.port, site.vhost, name) as app:
            app.exchange("mine")
            app.bind("b", "mine", {"x-?hkex": "x", "x-addq-ontrue": "secret"})
            app.send_settled("mine", "k", {"x": 1})
        assert len(site.next("secret").body) == 4
