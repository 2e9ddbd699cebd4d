from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.bindings.operators import ABSENT, MATCH, MISMATCH
from oxproxy.routing.decision import BindingStep, Facts, FilterStep, OperatorStep, Trace
from oxproxy.routing.engine import route, route_traced
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.router import Router
from oxproxy.values import EXCHANGE, QUEUE
from tests.routing.building import (
    Plain,
    arguments,
    decide,
    draw_last,
    exchange,
    facts,
    many,
    message,
    queue_names,
    queues,
    to_exchange,
    to_queue,
    value,
)
from tests.routing.random_rules import BINDINGS, QUEUES, bind_valid, messages

_FALSE = facts()


def _at(order: int, name: str, entries: dict[str, Plain] | None = None) -> Binding:
    return to_queue(name, {"x-order": order, **(entries or {})})


def _visited(made: Exchange, seen: Facts) -> list[str]:
    steps: list[BindingStep] = []
    route_traced(made.entries, message(seen), [], steps)
    return [step.binding.destination.decode() for step in steps]


def test_bindings_of_equal_order_are_visited_by_descending_sequence() -> None:
    made = exchange(to_queue("a", sequence=1), to_queue("b", sequence=3), to_queue("c", sequence=2))
    assert _visited(made, _FALSE) == ["b", "c", "a"]


def test_bindings_of_equal_sequence_are_visited_latest_first() -> None:
    made = exchange(to_queue("a"), to_queue("b"), to_queue("c"))
    assert _visited(made, _FALSE) == ["c", "b", "a"]


@pytest.mark.parametrize(
    ("arguments", "destinations"),
    [
        ({"x-msg-destq-rk": ""}, []),
        ({"x-addq-ontrue": "other"}, ["own"]),
        ({"x-addqre-ontrue": "."}, ["own"]),
        ({"x-msg-addq-ontrue": ""}, ["own"]),
    ],
)
def test_a_binding_without_a_valid_signature_routes_only_to_its_own_destination(
    arguments: dict[str, Plain], destinations: list[str]
) -> None:
    made = exchange(replace(to_queue("own", arguments), last=True), alternate="alternate")
    decision = decide(made, facts("key", {"x-addq-ontrue": "other"}), queue_names("key", "other"))
    assert [name.decode() for name in decision.queues] == destinations
    assert decision.exchanges == ()  # a message whose routes have no effect counts as routed


_INVALID = facts(headers={"x-delqre-onfalse": "("})


@pytest.mark.parametrize(
    "entries",
    [
        {"x-msg-addq-ontrue": ""},
        {"x-addqre-ontrue": "."},
        {"x-delqre-onfalse": "."},
        {"x-?hkex": "a", "x-msg-adde-ontrue": ""},
    ],
)
def test_an_invalid_producer_regex_is_reported_by_every_regex_binding(entries: dict[str, Plain]) -> None:
    seen = message(_INVALID)
    assert route(exchange(to_queue("q", entries)).entries, seen, []) is None
    assert seen.producer.error == b"Invalid regex '(': missing closing parenthesis at offset 1"


@pytest.mark.parametrize("entries", [{}, {"x-addq-ontrue": "r"}, {"x-?hkex": "x-delqre-onfalse"}])
def test_an_invalid_producer_regex_is_ignored_by_other_bindings(entries: dict[str, Plain]) -> None:
    routed = route(exchange(to_queue("q", entries)).entries, message(_INVALID), [])
    assert (QUEUE, b"q") in (routed or ())


def test_an_invalid_producer_regex_is_ignored_after_a_stop() -> None:
    made = exchange(_at(100, "1", {"x-stop-ontrue": ""}), to_queue("q", {"x-msg-addq-ontrue": ""}))
    assert queues(made, _INVALID) == ["1"]


@given(bindings=BINDINGS["x-open"], seen=st.lists(messages, min_size=1, max_size=4))
def test_a_trace_does_not_change_the_decision(bindings: list[Binding], seen: list[Facts]) -> None:
    made = Exchange(b"xo", "x-open")
    bind_valid(made, bindings)
    for seen_message in seen:
        runs = []
        for traced in (False, True):
            matched: list[tuple[bytes, str]] = []
            of = message(seen_message, QUEUES, draw_last)
            routed = route_traced(made.entries, of, matched, []) if traced else route(made.entries, of, matched)
            runs.append((routed, matched, of.match_limit_hits, of.keep))
        assert runs[0] == runs[1]


