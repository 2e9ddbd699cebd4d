from __future__ import annotations

from datetime import UTC

import pytest

from proxy.amqp.stored import pack
from proxy.amqp.tables import encode_table
from proxy.amqp.tokens import token
from proxy.amqp.vhost import Declared, Delivery
from proxy.broker.listed import BindingInfo, ExchangeInfo
from proxy.broker.restoring import binding_of, declared_exchange, exchange_of, stored_binding
from proxy.routing.values import Table, Value
from tests.broker.clients import stored, text

ARGUMENTS: Table = ((b"z", text("last")), (b"max-payload-size", Value("l", 5)), (b"alternate-exchange", text("ae")))


def marked(kept: str, **more: bool) -> ExchangeInfo:
    return ExchangeInfo(b"ox", "direct", arguments={"x-open-exchange": True, "x-oxproxy": kept}, **more)


def test_an_exchange_is_made_of_what_is_kept_in_it() -> None:
    kept = pack(7, encode_table(ARGUMENTS)).decode()
    owned, exchange = exchange_of(marked(kept, durable=False, auto_delete=True, internal=True), UTC)
    assert owned.declared == Declared(False, True, True, encode_table(ARGUMENTS), 7)
    assert (owned.name, owned.carrier, owned.delivery) == (b"ox", b"ox", Delivery.CARRIER)
    assert (owned.arguments, owned.alternate) == (ARGUMENTS, b"ae")
    assert (exchange.type, exchange.alternate, len(exchange.filters)) == ("x-open", b"ae", 1)


@pytest.mark.parametrize(
    "kept",
    [
        "not base64!",
        pack(7, b"")[:-4].decode(),
        pack(7, b"\x01a?").decode(),
        pack(7, encode_table(((b"max-payload-size", text("five")),))).decode(),
        "\N{SNOWMAN}",
    ],
)
def test_a_damaged_exchange_is_an_error(kept: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - every damage says something else
        exchange_of(marked(kept), UTC)


def test_delivery_is_as_it_was() -> None:
    declared = Declared(True, False, False, b"", 1)
    owned, _ = declared_exchange(b"ox", declared, Delivery.QUEUE, UTC)
    assert owned.delivery is Delivery.QUEUE


def listed(key: bytes, kept: bytes) -> BindingInfo:
    return BindingInfo("queue", b"q", key, "", kept.decode())


def test_a_binding_is_made_of_what_is_kept_in_it() -> None:
    made = stored("ox", "q", ARGUMENTS, 9, key="k")
    assert binding_of(b"ox", listed(made.key, pack(9, made.entries, b"k"))) == made
    assert (made.binding.routing_key, made.binding.sequence, made.sequences) == (b"k", 9, (9,))


def test_a_binding_under_the_token_is_one_by_which_messages_find_the_destination() -> None:
    made = stored("ox", "q", ARGUMENTS, 9)
    found = binding_of(b"ox", listed(token("queue", b"q"), pack(9, made.entries)))
    assert found == made._replace(marks=frozenset((9,)))
    assert (found.is_mark, found.key_of(9), found.key_of(8)) == (True, token("queue", b"q"), made.key)


def test_what_is_kept_of_another_binding_is_an_error() -> None:
    made, other = stored("ox", "q", ARGUMENTS, 9), stored("ox", "other", ARGUMENTS, 9)
    for row in (listed(other.key, pack(9, made.entries)), listed(made.key, pack(9, made.entries, b"k"))):
        with pytest.raises(ValueError, match="another binding"):
            binding_of(b"ox", row)


def test_the_lowest_sequence_of_several_copies_counts() -> None:
    made = stored_binding(b"ox", "queue", b"q", b"", b"", (9, 3, 5))
    assert (made.sequences, made.binding.sequence) == ((3, 5, 9), 3)
