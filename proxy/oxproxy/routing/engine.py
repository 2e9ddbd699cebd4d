"""Visits the bindings of one exchange and collects the destinations of a message.

Bindings are visited in a fixed order. A goto skips some of the following bindings, and a stop skips all of them. The
result is the same whether `route` gets all bindings of the exchange or only those that the index selects.

Source: the open-exchange specification, sections 1, 7 and 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from oxproxy.routing.bindings.compiled import CompiledBinding
from oxproxy.routing.bindings.operators import HeaderOperator, Operator
from oxproxy.routing.bindings.patterns import FREE_SEARCH_STEPS
from oxproxy.routing.bindings.routes import STOP
from oxproxy.routing.decision import BindingStep, OperatorStep
from oxproxy.routing.message import Message
from oxproxy.values import QUEUE, Destination


def route(
    entries: Iterable[CompiledBinding], message: Message, matched: list[tuple[bytes, str]]
) -> set[Destination] | None:
    """Visit bindings.

    Args:
        entries: bindings in visiting order.
        matched: receives the exchange and id of each binding that was true.

    Returns:
        The destinations; None if an invalid regex from the producer closes the channel (`message.producer.error`).
    """
    routed: set[Destination] = set()
    message.included.clear()
    floor = 0
    for compiled in entries:
        binding = compiled.binding
        if floor > compiled.order and not binding.last:
            continue
        if binding.owner is not None and not message.pays(binding.owner, 1 + compiled.regexes * FREE_SEARCH_STEPS):
            continue
        true = compiled.truth(message)
        if true:
            matched.append(compiled.label)
        if compiled.destination_only:
            if true:
                routed.add(compiled.destination)  # type: ignore[arg-type]  # see `destination_only`
            continue
        jump = apply_result(compiled, true, routed, message)
        if jump is None:
            return None
        if jump == STOP:
            break
        floor = jump
    return routed


def route_traced(
    entries: Sequence[CompiledBinding],
    message: Message,
    matched: list[tuple[bytes, str]],
    steps: list[BindingStep],
    candidates: Set[CompiledBinding] | None = None,
) -> set[Destination] | None:
    """Visit bindings like `route`, and record each visit.

    Args:
        entries: all bindings in visiting order.
        steps: receives an entry for each visit.
        candidates: bindings that `route` would visit; None for all. Other bindings count as false and use no budget.
    """
    routed: set[Destination] = set()
    message.included.clear()
    floor = 0
    for compiled in entries:
        binding = compiled.binding
        if floor > compiled.order and not binding.last:
            continue
        before = frozenset(routed)
        spent, message.spent_budgets = message.spent_budgets, frozenset()
        visited = candidates is None or compiled in candidates
        if visited and not message.pays(binding.owner, 1 + compiled.regexes * FREE_SEARCH_STEPS):
            steps.append(_step(compiled, False, before, routed, 0, message))
            message.spent_budgets |= spent
            continue
        true = compiled.truth(message) if visited else False
        if true:
            matched.append(compiled.label)
        jump = apply_result(compiled, true, routed, message)
        steps.append(_step(compiled, true, before, routed, jump, message))
        message.spent_budgets |= spent
        if jump is None:
            return None
        if jump == STOP:
            break
        floor = jump
    return routed


def apply_result(compiled: CompiledBinding, true: bool, routed: set[Destination], message: Message) -> int | None:
    """Apply the effects of a binding.

    Returns:
        The order at which to continue; 0 for the next binding; None if an invalid regex from the producer ends the
        decision.
    """
    if compiled.asks_producer and message.producer.error:
        return None
    main: Destination | None = None
    if true:
        main = compiled.destination or (QUEUE, message.routing_key)
    effects = compiled.on_true if true else compiled.on_false
    if effects is not None:
        effects.apply(routed, main, message, compiled.binding.owner)
        return effects.jump
    if main is not None:
        routed.add(main)
    return 0


def operator_step(operator: Operator, message: Message) -> OperatorStep:
    header = operator.name if isinstance(operator, HeaderOperator) else None
    return OperatorStep(operator.key, operator.expected, operator.verdict(message), operator.seen(message), header)


def _step(
    compiled: CompiledBinding,
    true: bool,
    before: frozenset[Destination],
    routed: set[Destination],
    jump: int | None,
    message: Message,
) -> BindingStep:
    # The regex searches in the binding's condition have already been charged to the budget.
    with message.uncharged():
        operators = tuple(operator_step(operator, message) for operator in compiled.operators)
    return BindingStep(
        compiled.binding,
        compiled.id,
        compiled.order,
        compiled.match_type,
        true,
        operators,
        tuple(sorted(routed - before)),
        tuple(sorted(before - routed)),
        jump if jump and compiled.order < jump < STOP else None,
        jump == STOP,
        message.producer.error if jump is None else b"",
        tuple(sorted(message.spent_budgets)),
    )
