"""The contract of an exchange: conditions that every message has to satisfy before the bindings are evaluated.

A contract either rejects a message that violates a condition, or only observes the violations. In the second case, the
message is routed as if there were no contract, and the filters that would close the channel are also only observed.

Conditions are the operators of bindings. The facts that they test are part of the exchange's interest, so the result
is cached with the decision. Reply texts contain the condition and the kind of the value, never the value itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, tzinfo
from typing import Final, NamedTuple

from oxproxy.routing.bindings.arguments import read_arguments
from oxproxy.routing.bindings.compiled import Draft, is_regex_key
from oxproxy.routing.bindings.operators import FLOATS, INTEGERS, MATCH, MISMATCH, TEXTS, FactName, Operator
from oxproxy.routing.message import Message
from oxproxy.values import QUEUE, Value


class RequiredCondition(NamedTuple):
    """One condition of a contract.

    Args:
        written: the condition without its value, such as ``amount >=``; for audit records and tests.
        expected: the value, as text.
    """

    operator: Operator
    written: str
    expected: str


class Contract:
    """The conditions of one exchange, in the order in which they are checked.

    Args:
        conditions: the conditions, all of which must be true.
        observes: whether violations are only recorded.
    """

    __slots__ = ("_operators", "_searches", "conditions", "observes")

    def __init__(self, conditions: Sequence[RequiredCondition], observes: bool = False) -> None:
        self.conditions: Final = tuple(conditions)
        self.observes: Final = observes
        self._operators: Final = tuple([condition.operator for condition in conditions])
        self._searches: Final = any(is_regex_key(operator.key) for operator in self._operators)

    @property
    def fact_names(self) -> Iterator[FactName]:
        for operator in self._operators:
            yield operator.fact_name

    def violated(self, message: Message) -> list[int]:
        """Return the indexes of the violated conditions; only the first one if violations are rejected.

        Searches are charged to the rules files. If their budget is spent, a condition that needs a search is violated.
        """
        if self._searches:
            message.charge(None)
        violated: list[int] = []
        index = 0
        for operator in self._operators:
            verdict = operator.verdict(message)
            if verdict is not MATCH and (verdict is MISMATCH or not operator.optional):
                violated.append(index)
                if not self.observes:
                    break
            index += 1
        if self._searches and message.budget.exceeded:
            message.note_spent(None)
        return violated

    def refusal(self, index: int, message: Message) -> str:
        """Return the reply text for a message that violates a condition."""
        operator, written, expected = self.conditions[index]
        return f"Contract violated: {written}: got {_kind(operator.seen(message))}, expected {expected}"


def read_condition(
    argument: tuple[bytes, Value], written: str, expected: str, local_time: tzinfo | None = UTC
) -> list[RequiredCondition]:
    """Compile one condition of a contract, given as an argument of a binding with the match type ``all``.

    Args:
        written: the condition without its value.
        expected: the value, as text.

    Returns:
        One condition, or one for each element of a list of which every element is compared.

    Raises:
        ProtocolError: the argument is not valid.
    """
    draft = Draft((QUEUE, b""), local_time, extensions=True)
    read_arguments((argument,), draft)
    return [RequiredCondition(operator, written, expected) for operator in (*draft.others, *draft.headers)]


def _kind(seen: Value | bytes | int | None) -> str:
    if seen is None:
        return "nothing"
    if isinstance(seen, bytes):
        return "another string"
    if isinstance(seen, int):
        return "another number"
    letter = seen.letter
    if letter in TEXTS:
        return "a string"
    if letter in INTEGERS:
        return "an integer"
    if letter in FLOATS:
        return "a number"
    return {"t": "a boolean", "A": "a list", "F": "a table", "V": "null"}.get(letter, "a decimal")
