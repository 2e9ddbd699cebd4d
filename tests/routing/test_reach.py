from __future__ import annotations

from dataclasses import replace

import pytest

from proxy.routing.bindings.binding import NO_REACH, Binding, Reach
from proxy.routing.decision import Trace
from proxy.values import EXCHANGE, QUEUE
from tests.routing.building import Plain, decide, draw_last, exchange, facts, many, queue_names, queues, to_queue
from tests.routing.random_rules import visit_every_binding

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


# -- bindings without a valid signature -------------------------------------------------------------------------------


def unsigned(name: str, entries: dict[str, Plain]) -> Binding:
    return replace(to_queue(name, entries), last=True, reach=NO_REACH)


@pytest.mark.parametrize(
    "routes",
    [
        {"x-addq-ontrue": "other"},
        {"x-addqre-ontrue": "."},
        {"x-delq-ontrue": "secret"},
        {"x-delqre-ontrue": "."},
        {"x-delq!re-ontrue": "^own$"},
        {"x-msg-addq-ontrue": "", "x-msg-delq-ontrue": ""},
        {"x-stop-ontrue": ""},
    ],
)
def test_routes_of_an_unsigned_binding_have_no_effect(routes: dict[str, Plain]) -> None:
    made = exchange(to_queue("secret"), unsigned("own", routes), unsigned("later", {"x-order": 20_000}))
    for headers in ({}, {"x-addq-ontrue": "other", "x-delq-ontrue": "secret"}, {"x-addqre-ontrue": "("}):
        assert queues(made, facts(headers=headers)) == ["later", "own", "secret"]


def test_an_unsigned_binding_can_delete_its_own_destination_only() -> None:
    routes: dict[str, Plain] = {"x-del-dest": "", "x-delq-ontrue": "secret"}
    assert queues(exchange(to_queue("secret"), to_queue("own"), unsigned("own", routes))) == ["secret"]


def test_a_goto_does_not_skip_unsigned_bindings() -> None:
    made = exchange(to_queue("first", {"x-order": 100, "x-goto-ontrue": 500}), unsigned("own", {"x-order": 200}))
    assert queues(made) == ["first", "own"]
    assert decide(made, trace=Trace()).queues == (b"first", b"own")


def test_the_index_does_not_change_whether_unsigned_bindings_are_visited() -> None:
    indexed, naive = (
        exchange(
            to_queue("first", {"x-order": 100, "x-goto-ontrue": 500}),
            to_queue("second", {"x-order": 600, "x-?hkv= type": "a", "x-goto-ontrue": 700}),
            unsigned("own", {"x-order": 200}),
        )
        for _ in range(2)
    )
    visit_every_binding(naive)
    assert queues(indexed) == queues(naive)


def test_the_number_of_kept_refusals_is_limited() -> None:
    reach = Reach("client")
    for number in range(5000):
        reach.refuse((QUEUE, b"%d" % number), "refused")
    assert len(reach.refused) == 4096
    assert (QUEUE, b"4999") in reach.refused
