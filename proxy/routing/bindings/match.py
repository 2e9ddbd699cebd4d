"""How do the answers of a binding's operators become its truth?

Four folds, one for each match type. They know operators only by their answers; `eq` and `set` also walk the whole
header table. Which of the facts outside its operators a fold looks at, and which equalities it cannot be true
without, is said here too, since both follow from the fold.

Source: the open-exchange specification, sections 3 and 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeAlias

from proxy.routing.bindings.operators import (
    ABSENT,
    ALL_HEADERS,
    MATCH,
    MISMATCH,
    TOPIC,
    Access,
    HeaderOperator,
    Need,
    Operator,
)
from proxy.routing.message import Message
from proxy.values import Table

Truth: TypeAlias = Callable[[Message], bool]

_by_header = attrgetter("name")


@dataclass(frozen=True, slots=True)
class Match:
    """What a fold makes of a binding's operators.

    Args:
        truth: whether the binding is true for a message.
        required: equalities that all hold where the binding is true.
        either: equalities of which at least one holds where the binding is true; None: it can do without.
        needs: facts beyond those of the operators that the truth depends on.
    """

    truth: Truth
    required: tuple[Access, ...] = ()
    either: tuple[Access, ...] | None = None
    needs: tuple[Need, ...] = ()


def match_all(operators: Sequence[Operator]) -> Match:
    """True when every operator matches, an optional one also where it is absent."""
    strict = tuple(operator.verdict for operator in operators if not operator.optional)
    lenient = tuple(operator.verdict for operator in operators if operator.optional)
    ways = _ways(operator for operator in operators if not operator.optional)
    if len(strict) == 1 and not lenient:
        only = strict[0]
        return Match(lambda message: only(message) is MATCH, ways)

    def truth(message: Message) -> bool:
        for verdict in strict:
            if verdict(message) is not MATCH:
                return False
        for verdict in lenient:
            if verdict(message) is MISMATCH:
                return False
        return True

    return Match(truth, ways)


def match_any(operators: Sequence[Operator]) -> Match:
    """True when at least one operator matches."""
    verdicts = tuple(operator.verdict for operator in operators)

    def truth(message: Message) -> bool:
        for verdict in verdicts:
            if verdict(message) is MATCH:
                return True
        return False

    ways = [operator.access for operator in operators]
    places = tuple(way for way in ways if way is not None)
    return Match(truth, either=places if len(places) == len(ways) else None)


def match_eq(headers: Sequence[HeaderOperator], others: Sequence[Operator]) -> Match:
    """True when the others match and the header table is exactly what the header operators describe."""
    walk = _arranged(headers)
    rest = match_all(others)

    def truth(message: Message) -> bool:
        return rest.truth(message) and _walk_eq(walk, message)

    ways = rest.required + _ways(each for each in headers if not each.optional)
    return Match(truth, ways, needs=(ALL_HEADERS,))


def match_set(headers: Sequence[HeaderOperator], others: Sequence[Operator], least: int) -> Match:
    """True when the others match, no header operator fails on a present header and at least `least` succeed."""
    walk = _arranged(headers)
    rest = match_all(others)

    def truth(message: Message) -> bool:
        return rest.truth(message) and _walk_set(walk, message) >= least

    ways = rest.required
    if least >= len(walk):
        # None of them may be missing from the count, so that each must succeed.
        ways += _ways(headers)
    return Match(truth, ways, needs=(ALL_HEADERS,) if _count_can_stop(walk) else ())


def _ways(operators: Iterable[Operator]) -> tuple[Access, ...]:
    """The equalities among operators that must all match; topics only where there is nothing better."""
    ways = [operator.access for operator in operators if operator.access is not None]
    return tuple(sorted(ways, key=lambda way: way[0] == TOPIC))


def _arranged(headers: Sequence[HeaderOperator]) -> tuple[HeaderOperator, ...]:
    """By header name; under one name by descending argument key, elements of a list in reverse.

    They come by ascending key, elements in order.
    """
    arranged = list(reversed(headers))
    arranged.sort(key=_by_header)
    return tuple(arranged)


def _walk_eq(walk: tuple[HeaderOperator, ...], message: Message) -> bool:
    headers = message.sorted_headers
    at, end = 0, len(headers)
    for operator in walk:
        if at == end or headers[at][0] > operator.name:
            if operator.absent is ABSENT and not operator.optional:
                return False
            continue
        name, value = headers[at]
        if name < operator.name or not operator.judge(value, message):
            return False
        at += operator.uses_up
    return at == end


def _walk_set(walk: tuple[HeaderOperator, ...], message: Message) -> int:
    """How many operators succeeded; -1 where one failed."""
    headers = message.sorted_headers
    at, end, count = 0, len(headers), 0
    for operator in walk:
        at = _skip_smaller(headers, at, operator.name)
        if at == end or headers[at][0] > operator.name:
            if operator.absent is MATCH:
                count += 1
            elif at == end and not operator.compares:
                return count
            continue
        if not operator.judge(headers[at][1], message):
            return -1
        count += 1
        at += operator.uses_up
    return count


def _skip_smaller(headers: Table, at: int, name: bytes) -> int:
    end = len(headers)
    while at < end and headers[at][0] < name:
        at += 1
    return at


def _count_can_stop(walk: tuple[HeaderOperator, ...]) -> bool:
    """Whether headers that no operator names can change the count.

    They can by being there at all: counting stops at a test of existence or type behind the last header, which
    shows only where a test of absence follows.
    """
    tests = [at for at, operator in enumerate(walk) if not operator.compares and operator.absent is ABSENT]
    absences = [at for at, operator in enumerate(walk) if operator.absent is MATCH]
    return bool(tests and absences) and tests[0] < absences[-1]
