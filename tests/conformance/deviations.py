"""The intended differences from the vectors. docs/explanation/deviations.md has a row with the same text for each.

A deviation accounts for a vector only if the result is exactly the one that it specifies. It examines what a vector
declares and publishes, never its id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from tests.conformance import open_exchange
from tests.conformance.broker import delivery_mode_is_known
from tests.conformance.typed import Json, table_of
from tests.producer import stored_by_4

Version = tuple[int, ...]


class Run(NamedTuple):
    """The conditions under which vectors were run.

    Args:
        version: version of RabbitMQ, e.g. ``(3, 10, 8)``.
        carrier_type: type requested in declarations of open exchanges; empty for none.
    """

    version: Version
    carrier_type: str = ""


class Difference(NamedTuple):
    """A vector with an unexpected result.

    Args:
        vector: the vector.
        expected: the expected result.
        got: the actual result.
        broker_result: the broker's result without the sidecar; None if only the sidecar knows the exchange type.
    """

    vector: Json
    expected: Json
    got: Json
    broker_result: Json | None


class Deviation(NamedTuple):
    """An intended difference.

    Args:
        name: name of the deviation.
        where: the conditions, in words.
        vectors: number of vectors with this difference, in each run in which it can occur.
        reason: its explanation.
        applies: whether it can occur in a run.
        holds: whether it accounts for a difference.
    """

    name: str
    where: str
    vectors: int
    reason: str
    applies: Callable[[Run], bool]
    holds: Callable[[Difference], bool]

    @property
    def row(self) -> str:
        """Its row in docs/explanation/deviations.md."""
        return f"| {self.name} | {self.where} | {self.vectors} | {self.reason} |"


def _of_the_broker(exchange_type: str, difference: Difference) -> bool:
    vector, got = difference.vector, difference.got
    return vector.get("exchange_type") == exchange_type and bool(got == difference.broker_result)


def _any_mode(difference: Difference) -> bool:
    if delivery_mode_is_known(difference.vector["message"]["properties"].get("delivery_mode")):
        return False
    return bool(difference.got == open_exchange.result(difference.vector, modes_are_checked=False))


def _first_of_a_name(difference: Difference) -> bool:
    headers = table_of(difference.vector["message"]["headers"] or {})
    kept = stored_by_4(headers)
    arrived = [f"{queue}: arrived with headers {kept}" for queue in difference.expected.get("queues", ())]
    return len(kept) < len(headers) and bool(difference.got == difference.expected | {"queues": arrived})


def _rabbitmq_3_8(run: Run) -> bool:
    return run.version < (3, 10)


def _rabbitmq_4(run: Run) -> bool:
    return run.version >= (4,)


def _rabbitmq_4_3(run: Run) -> bool:
    return run.version >= (4, 3)


DEVIATIONS = (
    Deviation(
        "headers exchanges on the broker refuse the `x-match` values `all-with-x` and `any-with-x`",
        "RabbitMQ 3.8",
        286,
        "they exist since 3.10",
        _rabbitmq_3_8,
        partial(_of_the_broker, "headers"),
    ),
    Deviation(
        "headers exchanges on the broker compare values differently",
        "RabbitMQ 4.0 and later",
        17,
        "an integer never equals a float, a timestamp equals nothing, and the last of several headers with the same "
        "name is used",
        _rabbitmq_4,
        partial(_of_the_broker, "headers"),
    ),
    Deviation(
        "messages with delivery modes other than 1 and 2 are accepted",
        "RabbitMQ 4.0 and later",
        3,
        "3.10 refuses such messages; rules are evaluated as usual",
        _rabbitmq_4,
        _any_mode,
    ),
    Deviation(
        "only the first of several headers with the same name is stored",
        "RabbitMQ 4.0 and later",
        6,
        "rules are still evaluated with all of them, as on 3.10",
        _rabbitmq_4,
        _first_of_a_name,
    ),
    Deviation(
        "topic exchanges on the broker refuse bindings with more than two `#`",
        "RabbitMQ 4.3 and later",
        18,
        "each of them multiplies the work of the broker; topic operators in rules and in client bindings have no such "
        "limit",
        _rabbitmq_4_3,
        partial(_of_the_broker, "topic"),
    ),
)


def possible(run: Run) -> Iterator[Deviation]:
    """The deviations that can occur in a run."""
    return (deviation for deviation in DEVIATIONS if deviation.applies(run))


def accounting_for(difference: Difference, run: Run) -> str:
    """The name of the deviation that accounts for a difference; empty if there is none."""
    return next((deviation.name for deviation in possible(run) if deviation.holds(difference)), "")
