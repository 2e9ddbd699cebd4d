"""Which differences from the vectors are meant? Each is documented in docs/deviations.md under its name.

A deviation says what must come instead: a vector counts as accounted for only if exactly that came. It looks at what a
vector declares, never at its id.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.conformance.typed import Json


def _twice(vector: Json, expected: Json, got: Json, delivery: str) -> bool:
    """A destination that is an exchange costs a publish of its own: what is reached both ways gets both."""
    if delivery != "queue" or got.get("exchanges") != expected.get("exchanges"):
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


#: by the name under which docs/deviations.md has it
DEVIATIONS: dict[str, Callable[[Json, Json, Json, str], bool]] = {"a queue reached both ways": _twice}


def accounting_for(vector: Json, expected: Json, got: Json, delivery: str) -> str:
    """Give the name of the deviation that makes a result what it is; "" where it is a fault."""
    return next((name for name, holds in DEVIATIONS.items() if holds(vector, expected, got, delivery)), "")
