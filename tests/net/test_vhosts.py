from __future__ import annotations

from proxy.net.vhosts import ControlPlane, Vhosts
from proxy.relay.connection_state import NO_INVENTORY
from proxy.relay.counters import Counters
from proxy.relay.publish.plan import Sources
from proxy.relay.vhost import VhostState
from tests.net.stage import VHOST, NoControl, open_exchange

SOURCES = Sources(lambda: 0.0, lambda: 0.0, lambda below: 0)


def vhosts(*states: VhostState, control: ControlPlane | None = None) -> Vhosts:
    return Vhosts(states, control, Counters(), SOURCES)


def test_a_named_virtual_host_has_the_plans_of_its_rules() -> None:
    found = vhosts(open_exchange(b"x", b"q"))
    assert found.plans(VHOST).find(b"x", b"") is not None
    assert found.plans(VHOST).find(b"other", b"") is None


def test_a_virtual_host_that_no_rules_name_has_plans_without_exchanges_and_keeps_them() -> None:
    found = vhosts(open_exchange(b"x", b"q"))
    elsewhere = found.plans("elsewhere")
    assert elsewhere.find(b"x", b"") is None
    assert elsewhere.state.name == "elsewhere"
    assert found.plans("elsewhere") is elsewhere


def test_a_virtual_host_that_the_control_plane_found_by_itself_has_the_plans_of_what_it_knows() -> None:
    control = NoControl()
    control.state = open_exchange(b"x", b"q")
    found = vhosts(control=control)
    assert found.plans(VHOST).find(b"x", b"") is not None
    assert found.plans(VHOST).state is control.state


def test_without_a_control_plane_nobody_is_told_anything() -> None:
    found = vhosts()
    assert found.control is None
    assert found.inventory(VHOST) is NO_INVENTORY


async def test_what_a_relay_says_reaches_the_control_plane_with_its_virtual_host() -> None:
    control = NoControl()
    control.wanted.add(b"q")
    inventory = vhosts(open_exchange(b"x", b"q"), control=control).inventory(VHOST)
    assert inventory.interested(b"q")
    assert not inventory.interested(b"other")
    inventory.queue_declared(b"q", True)
    inventory.queue_deleted(b"q")
    inventory.changed(b"x")
    assert control.asked == [("declared", b"q", True), ("deleted", b"q"), ("changed", b"x")]
