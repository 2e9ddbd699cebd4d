from __future__ import annotations

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from proxy.routing.pattern_cost import DECISION, NOWHERE, Walk, straight

#: A way as a list: numbers are steps, None is a decision.
WAYS = st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=12)


def walk(way: list[int | None]) -> Walk:
    return reduce(Walk.then, [DECISION if part is None else straight(part) for part in way], NOWHERE)


def longest(way: list[int | None]) -> int:
    best = here = 0
    for part in way:
        here = 0 if part is None else here + part
        best = max(best, here)
    return best


@given(WAYS)
def test_the_longest_stretch_between_decisions_is_found(way: list[int | None]) -> None:
    assert walk(way).longest[0] == longest(way)


@given(WAYS, WAYS)
def test_ways_join_at_their_ends(one: list[int | None], other: list[int | None]) -> None:
    assert walk(one).then(walk(other)) == walk(one + other)


@given(WAYS, st.integers(0, 5))
def test_a_way_can_be_gone_several_times(way: list[int | None], times: int) -> None:
    assert walk(way).times(times).longest[0] == longest(way * times)


def test_a_repeated_group_decides_at_each_turn() -> None:
    body = straight(7)
    assert body.repeated(0, None).longest[0] == 7
    assert body.repeated(3, None).longest[0] == 21
    assert body.repeated(2, 2).longest[0] == 14
    assert body.repeated(2, 5).longest[0] == 14
    assert not body.repeated(2, 2).decided


def test_alternatives_count_by_the_longer_one() -> None:
    either = straight(3).beside(straight(5))
    assert either.longest[0] == 5
    assert straight(4).then(either).then(straight(6)).longest[0] == 11


def test_costs_do_not_grow_without_end() -> None:
    huge = straight(1 << 60, 1 << 60)
    assert huge.times(1 << 60).longest == (1 << 40, 1 << 40)
