from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxproxy.routing.bindings.patterns import Budget, compile_pattern
from oxproxy.routing.decision import Decision, Facts, Interest, Outcome, QueueNames, Trace
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.router import Router
from oxproxy.values import EXCHANGE, QUEUE, Value
from tests.routing.building import (
    NOW,
    arguments,
    decide,
    draw_last,
    exchange,
    facts,
    message,
    queue_names,
    to_exchange,
    to_queue,
)
from tests.routing.random_rules import BINDINGS, QUEUES, bind_valid, messages, visit_every_binding


@given(st.sets(st.sampled_from("abcd")), st.sets(st.sampled_from(("one", "two", "far"))), st.booleans())
def test_named_destinations_are_those_of_the_bindings(queues: set[str], chain: set[str], last: bool) -> None:
    bindings = [to_queue(name) for name in queues] + [to_exchange(name) for name in chain]
    first = exchange(*bindings, name="one", alternate="two" if last else "far")
    router = Router([first, exchange(to_queue("d"), to_exchange("one"), name="two", alternate="behind")])
    every = [(QUEUE, name) for name in (b"a", b"b", b"c", b"d", b"e")]
    every += [(EXCHANGE, name) for name in (b"one", b"two", b"far", b"behind", b"a")]
    for start in (b"one", b"two"):
        assert {known for known in every if router.names(start, known)} == router.destinations(start)


@pytest.mark.parametrize(
    ("size", "rest"),
    [
        (174, b"': missing closing parenthesis at offset 174"),
        (175, b"'"),
        (217, b"'"),
        (218, b"..."),
        (400, b"..."),
    ],
)
def test_the_reason_why_a_regex_is_invalid_does_not_truncate_the_regex(size: int, rest: bytes) -> None:
    regex = "(" + "a" * (size - 1)
    decision = decide(exchange(to_queue("q", {"x-msg-addq-ontrue": ""})), facts(headers={"x-addqre-ontrue": regex}))
    assert decision.outcome is Outcome.REJECTED
    assert decision.error == (b"Invalid regex '" + regex.encode())[: 233 - 3 if rest == b"..." else None] + rest


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        (b"", False),
        (b"a\xff", True),
        (b"\x80", False),
        ("é".encode(), True),
        (b"\xc3a", False),
        ("€".encode(), True),
        (b"\xe2\x82", False),
        ("😀".encode(), True),
        (b"\xf0\x9f\x98", False),
    ],
)
def test_names_in_a_message_begin_with_a_character_in_utf_8(name: bytes, valid: bool) -> None:
    headers = ((b"x-addq-ontrue", Value("S", name)),)
    made = Router([exchange(to_queue("q", {"x-msg-addq-ontrue": ""}))])
    decision = decide(made, Facts(b"", headers))
    assert {*decision.queues} == {b"q", *([name] if valid else [])}


def test_a_route_named_by_the_producer_reaches_all_exchanges() -> None:
    outer = exchange(to_queue("q", {"x-msg-adde-ontrue": ""}))
    router = Router([outer, exchange(to_queue("r", {"c": 1}), name="apart")])
    assert b"c" in (router.interest(b"xo").headers or ())
    assert decide(router, facts(headers={"x-adde-ontrue": "apart", "c": 1})).queues == (b"q", b"r")


def test_destinations_are_all_outputs_of_the_router() -> None:
    outer = exchange(to_exchange("next"), to_exchange("out"), to_queue("q1"), alternate="own alternate")
    inner = exchange(to_queue("q2", {"x-adde-ontrue": "away"}), name="next", alternate="ae")
    router = Router([outer, inner])
    assert router.destinations(b"xo") == {
        (QUEUE, b"q1"),
        (QUEUE, b"q2"),
        (EXCHANGE, b"out"),
        (EXCHANGE, b"away"),
        (EXCHANGE, b"ae"),
    }
    inner.bind(to_queue("q3"))
    assert (QUEUE, b"q3") in router.destinations(b"xo")


def test_a_random_pick_is_not_cached() -> None:
    made = exchange(to_queue("q", {"x-add1qre-ontrue": "^a", "x-del-dest": ""}))
    names = queue_names("a1", "a2")
    decision = decide(made, names=names, draw=lambda _count: 1)
    assert (decision.queues, decision.keep) == ((b"a2",), False)


def test_abandoned_searches_are_counted() -> None:
    made = exchange(to_queue("q", {"x-?hkv!re a": "(x+)+$"}))
    decision = decide(made, facts(headers={"a": "x" * 60 + "y"}))
    assert (decision.queues, decision.match_limit_hits) == ((b"q",), 1)


_NAMES = (b"e1", b"e2", b"e3")
_kinds = st.sampled_from(tuple(BINDINGS))


