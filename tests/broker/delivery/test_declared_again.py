"""Queues and exchanges get messages as soon as they are declared through the sidecar, for the first time or again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.delivery.applications import Application
from tests.broker.delivery.site import Site

RULES = """
queues: [a]
exchanges:
  - name: jobs
    bindings: [{queue: late}]
"""
#: The sidecar learns of changes only from the declarations that pass through it.
SETTINGS = {"inventory": {"refresh": "1h"}}


@pytest.fixture
def app(site: Site, delivery: str) -> Iterator[Application]:
    with Application(site.sidecar.port, site.vhost, delivery=delivery) as made:
        made.exchange("ox")
        made.queues("late")
        yield made
        made.delete("ox")
        made.send(made.deleting_queue("late"))
        made.expect("Queue.DeleteOk")


@pytest.mark.parametrize(
    "route",
    [
        {"x-addq-ontrue": "late"},
        {"x-addqre-ontrue": "^late$"},
        {"x-adde-ontrue": "behind"},
        {"x-msg-adde-ontrue": ""},
    ],
    ids=str,
)
@pytest.mark.parametrize("bound", [False, True])
def test_a_destination_of_a_clients_route_that_was_deleted_elsewhere_is_reached_when_declared_again(
    site: Site, app: Application, route: dict[str, str], bound: bool
) -> None:
    """`bound`: whether a client has also bound the destination. The broker has deleted this binding."""
    table = {"x-adde-ontrue": "behind"}
    app.exchange("behind", kind="fanout")
    app.bind("late", "behind")
    app.bind("a", "ox", route)
    if bound:
        app.chain("behind", "ox", {"x-?hkex": "never"})
        app.bind("late", "ox", {"x-?hkex": "never"})
    assert app.reached("ox", table, "a", "late") == ["a", "late"]
    site.delete_queue("late")
    site.delete_exchange("behind")
    app.queues("late")
    app.exchange("behind", kind="fanout")
    app.bind("late", "behind")
    assert app.reached("ox", table, "a", "late") == ["a", "late"]
    app.delete("behind")
