from __future__ import annotations

from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.routing.bindings.producer_routes import PATTERN_ROUTES
from proxy.routing.decision import Facts, Interest, QueueNames
from proxy.routing.exchange import Exchange, join_interests
from proxy.routing.router import Router
from tests.routing.building import NOW, Plain, arguments, exchange, many, to_queue
from tests.routing.random_rules import BINDINGS, QUEUES, bind_valid, messages

_REGEXES = frozenset(PATTERN_ROUTES)

#: More than usual: the meetings that would show a slip are rare.
_EXAMPLES = 400


def _interest(entries: dict[str, Plain]) -> Interest:
    return exchange(to_queue("q", entries)).interest


@pytest.mark.parametrize(
    ("entries", "interest"),
    [
        ({}, Interest()),
        ({"x-order": 100, "x-stop-ontrue": "", "x-addq-ontrue": "r", "x-del-dest": ""}, Interest()),
        ({"a": 1, "x-?hkex": "b"}, Interest(headers=frozenset({b"a", b"b"}))),
        ({"x-?hkex": "BCC"}, Interest()),
        ({"x-?rkta": "a.#"}, Interest(routing_key=True)),
        ({"x-msg-destq-rk": ""}, Interest(routing_key=True)),
        ({"x-?prex": "type"}, Interest(properties=frozenset({"type"}))),
        ({"x-?dtlre": "."}, Interest(clock=True)),
        ({"x-match": "eq"}, Interest(headers=None)),
        ({"x-match": "set", "a": 1}, Interest(headers=frozenset({b"a"}))),
        ({"x-match": "set", "x-?hkex": "a", "x-?hk!ex": "b"}, Interest(headers=None)),
        ({"x-add1qre-onfalse": "."}, Interest(headers=_REGEXES, queues=True)),
        ({"x-delqre-ontrue": "."}, Interest(headers=_REGEXES)),
        ({"x-msg-dele-ontrue": ""}, Interest(headers=_REGEXES | {b"x-dele-ontrue"})),
        ({"x-msg-delqre-ontrue": ""}, Interest(headers=_REGEXES | {b"x-delq-ontrue"}, queues=True)),
    ],
)
def test_interest_is_what_the_bindings_look_at(entries: dict[str, Plain], interest: Interest) -> None:
    assert _interest(entries) == interest


@pytest.mark.parametrize(
    ("kind", "interest"),
    [
        ("direct", Interest(routing_key=True)),
        ("topic", Interest(routing_key=True)),
        ("fanout", Interest()),
        ("headers", Interest(headers=frozenset({b"a"}))),
    ],
)
def test_each_type_looks_at_its_own_facts(kind: str, interest: Interest) -> None:
    assert exchange(kind=kind).interest == Interest()
    assert exchange(to_queue("q", {"a": 1, "x-match": "any"}, key="k"), kind=kind).interest == interest


@pytest.mark.parametrize(
    ("limits", "interest"),
    [
        ({"min-payload-size": 10, "max-payload-size-silent": 20}, Interest(body_sizes=(10, 21))),
        ({"min-payload-size": 0, "max-payload-size": -5}, Interest()),
        ({"max-headers-size": 10}, Interest(headers=None)),
        ({"max-headers-depth": 1}, Interest(headers=None)),
    ],
)
def test_filters_look_at_the_body_size_or_at_all_headers(limits: dict[str, int], interest: Interest) -> None:
    assert Exchange(b"xo", "x-open", arguments(limits)).interest == interest


def test_interest_goes_with_the_last_binding_that_had_it() -> None:
    first, second = to_queue("q1", {"a": 1, "b": 1}), to_queue("q2", {"a": 2})
    made = exchange(first, second)
    assert made.interest.headers == frozenset({b"a", b"b"})
    made.unbind(first)
    assert made.interest.headers == frozenset({b"a"})
    made.unbind(second)
    assert made.interest == Interest()


def test_interest_is_the_same_object_while_nothing_new_is_asked() -> None:
    made = exchange(to_queue("q1", {"a": 1}))
    before = made.interest
    made.bind(to_queue("q2", {"a": 2}))
    assert made.interest is before


def test_joined_interests_ask_for_everything_that_one_asks_for() -> None:
    one = Interest(True, frozenset({b"a"}), frozenset({"type"}), (10, 20), True, False)
    other = Interest(False, frozenset({b"b"}), frozenset({"app_id"}), (5, 20), False, True)
    assert join_interests([one, other]) == Interest(
        True, frozenset({b"a", b"b"}), frozenset({"type", "app_id"}), (5, 10, 20), True, True
    )
    assert join_interests([one, Interest(headers=None)]).headers is None
    assert join_interests([]) == Interest()


def _mixed(interest: Interest, seen: Facts, other: Facts) -> Facts:
    """A message with the interesting facts of one and everything else of another."""
    headers = seen.headers
    if interest.headers is not None:
        wanted = interest.headers
        strange = [entry for entry in other.headers if entry[0] not in wanted]
        headers = (*strange[:1], *(entry for entry in seen.headers if entry[0] in wanted), *strange[1:])
    chosen = {name: text for name, text in seen.properties.items() if name in interest.properties}
    rest = {name: text for name, text in other.properties.items() if name not in interest.properties}
    cell = bisect_right(interest.body_sizes, seen.body_size_bytes)
    same_cell = cell == bisect_right(interest.body_sizes, other.body_size_bytes)
    return Facts(
        seen.routing_key if interest.routing_key else other.routing_key,
        headers,
        {**chosen, **rest},
        other.body_size_bytes if same_cell else seen.body_size_bytes,
    )


_LIMITS = st.dictionaries(
    st.sampled_from(("min-payload-size", "max-payload-size-silent", "max-headers-size", "max-headers-depth")),
    st.integers(0, 30),
    max_size=2,
)


@pytest.mark.parametrize("kind", BINDINGS)
@settings(max_examples=_EXAMPLES)
@given(data=st.data(), limits=_LIMITS)
def test_decision_depends_on_nothing_but_the_interest(kind: str, data: st.DataObject, limits: dict[str, int]) -> None:
    made = Exchange(b"xo", kind, arguments(limits))
    bind_valid(made, data.draw(BINDINGS[kind]))
    router = Router([made])
    interest = router.interest(b"xo")
    seen, other = data.draw(messages), data.draw(messages)
    decisions = [
        router.decide(b"xo", each, NOW, QUEUES, lambda count: count - 1)
        for each in (seen, _mixed(interest, seen, other))
    ]
    assert decisions[0] == decisions[1]


@given(data=st.data())
def test_queues_and_clock_matter_only_where_the_interest_says_so(data: st.DataObject) -> None:
    made = Exchange(b"xo", "x-open")
    bind_valid(made, data.draw(BINDINGS["x-open"]))
    router = Router([made])
    interest = router.interest(b"xo")
    seen = data.draw(messages)
    here = router.decide(b"xo", seen, NOW, QUEUES, lambda _count: 0)
    if not interest.queues:
        assert router.decide(b"xo", seen, NOW, QueueNames((b"new",), 2), lambda _count: 0) == here
    if not interest.clock:
        assert router.decide(b"xo", seen, 0.0, QUEUES, lambda _count: 0) == here


def test_value_of_a_header_in_a_list_is_of_no_interest_by_itself() -> None:
    assert _interest({"x-match": "any", "x-?hkv= a": many(1, 2)}).headers == frozenset({b"a"})
