"""Tests that declarations of clients can be read back unchanged from their form on the broker."""

from __future__ import annotations

from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxproxy.amqp.tables import decode_table, encode_table
from oxproxy.relay.declare.storage import (
    KEPT,
    LAST_SEQUENCE,
    MARK,
    SIGNATURE,
    exchange_arguments,
    kept_arguments,
    pack,
    unpack,
)
from oxproxy.relay.tokens import STORAGE
from oxproxy.values import Table, Value
from tests.broker.clients import storage_key


def entries(*fields: tuple[bytes, Value]) -> bytes:
    return encode_table(fields)


@given(st.integers(0, LAST_SEQUENCE), st.binary(max_size=200), st.binary(max_size=255), st.text(max_size=300))
def test_sequence_key_user_and_arguments_are_restored(sequence: int, raw: bytes, key: bytes, client: str) -> None:
    assert unpack(pack(sequence, raw, key, client)) == (sequence, key, client, raw)


def test_truncated_storage_keys_are_refused() -> None:
    whole = b64decode(pack(7, b"", b"key", "client"))
    for size in range(len(whole)):
        with pytest.raises(ValueError, match="expected at least"):
            unpack(b64encode(whole[:size]))


@pytest.mark.parametrize("damaged", [b"", b"not base64!", b"AAAA", b"////////////"])
def test_damaged_storage_keys_are_refused(damaged: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        unpack(damaged)


@pytest.mark.parametrize("sequence", [LAST_SEQUENCE + 1, 2**64 - 1])
def test_a_sequence_out_of_range_is_refused(sequence: int) -> None:
    with pytest.raises(ValueError, match="sequence"):
        unpack(pack(sequence, b""))


def test_a_stored_binding_has_the_arguments_of_client_and_sidecar() -> None:
    raw = entries((b"x-match", Value("S", b"all")), (b"n", Value("l", 5)))
    table = decode(kept_arguments(7, raw))
    assert table[:2] == decode(raw)
    assert [name for name, _ in table[2:]] == [KEPT]
    signed = decode(kept_arguments(7, raw, signature=b"ab"))
    assert signed == (*table, (SIGNATURE, Value("S", b"ab")))


def test_a_stored_exchange_is_marked() -> None:
    assert dict(decode(exchange_arguments(7, b"")))[MARK] == Value("t", True)


def test_equal_bindings_have_equal_keys_in_any_argument_order() -> None:
    arguments = entries((b"a", Value("I", 1)), (b"b", Value("I", 2)))
    reordered = entries((b"b", Value("I", 2)), (b"a", Value("I", 1)))
    assert storage_key("queue", b"q", b"", arguments) == storage_key("queue", b"q", b"", reordered)
    assert storage_key("queue", b"q", b"", arguments).startswith(STORAGE)


def test_different_types_destinations_and_keys_have_different_storage_keys() -> None:
    short, long = entries((b"a", Value("I", 1))), entries((b"a", Value("l", 1)))
    keys = {
        storage_key("queue", b"q", b"", short),
        storage_key("queue", b"q", b"", long),
        storage_key("exchange", b"q", b"", short),
        storage_key("queue", b"p", b"", short),
        storage_key("queue", b"q", b"k", short),
    }
    assert len(keys) == 5


def decode(raw: bytes) -> Table:
    return decode_table(raw, 0, len(raw))