@given(data=st.data())
def test_chains_give_the_same_decision_with_and_without_index(data: st.DataObject) -> None:
    made: list[tuple[Exchange, Exchange]] = []
    for name in _NAMES:
        kind = data.draw(_kinds)
        alternate = data.draw(st.sampled_from((None, b"e1", b"e2", b"ae")))
        bindings = data.draw(BINDINGS[kind])
        pair = Exchange(name, kind, alternate=alternate), Exchange(name, kind, alternate=alternate)
        for made_exchange in pair:
            bind_valid(made_exchange, bindings)
        visit_every_binding(pair[1])
        made.append(pair)
    indexed, naive = (
        Router(indexed_exchange for indexed_exchange, _ in made),
        Router(naive_exchange for _, naive_exchange in made),
    )

    def asked(router: Router, seen: Facts, trace: Trace | None = None) -> Decision:
        return replace(router.decide(b"e1", seen, NOW, QUEUES, draw_last, trace), match_limit_hits=0)

    for seen in data.draw(st.lists(messages, min_size=1, max_size=3)):
        assert asked(indexed, seen) == asked(naive, seen) == asked(indexed, seen, Trace())
        assert not set(asked(indexed, seen).exchanges) & set(_NAMES)


@pytest.mark.parametrize("count", [10, 3000])
def test_the_cost_of_a_message_does_not_depend_on_bindings_with_other_values(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = exchange(
        *(to_queue(f"q{at}", {"x-?hkv= type": f"t{at}"}) for at in range(count)),
        *(to_queue(f"k{at}", {"x-?rk=": f"k{at}"}) for at in range(count)),
    )
    assert decide(made, facts("k7", {"type": "t5"})).queues == (b"k7", b"q5")
    assert len(made.file.candidates(message(facts("k7", {"type": "t5"})))) == 2


# -- regular expressions of routes ------------------------------------------------------------------------------------

_SLOW_NAMES = QueueNames((b"a" * 12 + b"b",), 1)
_SLOW = "^(a+)+$"


def test_equal_messages_have_equal_destinations_if_a_route_is_costly() -> None:
    budget = Budget()
    compile_pattern(_SLOW.encode()).search(_SLOW_NAMES.names[0], budget)
    units = Budget().left - budget.left + 1000
    router = Router(
        [
            exchange(
                to_queue("one", {"x-order": 100, "x-addqre-ontrue": _SLOW}),
                to_queue("two", {"x-order": 200, "x-?rk!re": _SLOW}),
            )
        ]
    )
    first, second = (
        router.decide(b"xo", facts("a" * 12 + "b"), NOW, _SLOW_NAMES, draw_last, None, units) for _ in range(2)
    )
    assert first.spent_budgets
    assert (first.queues, first.spent_budgets) == (second.queues, second.spent_budgets)


def test_a_route_selects_nothing_if_the_budget_is_spent_although_the_result_is_cached() -> None:
    router = Router(
        [
            exchange(
                to_queue("one", {"x-order": 100, "x-?rkre": _SLOW}),
                to_queue("two", {"x-order": 200, "x-addqre-ontrue": "^a"}),
            )
        ]
    )
    other, costly = (
        router.decide(b"xo", facts(key), NOW, _SLOW_NAMES, draw_last, None, 10_000) for key in ("z", "a" * 30 + "b")
    )
    assert set(other.queues) == {b"two", *_SLOW_NAMES.names}
    assert costly.queues == (b"two",)


def test_a_route_whose_searches_exceed_the_budget_selects_nothing() -> None:
    names = (b"aaa", b"a" * 40 + b"b")  # the first one matches before the budget is spent
    add = Router([exchange(to_queue("one", {"x-addqre-ontrue": _SLOW}))])
    delete = Router(
        [
            exchange(
                to_queue("one", {"x-order": 100, "x-addqre-ontrue": "^a"}),
                to_queue("two", {"x-order": 200, "x-delqre-ontrue": _SLOW}),
            )
        ]
    )
    for router, queues in ((add, {b"one"}), (delete, {b"one", b"two", *names})):
        decision = router.decide(b"xo", facts(), NOW, QueueNames(names, 1), draw_last, None, 10_000)
        assert ({*decision.queues}, decision.spent_budgets) == (queues, ("rules",))


#: More examples than usual, since the combinations that would show an error are rare.
_EXAMPLES = 150


def _mixed(interest: Interest, seen: Facts, other: Facts) -> Facts:
    """A message with the facts of interest from the first message and everything else from the second."""
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
def test_a_decision_depends_only_on_the_interest(kind: str, data: st.DataObject, limits: dict[str, int]) -> None:
    made = Exchange(b"xo", kind, arguments(limits))
    bind_valid(made, data.draw(BINDINGS[kind]))
    router = Router([made])
    interest = router.interest(b"xo")
    seen, other = data.draw(messages), data.draw(messages)
    mixed = _mixed(interest, seen, other)
    assert decide(router, seen, QUEUES, draw_last) == decide(router, mixed, QUEUES, draw_last)


@given(data=st.data())
def test_queues_and_clock_affect_a_decision_only_if_in_the_interest(data: st.DataObject) -> None:
    made = Exchange(b"xo", "x-open")
    bind_valid(made, data.draw(BINDINGS["x-open"]))
    router = Router([made])
    interest = router.interest(b"xo")
    seen = data.draw(messages)
    here = decide(router, seen, QUEUES, draw_last)
    if not interest.queues:
        assert decide(router, seen, QueueNames((b"new",), 2), draw_last) == here
    if not interest.clock:
        assert router.decide(b"xo", seen, 0.0, QUEUES, draw_last) == here
