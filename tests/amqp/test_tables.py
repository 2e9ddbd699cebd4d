from __future__ import annotations

import math
import struct
from collections.abc import Callable
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxproxy.amqp.tables import (
    MAX_NESTING,
    decode_table,
    decode_value,
    encode_table,
    encode_value,
    pick,
    refuse_undecodable,
    too_deep,
    without,
)
from oxproxy.errors import LocalProtocolError, ProtocolError, Scope
from oxproxy.values import Table, Value
from tests.relay.contents import NAMES, tables

#: Type letter, Python value, and the bytes after the letter (AMQP 0-9-1 errata, "Field types", as decoded by RabbitMQ).
EVERY_LETTER: list[tuple[str, object, bytes]] = [
    ("t", True, b"\x01"),
    ("t", False, b"\x00"),
    ("b", -128, b"\x80"),
    ("B", 255, b"\xff"),
    ("s", -32768, b"\x80\x00"),
    ("u", 65535, b"\xff\xff"),
    ("I", -(2**31), b"\x80\x00\x00\x00"),
    ("i", 2**32 - 1, b"\xff\xff\xff\xff"),
    ("l", -(2**63), b"\x80" + bytes(7)),
    ("L", -1, b"\xff" * 8),
    ("T", 2**64 - 1, b"\xff" * 8),
    ("f", 0.5, b"\x3f\x00\x00\x00"),
    ("d", 0.1, b"\x3f\xb9\x99\x99\x99\x99\x99\x9a"),
    ("D", (2, 314), b"\x02\x00\x00\x01\x3a"),
    ("S", b"\xff\x00text", b"\x00\x00\x00\x06\xff\x00text"),
    ("S", b"", b"\x00\x00\x00\x00"),
    ("x", b"\x00\x01", b"\x00\x00\x00\x02\x00\x01"),
    ("A", (Value("t", True), Value("V", None)), b"\x00\x00\x00\x03t\x01V"),
    ("A", (), b"\x00\x00\x00\x00"),
    ("F", ((b"k", Value("V", None)),), b"\x00\x00\x00\x03\x01kV"),
    ("F", (), b"\x00\x00\x00\x00"),
    ("V", None, b""),
]


@pytest.mark.parametrize(("letter", "content", "encoded"), EVERY_LETTER)
def test_every_field_type_is_encoded_and_decoded(letter: str, content: object, encoded: bytes) -> None:
    raw = letter.encode() + encoded
    assert decode_value(raw) == Value(letter, content)
    assert encode_value(Value(letter, content)) == raw


@given(tables())
def test_encoded_table_decodes_to_itself(table: Table) -> None:
    encoded = encode_table(table)
    assert decode_table(b"left" + encoded + b"right", 4, 4 + len(encoded)) == table


@given(tables(), st.sets(NAMES, max_size=3))
def test_pick_gives_the_raw_bytes_of_wanted_entries_in_order_with_duplicates(table: Table, wanted: set[bytes]) -> None:
    data = b"--" + encode_table(table) + b"--"
    picked = pick(data, 2, len(data) - 2, frozenset(wanted))
    assert picked == [(name, encode_value(value)) for name, value in table if name in wanted]


@given(tables(), st.sets(NAMES, max_size=3))
def test_without_removes_entries_by_name_and_keeps_the_bytes_of_others(table: Table, names: set[bytes]) -> None:
    data = b"--" + encode_table(table) + b"--"
    expected = encode_table(tuple(entry for entry in table if entry[0] not in names))
    assert without(data, 2, len(data) - 2, frozenset(names)) == expected


def refusal(read: Callable[[], object]) -> tuple[int, Scope] | None:
    """Return reply code and scope of the error that a read raises; None if it raises none."""
    try:
        read()
    except ProtocolError as error:
        return error.reply_code, error.scope
    return None


def _spoiled(encoded: bytes, changes: list[tuple[int, int]]) -> bytes:
    octets = bytearray(encoded)
    for at, octet in changes:
        if octets:
            octets[at % len(octets)] = octet
    return bytes(octets)


_nearly_tables = st.builds(
    _spoiled,
    tables().map(encode_table),
    st.lists(st.tuples(st.integers(0, 999), st.integers(0, 255)), max_size=3),
)


@given(st.binary(max_size=80) | _nearly_tables)
def test_arbitrary_bytes_are_a_table_or_a_connection_error(data: bytes) -> None:
    decoded = refusal(lambda: decode_table(data, 0, len(data)))
    picked = refusal(lambda: pick(data, 0, len(data), frozenset({b""})))
    cut = refusal(lambda: without(data, 0, len(data), frozenset({b""})))
    assert {decoded, picked, cut} <= {None, (502, Scope.CONNECTION)}
    assert picked == cut
    assert decoded is not None or picked is None, "a table that can be decoded can also be searched"


