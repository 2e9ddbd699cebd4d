"""Hypothesis strategies for content headers: properties, and header tables with every field type."""

from __future__ import annotations

from hypothesis import strategies as st

from oxproxy.values import Table, Value
from tests.client import PROPERTIES

SHORT = st.binary(max_size=20) | st.binary(min_size=255, max_size=255)
#: Upper bounds of the numeric properties.
_TOP = {"delivery_mode": 255, "priority": 255, "timestamp": 2**64 - 1}


@st.composite
def properties(draw: st.DrawFn) -> dict[str, bytes | int]:
    """All properties except the header table. Empty strings and missing properties both occur."""
    names = [name for name, _ in PROPERTIES if name != "headers"]
    result: dict[str, bytes | int] = {}
    for name in draw(st.lists(st.sampled_from(names), unique=True)):
        result[name] = draw(st.integers(0, _TOP[name])) if name in _TOP else draw(SHORT)
    return result


#: Letters of the integer types, with their number of bits.
_SIGNED, _UNSIGNED = {"b": 8, "s": 16, "I": 32, "l": 64, "L": 64}, {"B": 8, "u": 16, "i": 32, "T": 64}


def _integers(letter: str, low: int, high: int) -> st.SearchStrategy[Value]:
    return st.integers(low, high).map(lambda number: Value(letter, number))


def _scalars() -> st.SearchStrategy[Value]:
    return st.one_of(
        *(_integers(letter, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for letter, bits in _SIGNED.items()),
        *(_integers(letter, 0, 2**bits - 1) for letter, bits in _UNSIGNED.items()),
        st.booleans().map(lambda bit: Value("t", bit)),
        st.floats(allow_nan=False, allow_infinity=False).map(lambda number: Value("d", number)),
        st.floats(allow_nan=False, allow_infinity=False, width=32).map(lambda number: Value("f", number)),
        st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1)).map(lambda pair: Value("D", pair)),
        st.just(Value("V", None)),
        st.binary(max_size=30).map(lambda text: Value("S", text)),
        st.binary(max_size=30).map(lambda octets: Value("x", octets)),
    )


#: Header names with a meaning for rules, the broker or the sidecar, and others, e.g. empty, binary or long names.
NAMES = st.sampled_from(
    [b"type", b"BCC", b"CC", b"bcc", b"x-original-address", b"x-original-cc", b"x-death", b"", b"\xff\xfe", b"n" * 255]
) | st.binary(max_size=8)


def tables() -> st.SearchStrategy[Table]:
    """Header tables with duplicates, nested tables and arrays, and names that have a meaning in routing."""
    values = st.recursive(
        _scalars(),
        lambda inner: (
            st.lists(inner, max_size=4).map(lambda some: Value("A", tuple(some)))
            | st.lists(st.tuples(NAMES, inner), max_size=4).map(lambda some: Value("F", tuple(some)))
        ),
        max_leaves=8,
    )
    routing = st.tuples(st.sampled_from([b"CC", b"BCC"]), st.just(Value("A", (Value("S", b"k"),))))
    return st.lists(st.tuples(NAMES, values) | routing, max_size=6).map(tuple)
