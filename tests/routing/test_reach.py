from __future__ import annotations

from dataclasses import replace

import pytest

from proxy.routing.bindings.binding import Reach
from proxy.values import EXCHANGE, QUEUE
from tests.routing.building import Plain, decide, draw_last, exchange, facts, many, queue_names, queues, to_queue

_NAMES = queue_names("a", "b", "c")


@pytest.fixture
def reach() -> Reach:
    reach = Reach("client")
    reach.allowed |= {(QUEUE, b"b"), (EXCHANGE, b"e")}
    return reach


@pytest.mark.parametrize(
    ("routes", "headers", "key"),
    [
        ({"x-addq-ontrue": many("b", "c")}, {}, ""),
        ({"x-addqre-ontrue": "^[bc]$"}, {}, ""),
        ({"x-addq!re-ontrue": "^a$"}, {}, ""),
        ({"x-msg-addq-ontrue": ""}, {"x-addq-ontrue": many("b", "c")}, ""),
        ({"x-msg-addqre-ontrue": ""}, {"x-addqre-ontrue": "^[bc]$"}, ""),
        ({"x-msg-addqre-ontrue": ""}, {"x-addq!re-ontrue": "^a$"}, ""),
    ],
)
def test_routes_select_only_destinations_within_reach(
    reach: Reach, routes: dict[str, Plain], headers: dict[str, Plain], key: str
) -> None:
    made = exchange(replace(to_queue("a", routes), reach=reach))
    decision = decide(made, facts(key, headers), _NAMES)
    assert decision.queues == (b"a", b"b")
    assert decision.unchecked == {(reach, (QUEUE, b"c"))}
    assert not decision.keep


def test_a_binding_without_reach_may_select_any_destination() -> None:
    decision = decide(exchange(to_queue("a", {"x-addqre-ontrue": "."})), facts(), _NAMES)
    assert decision.queues == (b"a", b"b", b"c")
    assert decision.keep


def test_the_declared_destination_needs_no_reach() -> None:
    made = exchange(replace(to_queue("c", {"x-addq-ontrue": "b"}), reach=Reach("nobody asked")))
    assert queues(made, facts(), _NAMES) == ["c"]


def test_the_queue_of_the_routing_key_must_be_within_reach(reach: Reach) -> None:
    made = exchange(replace(to_queue("a", {"x-msg-destq-rk": ""}), reach=reach))
    assert queues(made, facts("b"), _NAMES) == ["b"]
    assert queues(made, facts("c"), _NAMES) == []


def test_exchanges_must_be_within_reach(reach: Reach) -> None:
    made = exchange(replace(to_queue("a", {"x-adde-ontrue": many("e", "f")}), reach=reach))
    decision = decide(made)
    assert decision.exchanges == (b"e",)
    assert decision.unchecked == {(reach, (EXCHANGE, b"f"))}


def test_refused_destinations_are_not_requested_again(reach: Reach) -> None:
    reach.refused[QUEUE, b"c"] = "403"
    decision = decide(exchange(replace(to_queue("a", {"x-addqre-ontrue": "."}), reach=reach)), facts(), _NAMES)
    assert decision.unchecked == {(reach, (QUEUE, b"a"))}
    reach.allowed.add((QUEUE, b"a"))
    decision = decide(exchange(replace(to_queue("a", {"x-addqre-ontrue": "."}), reach=reach)), facts(), _NAMES)
    assert not decision.unchecked
    assert decision.keep


def test_destinations_out_of_reach_do_not_use_the_alternate_exchange(reach: Reach) -> None:
    made = exchange(
        replace(to_queue("a", {"x-del-dest": "", "x-addq-ontrue": "c"}), reach=reach), alternate="elsewhere"
    )
    assert not decide(made, facts(), _NAMES).alternate


def test_a_destination_out_of_reach_of_one_binding_may_be_added_by_another(reach: Reach) -> None:
    made = exchange(replace(to_queue("a", {"x-addq-ontrue": "c"}), reach=reach), to_queue("c", {"x-order": 100}))
    assert queues(made, facts(), _NAMES) == ["a", "c"]


def test_a_random_pick_is_made_among_destinations_within_reach(reach: Reach) -> None:
    made = exchange(replace(to_queue("a", {"x-add1qre-ontrue": "^[bc]$"}), reach=reach))
    assert queues(made, facts(), _NAMES) == ["a", "b"]
    reach.allowed.add((QUEUE, b"c"))
    assert queues(made, facts(), _NAMES, draw_last) == ["a", "c"]


def test_a_pick_with_nothing_within_reach_picks_nothing() -> None:
    made = exchange(replace(to_queue("a", {"x-add1qre-ontrue": "."}), reach=Reach("x")))
    assert queues(made, facts(), _NAMES) == ["a"]


def test_reach_does_not_distinguish_bindings(reach: Reach) -> None:
    assert replace(to_queue("a"), reach=reach) == to_queue("a")
    assert replace(to_queue("a"), reach=reach).identity == to_queue("a").identity