@given(st.binary(max_size=40) | _nearly_tables.map(lambda encoded: encoded[1:]))
def test_arbitrary_bytes_are_a_value_or_a_connection_error(raw: bytes) -> None:
    assert refusal(lambda: decode_value(raw)) in (None, (502, Scope.CONNECTION))


@given(tables().filter(bool), st.data())
def test_a_truncated_table_is_an_error_even_with_further_bytes(table: Table, data: st.DataObject) -> None:
    encoded = encode_table(table)
    last = len(encode_table(table[:-1]))
    end = data.draw(st.integers(last + 1, len(encoded) - 1))
    rest = encoded[end:] + bytes(300)
    for read in (
        lambda: decode_table(encoded[:end] + rest, 0, end),
        lambda: pick(encoded[:end] + rest, 0, end, frozenset()),
        lambda: without(encoded[:end] + rest, 0, end, frozenset()),
        lambda: pick(encoded[:end], 0, len(encoded), frozenset()),
    ):
        with pytest.raises(ProtocolError):
            read()


def _nested(levels: int) -> bytes:
    raw = b"V"
    for _ in range(levels):
        raw = b"A" + struct.pack(">I", len(raw)) + raw
    return raw


def test_nesting_is_limited() -> None:
    assert encode_value(decode_value(_nested(MAX_NESTING))) == _nested(MAX_NESTING)
    with pytest.raises(ProtocolError, match="nested"):
        decode_value(_nested(MAX_NESTING + 1))
    with pytest.raises(ProtocolError, match="nested"):
        decode_value(_nested(20_000))


def test_bytes_after_a_value_are_refused() -> None:
    with pytest.raises(ProtocolError):
        decode_value(b"t\x01\x00")


@pytest.mark.parametrize(
    "value",
    [Value("B", 256), Value("S", "text"), Value("f", 1e39), Value("D", 3), Value("V", 0), Value("Z", 0),
     Value("I", None), Value("F", ((b"n" * 256, Value("V", None)),))],
)  # fmt: skip
def test_encoding_a_value_that_does_not_fit_its_type_is_an_error(value: Value) -> None:
    with pytest.raises(LocalProtocolError):
        encode_value(value)


@given(st.lists(st.sampled_from("AF"), min_size=MAX_NESTING - 2, max_size=MAX_NESTING + 3), tables())
def test_too_deep_agrees_with_decoding(letters: list[str], before: Table) -> None:
    value = Value("V", None)
    for letter in letters:
        value = Value(letter, (value,) if letter == "A" else ((b"k", value),))
    entries = encode_table((*before, (b"deep", value)))
    try:
        decode_table(entries, 0, len(entries))
    except ProtocolError:
        assert too_deep(entries) == b"deep"
    else:
        assert too_deep(entries) is None


@given(st.binary(max_size=40))
def test_malformed_bytes_are_not_too_deep(entries: bytes) -> None:
    assert too_deep(entries) is None


def _finite(value: Value) -> bool:
    match value.letter, value.value:
        case (("f" | "d"), float() as number):
            return math.isfinite(number)
        case "A", tuple() as elements:
            return all(map(_finite, elements))
        case "F", tuple() as entries:
            return all(_finite(entry) for _, entry in entries)
    return True


@given(tables(), st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=2))
def test_a_table_is_undecodable_if_it_is_malformed_or_a_number_is_not_finite(
    table: Table, changes: list[tuple[int, int]]
) -> None:
    spoilt = bytearray(encode_table(table))
    for at, octet in changes:
        if at < len(spoilt):
            spoilt[at] = octet
    entries = bytes(spoilt)
    try:
        decodable = _finite(Value("F", decode_table(b"ahead" + entries + b"V", 5, 5 + len(entries))))
    except ProtocolError:
        decodable = False
    with nullcontext() if decodable else pytest.raises(ProtocolError):
        refuse_undecodable(b"ahead" + entries + b"V", 5, 5 + len(entries))


@pytest.mark.parametrize("letter", ["f", "d"])
@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("outer", ["", "A", "F"])
def test_numbers_that_are_not_finite_are_undecodable(letter: str, number: float, outer: str) -> None:
    value = Value(letter, number)
    if outer:
        value = Value(outer, (value,) if outer == "A" else ((b"k", value),))
    entries = encode_table(((b"a", Value("V", None)), (b"n", value)))
    with pytest.raises(ProtocolError, match="infinite or NaN"):
        refuse_undecodable(entries, 0, len(entries))
