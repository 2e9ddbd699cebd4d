from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.addressing.table import AddressRule, AddressTable
from proxy.addressing.targets import Publication
from proxy.routing.original_address import record, restore, visible
from proxy.values import Value

ORIGINAL, NEW = Publication(b"logs", b"a.b"), Publication(b"", b"q")


@given(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), st.tuples(st.binary(max_size=9), st.binary(max_size=9)))
def test_the_receiver_sees_the_original_pair(original: tuple[bytes, bytes], new: tuple[bytes, bytes]) -> None:
    header = record(Publication(*original), Publication(*new))
    assert (header is None) == (original == new)
    assert header is None or restore(header, Publication(*new)) == original


def test_a_message_that_was_moved_since_is_left_alone() -> None:
    header = record(ORIGINAL, NEW)
    assert header is not None
    assert restore(header, Publication(b"dead", b"q")) is None


def test_the_header_says_nothing_of_the_broker() -> None:
    header = record(ORIGINAL, NEW)
    assert header == Value(
        "F",
        (
            (b"exchange", Value("S", b"logs")),
            (b"routing-key", Value("S", b"a.b")),
            (b"new-exchange", Value("S", b"")),
            (b"new-routing-key", Value("S", b"q")),
        ),
    )


@pytest.mark.parametrize(
    "header",
    [
        Value("S", b"logs"),
        Value("F", ()),
        Value("V", None),
        Value("F", ((b"exchange", Value("S", b"logs")),)),
        Value(
            "F",
            tuple((name, Value("I", 1)) for name in (b"exchange", b"routing-key", b"new-exchange", b"new-routing-key")),
        ),
    ],
)
def test_a_header_that_is_not_ours_is_left_alone(header: Value) -> None:
    assert restore(header, NEW) is None


def test_the_address_is_shown_as_it_was_given_unless_rewrites_are_set() -> None:
    address = b"amqp://fred:trustno1@example.org/x"
    rewrites = AddressTable([AddressRule(b"foo", b"bar"), AddressRule(b"gone", None)])
    assert visible(address) == address
    assert visible(address, rewrites) == b"amqp://example.org/x"
    assert visible(b"foo", rewrites) == b"bar"
    assert visible(b"gone", rewrites) == b""
