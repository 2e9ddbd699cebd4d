"""Finds bindings whose conditions no message can satisfy. Only provable cases are reported.

Conditions on the same fact (a header, the routing key, a property, the clock) are considered together. An equality
permits only a few values, which are tried individually; comparisons permit an interval; type tests permit a set of
types. If ``x-match`` is ``eq`` or ``set``, different headers with the same name may satisfy different conditions, so
header conditions are not considered.

Source: the open-exchange specification, sections 2 to 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import combinations
from typing import cast

from oxproxy.routing.bindings.compiled import CompiledBinding
from oxproxy.routing.bindings.operators import (
    ABSENT,
    CLOCK,
    FLOATS,
    INTEGERS,
    MATCH,
    NUMBERS,
    PROPERTY,
    ROUTING_KEY,
    TEXTS,
    TOPIC,
    TYPE_TESTS,
    FactName,
    HeaderIsIn,
    HeaderOperator,
    Operator,
    PropertyOperator,
    RoutingKeyOperator,
)
from oxproxy.routing.contract import Contract
from oxproxy.routing.decision import Facts, QueueNames
from oxproxy.routing.message import Message
from oxproxy.rules.spelling.lines import shown_line
from oxproxy.values import Value, text

#: Type letters of AMQP values in RabbitMQ.
_LETTERS = NUMBERS | TEXTS | frozenset("tVFAD")
#: Properties whose value is a single octet.
_OCTETS = (b"delivery_mode", b"priority")
_NOTHING = Message(Facts(b"", (), {}, 0), 0.0, QueueNames(), lambda _: 0)
_TOPICS = (b"topic", b"x-?rkta", b"x-?rktaci")
_SIGNS = (b"<=", b">=", b"<", b">", b"!=", b"=")


def unsatisfiable_reason(compiled: CompiledBinding) -> str | None:
    """Return the reason why a binding can't be true for any message; None if it may be true."""
    operators = compiled.operators
    binding = compiled.binding

    def named(operator: Operator) -> str:
        written = shown_line(binding.arguments, operator.key, operator.expected)[0] if binding.readable else ""
        return written or text(operator.key)

    if compiled.match_type.startswith("any"):
        if not operators:
            return f"{'' if binding.readable else 'x-'}match: any requires at least one operator"
        if all(_conflict([operator], named) for operator in operators):
            return "no operator can match"
        return None
    headers = [operator for operator in operators if isinstance(operator, HeaderOperator)]
    if compiled.match_type.startswith("set "):
        least = int(compiled.match_type.removeprefix("set "))
        if least > len(headers):
            return f"{least} header operators must match, but there are only {len(headers)}"
    if compiled.match_type.startswith(("set", "eq")):
        operators = tuple(operator for operator in operators if not isinstance(operator, HeaderOperator))
    return _conflict(operators, named)


def contradiction(contract: Contract) -> str | None:
    """Return the reason why no message can satisfy a contract; None if a message may satisfy it."""
    written = {condition.operator: condition.written for condition in contract.conditions}
    return _conflict(written, written.__getitem__)


def always_true(compiled: CompiledBinding) -> bool:
    """Return True only if a binding is true for every message."""
    if not compiled.match_type.startswith("all"):
        return False
    return all(operator.key in _TOPICS and operator.expected == ("S", b"#") for operator in compiled.operators)


def _conflict(operators: Iterable[Operator], named: Callable[[Operator], str]) -> str | None:
    """Describe operators that no message can satisfy at the same time; `named` returns the key of an operator."""
    facts: dict[FactName, list[Operator]] = {}
    for operator in operators:
        facts.setdefault(operator.fact_name, []).append(operator)
    for group in facts.values():
        if len(group) == 1 and isinstance(group[0], HeaderOperator) and group[0].index_keys:
            continue  # an equality is always true for the value that it expects
        if not _impossible(group):
            continue
        for size in (1, 2):
            for few in combinations(group, size):
                if _impossible(few):
                    return _words(list(map(named, few)))
        return _words(list(map(named, group)))
    return None


def _words(named: Sequence[str]) -> str:
    if len(named) == 1:
        return f"no value satisfies {named[0]}"
    return f"{', '.join(named[:-1])} and {named[-1]} contradict each other"


def _impossible(group: Sequence[Operator]) -> bool:
    if _opposites(group):
        return True
    with _NOTHING.uncharged():  # each group gets a full regex budget, as in a decision
        match group[0]:
            case HeaderOperator():
                return _impossible_header(cast("Sequence[HeaderOperator]", group))
            case RoutingKeyOperator():
                return _impossible_key(cast("Sequence[RoutingKeyOperator]", group))
            case PropertyOperator():
                return _impossible_property(cast("Sequence[PropertyOperator]", group))
    return False


def _opposites(group: Sequence[Operator]) -> bool:
    """Return True if both a condition and its negation occur, and neither of them is optional."""
    if group[0].fact_name[0] not in (ROUTING_KEY, CLOCK, PROPERTY):
        return False
    conditions = {(operator.key, operator.expected) for operator in group}
    negated = (operator for operator in group if b"!" in operator.key)
    return any((operator.key.replace(b"!", b"", 1), operator.expected) in conditions for operator in negated)


