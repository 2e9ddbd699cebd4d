from __future__ import annotations

import pytest

from proxy.routing.bindings.compiled import Match, MatchAll, MatchAny
from proxy.routing.bindings.operators import (
    ABSENT,
    ALL_HEADERS,
    MATCH,
    MISMATCH,
    SIGNS,
    HeaderCompares,
    HeaderEquals,
    KeyEquals,
    KeyFits,
    Operator,
    Topic,
)
from proxy.routing.decision import Facts, Verdict
from proxy.values import Value
from tests.routing.building import Plain, arguments, exchange, facts, message, queues, to_queue, value

_M, _X, _A = MATCH, MISMATCH, ABSENT


def _answering(answer: Verdict, optional: bool = False) -> Operator:
    """An operator that gives this answer about `_MESSAGE`."""
    seen = {_M: (b"a", 1), _X: (b"a", 2), _A: (b"b", 1)}
    name, expected = seen[answer]
    return HeaderCompares(b"", value(expected), name, SIGNS[b"="], optional)


_MESSAGE = facts(headers={"a": 1})


def _true(match: Match) -> bool:
    return match.truth(message(_MESSAGE))


@pytest.mark.parametrize(
    ("answers", "true"),
    [((), True), ((_M,), True), ((_X,), False), ((_A,), False), ((_M, _M), True), ((_M, _X), False), ((_A, _M), False)],
)
def test_all_is_true_when_every_operator_matches(answers: tuple[Verdict, ...], true: bool) -> None:
    assert _true(MatchAll(tuple(_answering(answer) for answer in answers))) is true


@pytest.mark.parametrize(("answer", "true"), [(_M, True), (_X, False), (_A, True)])
@pytest.mark.parametrize("more", [(), (_answering(_M),), (_answering(_M, True), _answering(_M))])
def test_all_takes_absence_for_an_optional_operator(answer: Verdict, true: bool, more: tuple[Operator, ...]) -> None:
    assert _true(MatchAll((_answering(answer, True), *more))) is true


@pytest.mark.parametrize(
    ("answers", "true"),
    [((), False), ((_M,), True), ((_X,), False), ((_A,), False), ((_X, _M), True), ((_A, _X), False)],
)
def test_any_is_true_when_one_operator_matches(answers: tuple[Verdict, ...], true: bool) -> None:
    assert _true(MatchAny(tuple(_answering(answer) for answer in answers))) is true


def test_any_takes_absence_for_nothing() -> None:
    assert not _true(MatchAny((_answering(_A, optional=True),)))


def test_equalities_that_must_hold_are_those_of_operators_that_must_match() -> None:
    match = MatchAll(
        (
            KeyFits(b"", value("#"), Topic(b"#")),
            HeaderEquals(b"", value(1), b"a"),
            HeaderEquals(b"", value(1), b"b", optional=True),
            _answering(_M),
            KeyEquals(b"", value("k")),
        )
    )
    assert match.required == (("header", b"a", 1), ("routing key", "", b"k"), ("topic", "", b"#"))
    assert match.either is None


def test_any_can_be_found_by_equalities_only_where_all_of_it_is_equalities() -> None:
    here, there = HeaderEquals(b"", value(1), b"a"), HeaderEquals(b"", value(1), b"b")
    assert MatchAny((here, there)).either == (("header", b"a", 1), ("header", b"b", 1))
    assert MatchAny((here, _answering(_M))).either is None
    assert MatchAny(()).either == ()


def _open(operators: dict[str, Plain], headers: Facts, match_type: str) -> bool:
    made = exchange(to_queue("q", {"x-match": match_type, **operators}))
    return queues(made, headers) == ["q"]


def _seen(**headers: Plain) -> Facts:
    return Facts(b"", arguments(headers))


_TWICE = Facts(b"", ((b"a", Value("I", 1)), (b"a", Value("I", 2))))


