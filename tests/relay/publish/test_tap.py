from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from oxproxy.relay.plan.tap import ObservedDecision
from oxproxy.relay.vhost import Delivery, VhostState
from oxproxy.routing.decision import Outcome
from oxproxy.values import Value
from tests.relay.address_table_wire import Linked, to
from tests.relay.wire import REPORT, Wire, chosen, publish, routed, several
from tests.routing.building import NOW


class RecordingTap(list[ObservedDecision]):
    """Records every publish, or those to one exchange."""

    def __init__(self, only: bytes | None = None) -> None:
        super().__init__()
        self._only = only

    def wants(self, vhost: str, exchange: bytes) -> bool:
        return self._only in (None, exchange)

    def observe(self, observed: ObservedDecision) -> None:
        self.append(observed)


def tapped(wire: Wire, only: bytes | None = None) -> RecordingTap:
    tap = RecordingTap(only)
    wire.plans.set_tap(tap)
    return tap


#: by name: the virtual host, and a publish to it
TRAFFIC: dict[str, tuple[Callable[[], VhostState], bytes]] = {
    "routed": (lambda: routed("q"), publish("k")),
    "unrouted": (lambda: routed("q"), publish("k", None)),
    "to another exchange": (lambda: routed("q"), publish("k", to="elsewhere")),
    "to the default exchange": (lambda: routed("q"), publish("q", to="")),
    "queue delivery": (lambda: routed("q", "r", delivery=Delivery.QUEUE), publish("k")),
    "several copies": (lambda: several("a", "b"), publish("k")),
    "passed": (lambda: routed("q", carrier="c", unmatched_pass=True), publish("k", None)),
    "large": (lambda: routed("q"), publish("k", body=bytes(300_000))),
}


@pytest.mark.parametrize("case", TRAFFIC)
@pytest.mark.parametrize("size", [7, 40, 1 << 21])
def test_a_tap_sees_each_publish_once_and_does_not_change_the_output(case: str, size: int) -> None:
    made, message = TRAFFIC[case]
    data = message * 4
    plain, seen = Wire(made()).open(confirm=True), Wire(made()).open(confirm=True)
    tap = tapped(seen)
    out = [b"".join(wire.produce(data[at : at + size]) for at in range(0, len(data), size)) for wire in (plain, seen)]
    assert out[0] == out[1]
    assert len(tap) == 4
    assert counted(seen) == counted(plain)
    assert {publish_seen.header for publish_seen in tap} == {tap[0].header}


def counted(wire: Wire) -> Counter[tuple[bytes, str]]:
    counts = Counter({(exchange, outcome): count for exchange, outcome, count, _ in wire.publishes()})
    counts[b"other", "passed"] += wire.counters.relay("/").publishes_passed
    return counts


def test_a_tap_sees_all_facts_that_rules_can_use() -> None:
    wire = Wire(routed("q")).open()
    tap = tapped(wire)
    wire.produce(publish("k", message_id=b"m", priority=3))
    (observed,) = tap
    facts = observed.facts()
    assert (observed.vhost, observed.exchange, observed.at) == ("/", b"xo", NOW)
    assert (facts.routing_key, facts.headers, facts.body_size_bytes) == (b"k", REPORT, 4)
    assert facts.properties == {"message_id": b"m", "priority": 3}
    assert (observed.decision.outcome, observed.decision.queues) == (Outcome.ROUTED, (b"q",))
    assert observed.raw_headers(frozenset({b"type"})) == [(b"type", b"S\0\0\0\6report")]


def test_a_tapped_message_without_headers_has_none() -> None:
    wire = Wire(routed("q")).open()
    tap = tapped(wire)
    wire.produce(publish("k", None))
    assert (tap[0].facts().headers, tap[0].raw_headers(frozenset({b"type"}))) == ((), [])


def test_a_held_publish_is_tapped_when_it_is_sent() -> None:
    wire = Wire(chosen("late")).open()
    tap = tapped(wire)
    assert wire.produce(publish("late")) == b""
    assert tap == []
    assert wire.control("late")
    assert [seen.routing_key for seen in tap] == [b"late"]


def test_translated_publishes_are_tapped_with_their_original_address() -> None:
    wire, plain = Linked(routed("away")), Linked(routed("away"))
    tap = tapped(wire)
    data = to("in/k") + to("here/q") + to("bad")
    assert wire.produce(data, data) == plain.produce(data, data)
    assert [(seen.exchange, seen.routing_key) for seen in tap[:3]] == [(b"", b"in/k"), (b"", b"here/q"), (b"", b"bad")]
    assert tap[0].decision.exchange == b"xo"
    assert len(tap) == 6


def test_publishes_to_another_broker_are_tapped() -> None:
    wire = Linked()
    tap = tapped(wire)
    wire.produce(to("out/q"), to("out/q"), to("out/q"))
    assert len(tap) == 3
    assert len(wire.remotes) == 3


def test_a_tap_of_one_exchange_sees_only_its_publishes() -> None:
    wire = Wire(routed("q")).open()
    tap = tapped(wire, b"xo")
    wire.produce(publish("k"), publish("k", to="elsewhere"))
    assert [seen.exchange for seen in tap] == [b"xo"]


def test_publishes_to_a_carrier_are_refused_with_a_tap() -> None:
    wire = Wire(routed("q", carrier="carried")).open()
    tap = tapped(wire)
    carbon = ((b"CC", Value("A", (Value("S", b"x.o.p.e.n.x.q.0"),))),)
    wire.produce(publish("k", carbon, to="carried"))
    assert b"reserved" in wire.refused()
    assert tap == []


def test_a_tap_continues_after_rules_are_replaced() -> None:
    wire = Wire(routed("q")).open()
    tap = tapped(wire)
    other = routed("r")
    wire.produce(publish("k"))
    wire.state.swap(other.exchanges, other.router)
    wire.produce(publish("k"))
    wire.control("r")
    assert [seen.decision.queues for seen in tap] == [(b"q",), (b"r",)]
