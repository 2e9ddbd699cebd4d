from __future__ import annotations

import pytest

from proxy.routing.bindings.operators import HEADER, QUEUE_NAMES
from proxy.routing.bindings.patterns import compile_pattern
from proxy.routing.bindings.producer_routes import PatternRoute
from proxy.routing.bindings.routes import STOP, Effects, EffectsDraft, QueueRoute
from proxy.values import EXCHANGE, QUEUE, Destination
from tests.routing.building import Plain, facts, message, queue_names

_A, _B, _C = (QUEUE, b"a"), (QUEUE, b"b"), (QUEUE, b"c")
_E = (EXCHANGE, b"a")
_NAMES = queue_names("a", "b", "aa")


def _applied(
    effects: Effects,
    before: set[Destination],
    main: Destination | None = None,
    headers: dict[str, Plain] | None = None,
) -> set[Destination]:
    seen = facts(headers={f"x-{name}": plain for name, plain in (headers or {}).items()})
    effects.apply(before, main, message(seen, _NAMES))
    return before


def test_additions_come_before_deletions() -> None:
    effects = Effects(add=frozenset({_A, _B}), delete=frozenset({_A, _C}))
    assert _applied(effects, {_C}, main=_A) == {_B}


def test_queue_and_exchange_of_one_name_are_two() -> None:
    assert _applied(Effects(delete=frozenset({_A})), {_E, _A}) == {_E}


def test_regex_deletion_of_a_binding_spares_its_own_additions() -> None:
    effects = Effects(add=frozenset({_B}), delete_queues=(PatternRoute(compile_pattern(b"."), False),))
    assert _applied(effects, {_C, _E}, main=_A) == {_A, _B, _E}


def test_negated_regex_deletion_takes_what_does_not_match() -> None:
    effects = Effects(delete_queues=(PatternRoute(compile_pattern(b"a"), True),))
    assert _applied(effects, {_A, _C}) == {_A}


@pytest.mark.parametrize(("negated", "names"), [(False, {_A, (QUEUE, b"aa")}), (True, {_B})])
def test_regex_addition_takes_queues_of_the_virtual_host(negated: bool, names: set[Destination]) -> None:
    effects = Effects(add_queues=(QueueRoute(compile_pattern(b"^a"), negated, False),))
    assert _applied(effects, set()) == names


def test_regex_addition_follows_the_list_of_queues() -> None:
    route = QueueRoute(compile_pattern(b"^a"), False, False)
    assert route.select(message(names=queue_names("a", "b"))) == [_A]
    assert route.select(message(names=queue_names("b"))) == []
    assert route.select(message(names=queue_names("b", "a"))) == [_A]


def test_searches_given_up_are_counted_for_each_message() -> None:
    route = QueueRoute(compile_pattern(b"(x+)+$"), False, False)
    names = queue_names("x" * 60 + "y")
    for seen in (message(names=names), message(names=names)):
        assert route.select(seen) == []
        assert seen.match_limit_hits == 1


def test_one_of_several_queues_is_drawn_and_the_decision_not_kept() -> None:
    route = QueueRoute(compile_pattern(b"^a"), False, True)
    seen = message(names=_NAMES, draw=lambda count: count - 1)
    assert route.select(seen) == [(QUEUE, b"aa")]
    assert not seen.keep


@pytest.mark.parametrize(("names", "chosen"), [((), []), (("a",), [_A])])
def test_nothing_is_drawn_where_there_is_no_choice(names: tuple[str, ...], chosen: list[Destination]) -> None:
    route = QueueRoute(compile_pattern(b"^a"), False, True)
    seen = message(names=queue_names(*names))
    assert route.select(seen) == chosen
    assert seen.keep


def test_producer_adds_and_deletes_by_the_headers_that_are_granted() -> None:
    effects = Effects(granted_add=(b"x-addq-ontrue",), granted_delete=(b"x-dele-ontrue",))
    asked: dict[str, Plain] = {"addq-ontrue": "b", "adde-ontrue": "a", "dele-ontrue": "a", "delq-ontrue": "a"}
    assert _applied(effects, {_A, _E}, headers=asked) == {_A, _B}


def test_regex_deletion_of_a_producer_takes_the_bindings_own_destination() -> None:
    effects = Effects(add=frozenset({_C}), granted_delete=(b"x-delqre-ontrue",))
    assert _applied(effects, {_B}, main=_A, headers={"delqre-ontrue": "^[ac]$"}) == {_B, _C}


def test_regex_addition_of_a_producer_takes_queues_of_the_virtual_host() -> None:
    effects = Effects(granted_add=(b"x-addq!re-onfalse",))
    seen = message(facts(headers={"x-addq!re-onfalse": "^a"}), _NAMES)
    routed: set[Destination] = set()
    effects.apply(routed, None, seen)
    assert routed == {_B}


def test_needs_are_the_granted_headers_and_the_queues_that_regexes_choose_from() -> None:
    assert set(Effects(granted_add=(b"x-addq-ontrue",)).fact_names) == {(HEADER, b"x-addq-ontrue")}
    assert QUEUE_NAMES in set(Effects(granted_delete=(b"x-delqre-ontrue",)).fact_names)
    assert QUEUE_NAMES in set(Effects(add_queues=(QueueRoute(compile_pattern(b"."), False, True),)).fact_names)
    assert not set(Effects(delete_queues=(PatternRoute(compile_pattern(b"."), False),)).fact_names)


@pytest.mark.parametrize(
    ("goto", "stop", "jump"), [(0, False, 0), (200, False, 200), (0, True, STOP), (200, True, STOP)]
)
def test_stop_wins_over_goto(goto: int, stop: bool, jump: int) -> None:
    assert EffectsDraft(goto=goto, stop=stop).finished().jump == jump
