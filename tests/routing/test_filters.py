from __future__ import annotations

import pytest

from proxy.routing.decision import Facts
from proxy.routing.filters import read_filters
from tests.routing.building import Plain, arguments, facts, many, message


def _breach(limits: dict[str, int], seen: Facts) -> str | None:
    """What the first broken limit says, with a mark for silent ones."""
    for each in read_filters(arguments(limits)):
        text = each.breach(message(seen))
        if text is not None:
            return text.removesuffix(" hit.") + (" (silent)" if each.silent else "")
    return None


def _heavy(**headers: Plain) -> Facts:
    return facts(headers=headers)


def test_very_deep_lists_need_no_stack() -> None:
    deep = many()
    for _ in range(5000):
        deep = many(deep)
    assert _breach({"max-headers-depth": 10_000, "max-headers-size": 10**9}, _heavy(a=deep)) is None


@pytest.mark.parametrize(
    ("seen", "breach"),
    [
        (facts(size=160), None),
        (facts(size=1024), None),
        (facts(size=159), "Min size payload (silent)"),
        (facts(size=1025), "Max size payload"),
        (facts(size=500, headers={"a": many(many(many(many())))}), None),
        (facts(size=500, headers={"a": many(many(many(many(many()))))}), "Max headers depth"),
        (facts(size=500, headers={"a": "x" * 16384}), "Max headers size"),
    ],
)
def test_a_usual_set_of_filters(seen: Facts, breach: str | None) -> None:
    limits = {
        "max-headers-depth": 4,
        "max-headers-size": 16384,
        "max-payload-size": 1024,
        "min-payload-size-silent": 160,
    }
    assert _breach(limits, seen) == breach
