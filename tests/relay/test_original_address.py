from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.amqp.tables import decode_table, encode_table
from proxy.relay.original_address import ADDRESS_HEADER, CC_ASIDE, OriginalAddress, entry, longstr_entry, read, restored
from proxy.values import Table, Value

FROM, TO = OriginalAddress(b"documents", b"report"), OriginalAddress(b"", b"printer")
NAMES = st.binary(max_size=255)


def text(value: bytes) -> Value:
    return Value("S", value)


def address(*fields: tuple[bytes, Value]) -> bytes:
    return encode_table(((ADDRESS_HEADER, Value("F", fields)),))


PAIR = (
    (b"exchange", text(b"documents")),
    (b"routing-key", text(b"report")),
    (b"new-exchange", text(b"")),
    (b"new-routing-key", text(b"printer")),
)


def test_the_header_holds_the_original_pair_and_the_new_one() -> None:
    data = entry(FROM, TO)
    assert decode_table(data, 0, len(data)) == ((b"x-original-address", Value("F", PAIR)),)


@given(NAMES, NAMES, NAMES, NAMES)
def test_an_encoded_address_is_decoded_again(exchange: bytes, key: bytes, new_exchange: bytes, new_key: bytes) -> None:
    original, new = OriginalAddress(exchange, key), OriginalAddress(new_exchange, new_key)
    around = longstr_entry(b"a", b"b")
    assert read(around + entry(original, new) + around) == (original, new)


@pytest.mark.parametrize(
    "entries",
    [
        b"",
        longstr_entry(b"x-original-addres", b"x-original-address"),
        longstr_entry(ADDRESS_HEADER, b"documents"),
        encode_table(((ADDRESS_HEADER, Value("A", (text(b"documents"),))),)),
        encode_table(((ADDRESS_HEADER, Value("V", None)),)),
        address(),
        address(*PAIR[:3]),
        address(*PAIR, (b"host", text(b"elsewhere"))),
        address(*PAIR[:3], PAIR[0]),
        address(*PAIR[:3], (b"new-routing-key", Value("I", 1))),
        address(*PAIR[:3], (b"new-routing-key", Value("x", b"printer"))),
    ],
)
def test_a_header_in_another_form_is_ignored(entries: bytes) -> None:
    assert read(entries) is None


def test_the_first_of_duplicate_headers_counts() -> None:
    assert read(longstr_entry(ADDRESS_HEADER, b"forged") + entry(FROM, TO)) is None
    assert read(entry(FROM, TO) + entry(TO, FROM)) == (FROM, TO)


CC = Value("A", (text(b"one"), text(b"two")))


def test_restored_entries_are_the_producers_including_cc() -> None:
    own: Table = ((b"type", text(b"report")), (b"priority", Value("s", 4)))
    aside: Table = ((CC_ASIDE, CC),)
    left = encode_table(own) + encode_table(aside) + entry(FROM, TO)
    assert decode_table(restored(left), 0, len(restored(left))) == (*own, (b"CC", CC))
