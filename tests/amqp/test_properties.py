from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxproxy.amqp.properties import HEADERS, decode_properties, header_table
from oxproxy.amqp.tables import encode_table
from oxproxy.errors import ProtocolError, Scope
from oxproxy.values import Table
from tests.amqp.test_tables import refusal
from tests.client import encode_properties
from tests.relay.contents import tables

_texts = st.binary(max_size=255) | st.just(b"")
_layout: list[tuple[str, st.SearchStrategy[bytes | int] | st.SearchStrategy[bytes]]] = [
    ("content_type", _texts),
    ("content_encoding", _texts),
    ("headers", st.just(b"")),
    ("delivery_mode", st.integers(0, 255)),
    ("priority", st.integers(0, 255)),
    ("correlation_id", _texts),
    ("reply_to", _texts),
    ("expiration", _texts),
    ("message_id", _texts),
    ("timestamp", st.integers(0, 2**64 - 1)),
    ("type", _texts),
    ("user_id", _texts),
    ("app_id", _texts),
    ("cluster_id", _texts),
]
_sets = st.fixed_dictionaries({}, optional=dict(_layout))


def _encode(properties: dict[str, bytes | int], entries: bytes) -> tuple[bytes, int]:
    """Return the encoded properties and their flags; ``entries`` is the encoded header table, if there is one."""
    others = {name: content for name, content in properties.items() if name != "headers"}
    flags, encoded = encode_properties(others, entries if "headers" in properties else None)
    return encoded, flags


@given(_sets, tables(), st.integers(0, 3))
def test_every_set_of_properties_is_read_regardless_of_the_low_flag_bits(
    properties: dict[str, bytes | int], table: Table, low_bits: int
) -> None:
    encoded, flags = _encode(properties, encode_table(table))
    data = b"ahead" + encoded + b"behind"
    decoded = decode_properties(data, 5, 5 + len(encoded), flags | low_bits)
    assert decoded == {name: content for name, content in properties.items() if name != "headers"}


@given(_sets, tables())
def test_the_header_table_is_found_or_the_place_to_insert_it(properties: dict[str, bytes | int], table: Table) -> None:
    entries = encode_table(table)
    encoded, flags = _encode(properties, entries)
    data = struct.pack(">5sH", b"ahead", flags) + encoded + b"behind"
    at, first, last = header_table(data, 7, 7 + len(encoded))
    before: dict[str, bytes | int] = {
        name: properties[name] for name in ("content_type", "content_encoding") if name in properties
    }
    assert data[7:at] == encode_properties(before, None)[1]
    if flags & HEADERS:
        assert data[at:last] == struct.pack(">I", len(entries)) + entries
        assert first == at + 4
    else:
        assert first == last == at


@given(_sets, st.frozensets(st.sampled_from([name for name, _ in _layout])))
def test_only_requested_properties_are_returned(properties: dict[str, bytes | int], wanted: frozenset[str]) -> None:
    encoded, flags = _encode(properties, b"")
    decoded = decode_properties(encoded, 0, len(encoded), flags, wanted)
    assert set(decoded) == set(properties) & wanted - {"headers"}


@given(_sets, st.data())
def test_truncated_properties_are_an_error_even_with_further_bytes(
    properties: dict[str, bytes | int], data: st.DataObject
) -> None:
    encoded, flags = _encode(properties, b"\x01aV")
    if not encoded:
        return
    end = data.draw(st.integers(0, len(encoded) - 1))
    for content, limit in ((encoded, end), (encoded[:end], end), (encoded[:end], len(encoded))):
        with pytest.raises(ProtocolError) as refused:
            decode_properties(content, 0, limit, flags)
        assert (refused.value.reply_code, refused.value.scope) == (502, Scope.CONNECTION)


@given(st.binary(max_size=60), st.integers(0, 0xFFFF))
def test_random_bytes_are_properties_or_a_connection_error(data: bytes, flags: int) -> None:
    answers = {
        refusal(lambda: header_table(flags.to_bytes(2, "big") + data, 2, 2 + len(data))),
        refusal(lambda: decode_properties(data, 0, len(data), flags)),
    }
    assert answers <= {None, (502, Scope.CONNECTION)}
