from __future__ import annotations

from proxy.routing.bindings.operators import ABSENT, MATCH, MISMATCH
from proxy.routing.decision import BindingStep, FilterStep, OperatorStep, Trace
from proxy.routing.exchange import Exchange
from proxy.routing.router import Router
from proxy.values import EXCHANGE, QUEUE
from tests.routing.building import arguments, decide, exchange, facts, many, to_exchange, to_queue, value


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
        OperatorStep(b"x-?hkv= a", value("x"), MISMATCH, value("y")),
        OperatorStep(b"x-?hkv= a", value("y"), MATCH, value("y")),
        OperatorStep(b"x-?hkex", value("b"), ABSENT, None),
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
