from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.addressing.table import AddressIndex, AddressPattern


def index_of(*patterns: bytes) -> AddressIndex:
    return AddressIndex([AddressPattern(pattern) for pattern in patterns])


def test_patterns_that_differ_in_the_middle_only_are_told_apart() -> None:
    index = index_of(*(b"%%/team%d/*" % number for number in range(1000)))
    assert index.candidates(b"eu/team998/order") == [998]
    assert len(index.candidates(b"eu/nobody/order")) == 0


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("ab/*%", max_size=8), max_size=12), st.text("ab/", max_size=10))
def test_no_pattern_that_fits_before_an_equal_one_is_left_out(patterns: list[str], address: str) -> None:
    compiled = [AddressPattern(pattern.encode()) for pattern in patterns]
    fitting = [at for at, pattern in enumerate(compiled) if pattern.match(address.encode()) is not None]
    candidates = AddressIndex(compiled).candidates(address.encode())
    assert candidates == sorted(set(candidates))
    assert fitting[:1] == [at for at in candidates if at in fitting][:1]