@pytest.mark.parametrize(
    ("operators", "seen", "true"),
    [
        ({}, _seen(), True),
        ({}, _seen(a=1), False),
        ({"a": 1}, _seen(a=1), True),
        ({"a": 1}, _seen(a=1, b=1), False),
        ({"b": 1}, _seen(a=1, b=1), False),
        ({"a": 1}, _seen(), False),
        ({"x-?hk?v= a": 1}, _seen(), True),
        ({"x-?hk?v= a": 1}, _seen(b=1), False),
        ({"x-?hk?v= a": 1}, _seen(a=2), False),
        ({"x-?hkex": "a"}, _seen(a=1), True),
        ({"x-?hkexs": "a"}, _seen(a=1), False),
        ({"x-?hk!ex": "a"}, _seen(), True),
        ({"x-?hk!ex": "a"}, _seen(a=1), False),
        ({"x-?hk!ex": "a", "b": 1}, _seen(b=1), True),
        # These don't use up their header, which then is left over.
        ({"x-?hkv!= a": 1}, _seen(a=2), False),
        ({"x-?hkv> a": 1}, _seen(a=2), False),
        ({"x-?hkvre a": "x"}, _seen(a="x"), False),
        ({"x-?hkv> a": 1, "x-?hkex": "a"}, _seen(a=2), True),
        # A second operator on a header used up is judged against the next header.
        ({"x-?hkv= a": 1, "x-?hkex": "a"}, _seen(a=1), False),
        ({"x-?hkv= a": 1, "x-?hkex": "a"}, _TWICE, True),
        ({"x-?hkv= a": 2, "x-?hkex": "a"}, _TWICE, False),
        ({"x-?hkv= a": 1}, _TWICE, False),
        ({"x-?rk=": ""}, _seen(), True),
        ({"x-?rk=": "k"}, _seen(), False),
    ],
)
def test_eq_wants_exactly_the_headers_it_describes(operators: dict[str, Plain], seen: Facts, true: bool) -> None:
    assert _open(operators, seen, "eq") is true


@pytest.mark.parametrize(
    ("operators", "seen", "count"),
    [
        ({}, _seen(a=1), 0),
        ({"a": 1, "b": 1}, _seen(a=1, b=1, c=1), 2),
        ({"a": 1, "b": 1}, _seen(b=1), 1),
        ({"a": 1, "b": 1}, _seen(a=2, b=1), -1),
        ({"x-?hkv!= a": 1, "x-?hkv> a": 1, "x-?hkvre b": "x"}, _seen(a=2, b="x"), 3),
        ({"x-?hk?v= a": 1, "b": 1}, _seen(b=1), 1),
        ({"x-?hk!ex": "a"}, _seen(), 1),
        ({"x-?hk!ex": "a"}, _seen(b=1), 1),
        ({"x-?hk!ex": "a"}, _seen(a=1), -1),
        ({"x-?hkexn": "a"}, _seen(a="x"), -1),
        # Counting stops at an existence test behind the last header, not at a comparison.
        ({"x-?hkex": "a", "x-?hk!ex": "b"}, _seen(), 0),
        ({"x-?hkex": "a", "x-?hk!ex": "b"}, _seen(c=1), 1),
        ({"x-?hkv= a": 1, "x-?hk!ex": "b"}, _seen(), 1),
        # Under one name the greater key comes first and uses the header up.
        ({"x-?hkv= a": 1, "x-?hkex": "a"}, _seen(a=1), 1),
        ({"x-?hkv= a": 1, "x-?hkex": "a"}, _TWICE, 2),
        ({"x-?hkv= a": 2, "x-?hkex": "a"}, _TWICE, -1),
    ],
)
def test_set_counts_what_succeeds(operators: dict[str, Plain], seen: Facts, count: int) -> None:
    reached = [least for least in range(4) if _open(operators, seen, f"set {least}")]
    assert reached == list(range(count + 1))


@pytest.mark.parametrize(
    ("operators", "whole"),
    [
        ({"a": 1}, False),
        ({"x-?hkex": "a", "x-?hkv!= b": 1}, False),
        ({"x-?hk!ex": "a", "x-?hkex": "b"}, False),
        ({"x-?hkex": "a", "x-?hk!ex": "b"}, True),
        ({"x-?hkexs": "a", "x-?hk!ex": "a"}, True),
    ],
)
def test_set_looks_at_other_headers_only_where_their_being_there_counts(
    operators: dict[str, Plain], whole: bool
) -> None:
    made = exchange(to_queue("q", {"x-match": "set", **operators}))
    assert (made.interest.headers is None) is whole


def test_eq_looks_at_all_headers() -> None:
    made = exchange(to_queue("q", {"x-match": "eq"}))
    [compiled] = made.entries
    assert compiled.match.fact_names == (ALL_HEADERS,)
