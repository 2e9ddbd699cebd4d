"""The differences from the vectors that are intended; docs/explanation/deviations.md has each as a row, word by word.

A deviation says what must come instead: a vector counts as accounted for only if exactly that came. It looks at what a
vector declares and publishes, never at its id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.conformance import open_exchange
from tests.conformance.broker import delivery_mode_is_known
from tests.conformance.typed import Json, table_of
from tests.producer import stored_by_4

Version = tuple[int, ...]


class Run(NamedTuple):
    """Where vectors were played.

    Args:
        delivery: of the open exchanges, ``carrier`` or ``queue``.
        version: of RabbitMQ, e.g. ``(3, 10, 8)``.
        carrier_type: asked for in declarations of open exchanges; "" asks for none.
    """

    delivery: str
    version: Version
    carrier_type: str = ""


class Difference(NamedTuple):
    """A vector of which something else came than expected.

    Args:
        vector: the vector.
        expected: the result that counts.
        got: the result.
        beside: what the broker itself answers to the same, without the sidecar; None for what only the sidecar knows.
    """

    vector: Json
    expected: Json
    got: Json
    beside: Json | None


class Deviation(NamedTuple):
    """A difference that is meant.

    Args:
        name: of it.
        where: in words.
        vectors: how many of all vectors show it, in each run to which it applies.
        reason: why it is so.
        applies: whether it can be seen in a run.
        holds: whether a difference is this one.
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


def _twice(found: Difference) -> bool:
    vector, expected, got = found.vector, found.expected, found.got
    if got.get("exchanges") != expected.get("exchanges"):
        return False
    real = {extra["name"] for extra in vector.get("extra_exchanges", ()) if extra["type"] != "x-open"}
    direct = {one["destination"] for one in vector["bindings"] if one["destination_type"] == "queue"}
    behind = {
        one["destination"]
        for extra in vector.get("extra_exchanges", ())
        if extra["name"] in real
        for one in extra["bindings"]
    }
    both = [queue for queue in expected.get("queues", ()) if queue in direct & behind]
    return bool(both) and got.get("queues") == expected["queues"] + [f"{queue} again" for queue in both]


def _of_the_broker(found: Difference) -> bool:
    return found.vector.get("exchange_type") == "headers" and bool(found.got == found.beside)


def _any_mode(found: Difference) -> bool:
    if delivery_mode_is_known(found.vector["message"]["properties"].get("delivery_mode")):
        return False
    return bool(found.got == open_exchange.result(found.vector, modes_are_checked=False))


def _first_of_a_name(found: Difference) -> bool:
    headers = table_of(found.vector["message"]["headers"] or {})
    kept = stored_by_4(headers)
    arrived = [f"{queue}: arrived with headers {kept}" for queue in found.expected.get("queues", ())]
    return len(kept) < len(headers) and bool(found.got == found.expected | {"queues": arrived})


def _queue_delivery(run: Run) -> bool:
    return run.delivery == "queue"


def _rabbitmq_4(run: Run) -> bool:
    return run.version >= (4,)


DEVIATIONS = (
    Deviation(
        "a queue selected directly and through an exchange",
        "delivery `queue`",
        4,
        "a destination exchange needs a separate publish, and the broker removes duplicates only within one publish: "
        "a queue that is a destination and is also bound to a destination exchange receives the message twice",
        _queue_delivery,
        _twice,
    ),
    Deviation(
        "headers exchanges of RabbitMQ 4.0",
        "RabbitMQ 4.0",
        17,
        "the broker evaluates these exchanges: an integer never equals a float, a timestamp equals nothing, and the "
        "last of several headers with the same name is used",
        _rabbitmq_4,
        _of_the_broker,
    ),
    Deviation(
        "delivery modes other than 1 and 2",
        "RabbitMQ 4.0",
        3,
        "the broker accepts these modes, while 3.10 refuses the message; rules are evaluated as usual",
        _rabbitmq_4,
        _any_mode,
    ),
    Deviation(
        "duplicate header names",
        "RabbitMQ 4.0",
        6,
        "rules are evaluated with all duplicates, as on 3.10, but the broker stores only the first",
        _rabbitmq_4,
        _first_of_a_name,
    ),
)


def possible(run: Run) -> Iterator[Deviation]:
    """The deviations that can be seen in a run."""
    return (deviation for deviation in DEVIATIONS if deviation.applies(run))


def accounting_for(found: Difference, run: Run) -> str:
    """Give the name of the deviation that makes a result what it is; "" where it is a fault."""
    return next((deviation.name for deviation in possible(run) if deviation.holds(found)), "")
