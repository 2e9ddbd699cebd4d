from __future__ import annotations

from proxy.broker.connection import ControlSettings
from proxy.broker.reconcile.vhost_loop import VhostTopology
from proxy.broker.topology import status_of
from tests.broker.clients import declare_here, stored
from tests.broker.world import queues, state


def test_what_clients_declared_and_bound_is_counted() -> None:
    known = state("/", {"documents": queues("a"), "ruled": queues("a")})
    vhost = VhostTopology(ControlSettings((), "guest", "guest"), known, (), None)
    declare_here(known, "ox", stored("ox", "a"), stored("ox", "b"))
    declare_here(known, "lonely")
    known.add_binding(stored("ruled", "b"))
    vhost.health.fault = "refused"
    status = status_of(vhost)
    assert status.declared == {"lonely": 0, "ox": 2, "ruled": 1}
    assert (status.ready, status.fault) == (False, "refused")