# -- headers -----------------------------------------------------------------------------------------------------------


def _impossible_header(group: Sequence[HeaderOperator]) -> bool:
    present = any(operator.absent is ABSENT and not operator.optional for operator in group)
    absent = any(operator.absent is MATCH for operator in group)
    if not present:
        return False
    if absent:
        return True
    equal = next((operator for operator in group if operator.index_keys), None)
    if equal is not None:
        expected = _listed(equal) if isinstance(equal, HeaderIsIn) else (equal.expected,)
        values = [value for element in expected for value in _equals(element)]
        return not any(all(operator.predicate(value, _NOTHING) for operator in group) for value in values)
    letters = _LETTERS
    for operator in group:
        # In an exchange of type headers, the value void tests for presence, and keys are header names, not operators.
        letters = letters & (_LETTERS if operator.expected.letter == "V" else _letters(operator.key))
    return not letters or _empty([(_sign(operator.key), operator.expected.value) for operator in group])


def _listed(operator: Operator) -> tuple[Value, ...]:
    return cast("tuple[Value, ...]", operator.expected.value)


def _equals(expected: Value) -> list[Value]:
    """Return the values that are equal to the given value, one for each type that operators can distinguish."""
    letter, content = expected
    if letter in NUMBERS:
        return [Value(number, content) for number in INTEGERS | FLOATS]
    if letter in TEXTS:
        return [Value(string, content) for string in TEXTS]
    if letter in "AF" and not content:
        return [Value("A", ()), Value("F", ())]
    return [expected]


@lru_cache(1024)
def _letters(key: bytes) -> frozenset[str]:
    """Return the types of the values that an operator can match."""
    head = key.partition(b" ")[0]
    test = head.removeprefix(b"x-?hkex")
    if test != head and test.removeprefix(b"!") in TYPE_TESTS:
        letters = TYPE_TESTS[test.removeprefix(b"!")]
        return _LETTERS - letters if test.startswith(b"!") else letters
    if head in (b"x-?hkvre", b"x-?hkv!re", b"x-?hk?vre", b"x-?hk?v!re"):
        return frozenset("S")
    if _sign(key) in (b"<", b"<=", b">", b">="):
        return NUMBERS
    return _LETTERS


@lru_cache(1024)
def _sign(key: bytes) -> bytes:
    head, space, _ = key.partition(b" ")
    if not space or not head.startswith((b"x-?hkv", b"x-?hk?v", b"x-?pr")):
        return b""
    return next((sign for sign in _SIGNS if head.endswith(sign)), b"")


def _empty(bounds: Iterable[tuple[bytes, object]], whole: bool = False, octet: bool = False) -> bool:
    """Return True if no number lies within the bounds.

    Args:
        bounds: operator and number of each comparison. Operators other than < <= > >= = are ignored.
        whole: whether only integers count.
        octet: whether only numbers from 0 to 255 count.
    """
    low: tuple[float, bool] | None = (0, False) if octet else None
    high: tuple[float, bool] | None = (255, False) if octet else None
    for sign, number in bounds:
        if not isinstance(number, (int, float)) or isinstance(number, bool):
            continue
        strict = not sign.endswith(b"=")
        if whole and strict:
            number, strict = number + (1 if sign == b">" else -1), False
        if sign in (b">", b">=") or sign == b"=":
            low = max(low, (number, strict)) if low else (number, strict)
        if sign in (b"<", b"<=") or sign == b"=":
            # If two upper bounds are equal, the strict bound is narrower.
            high = min(high, (number, strict), key=lambda bound: (bound[0], not bound[1])) if high else (number, strict)
    if low is None or high is None:
        return False
    return low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1]))


# -- routing key and properties ----------------------------------------------------------------------------------------


def _impossible_key(group: Sequence[RoutingKeyOperator]) -> bool:
    equal = next(
        (operator for operator in group if operator.index_keys[:1] and operator.index_keys[0][0] != TOPIC), None
    )
    if equal is None:
        return False
    keys = [cast("bytes", value) for _, _, value in equal.index_keys]
    return not any(all(operator.predicate(key, _NOTHING) for operator in group) for key in keys)


def _impossible_property(group: Sequence[PropertyOperator]) -> bool:
    present = any(operator.absent is ABSENT for operator in group)
    absent = any(operator.absent is MATCH for operator in group)
    if present and absent:
        return True
    if not present:
        return False
    equal = next((operator for operator in group if operator.index_keys), None)
    if equal is not None:
        values = [cast("bytes | int", value) for _, _, value in equal.index_keys]
        if not any(all(operator.predicate(value, _NOTHING) for operator in group) for value in values):
            return True
    octet = group[0].name.encode() in _OCTETS
    if not octet and all(isinstance(operator.expected.value, bytes) for operator in group):
        return False
    return _empty([(_sign(operator.key), operator.expected.value) for operator in group], whole=True, octet=octet)