def _steps(made: Exchange | Router, headers: dict[str, str | int]) -> list[BindingStep]:
    trace = Trace()
    decide(made, facts("key", headers), trace=trace)
    return [step for exchange_step in trace.exchanges for step in exchange_step.visits]


def test_a_trace_contains_every_visited_binding() -> None:
    made = exchange(to_queue("q1", {"x-?hkv= a": 1, "x-order": 100}), to_queue("q2", {"x-?hkv= a": 2}))
    first, second = _steps(made, {"a": 2})
    assert (first.binding.destination, first.true, first.added) == (b"q1", False, ())
    assert (second.binding.destination, second.true, second.added) == (b"q2", True, ((QUEUE, b"q2"),))
    assert (second.order, second.match_type) == (10_000, "all")


def test_a_trace_has_expected_and_actual_values_of_each_operator() -> None:
    [step] = _steps(
        exchange(to_queue("q", {"x-match": "any", "x-?hkv= a": many("x", "y"), "x-?hkex": "b", "x-?rk=": "key"})),
        {"a": "y"},
    )
    assert set(step.operators) == {
        OperatorStep(b"x-?hkv= a", value("x"), MISMATCH, value("y"), b"a"),
        OperatorStep(b"x-?hkv= a", value("y"), MATCH, value("y"), b"a"),
        OperatorStep(b"x-?hkex", value("b"), ABSENT, None, b"b"),
        OperatorStep(b"x-?rk=", value("key"), MATCH, b"key"),
    }


def test_a_trace_contains_routes_jumps_and_stops() -> None:
    made = exchange(
        to_queue("q1", {"x-order": 100, "x-goto-ontrue": 300}),
        to_queue("q2", {"x-order": 200}),
        to_queue("q3", {"x-order": 300, "x-delq-ontrue": "q1", "x-adde-ontrue": "e", "x-stop-ontrue": ""}),
        to_queue("q4", {"x-order": 400}),
    )
    first, last = _steps(made, {})
    assert (first.jump, first.stopped) == (300, False)
    assert (last.jump, last.stopped) == (None, True)
    assert last.added == ((EXCHANGE, b"e"), (QUEUE, b"q3"))
    assert last.removed == ((QUEUE, b"q1"),)


def test_a_goto_without_effect_is_not_in_the_trace() -> None:
    [step] = _steps(exchange(to_queue("q", {"x-order": 200, "x-goto-ontrue": 100})), {})
    assert step.jump is None


def test_a_trace_ends_at_the_binding_that_refuses_the_producer_regex() -> None:
    made = exchange(to_queue("q1", {"x-msg-addq-ontrue": "", "x-order": 100}), to_queue("q2"))
    [step] = _steps(made, {"x-addqre-ontrue": "("})
    assert step.error == b"Invalid regex '(': missing closing parenthesis at offset 1"


def test_a_trace_contains_filters_up_to_the_first_violated_one() -> None:
    limits = {"min-payload-size": 5, "max-payload-size-silent": 10, "max-payload-size": 100}
    made = Exchange(b"xo", "x-open", arguments(limits))
    trace = Trace()
    decision = decide(made, facts(size=50), trace=trace)
    [step] = trace.exchanges
    assert decision.trace is trace
    assert step.filters == [
        FilterStep(b"max-payload-size", None, False),
        FilterStep(b"max-payload-size-silent", "Max size payload hit.", True),
    ]


def test_a_trace_has_a_step_for_each_exchange_of_a_chain() -> None:
    trace = Trace()
    router = Router(
        [
            exchange(to_exchange("next")),
            exchange(kind="fanout", name="next", alternate="other"),
            exchange(to_queue("q"), name="other"),
        ]
    )
    decide(router, trace=trace)
    assert [(step.name, step.type, step.alternate) for step in trace.exchanges] == [
        (b"xo", "x-open", None),
        (b"next", "fanout", b"other"),
        (b"other", "x-open", None),
    ]
