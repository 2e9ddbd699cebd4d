"""Tests the comparison of a second declare with the first, and RabbitMQ's error texts for differences."""

from __future__ import annotations

import pytest

from proxy.amqp.method_frames import ExchangeDeclare
from proxy.errors import ProtocolError
from proxy.relay.declare.exchanges import refuse_inequivalent
from proxy.relay.vhost import DeclaredExchange, Delivery, OwnedExchange
from proxy.values import Table, Value

DECLARED = DeclaredExchange(True, False, False, b"", 1)
LIMIT: Table = ((b"max-payload-size", Value("I", 10)),)


def compared(
    before: Table, now: Table, kind: bytes = b"x-open", declared: DeclaredExchange | None = DECLARED, **flags: bool
) -> str:
    """The error text, empty if the declarations are equivalent."""
    owned = OwnedExchange(b"e", "x-open", Delivery.CARRIER, b"e", arguments=before, declared=declared)
    durable, auto_delete = flags.get("durable", True), flags.get("auto_delete", False)
    try:
        refuse_inequivalent(
            owned, ExchangeDeclare(b"e", kind, False, durable, auto_delete, False, False, b""), now, "/"
        )
    except ProtocolError as error:
        return error.text.decode()
    return ""


@pytest.mark.parametrize("letter", list("bBsuIilLT"))
def test_integers_of_any_width_are_equal(letter: str) -> None:
    assert compared(LIMIT, ((b"max-payload-size", Value(letter, 10)),)) == ""


def test_a_different_limit_is_reported_with_both_values_and_types() -> None:
    text = compared(LIMIT, ((b"max-payload-size", Value("l", 11)),))
    assert text == (
        "inequivalent arg 'max-payload-size' for exchange 'e' in vhost '/': received the value '11' of type 'long' "
        "but current is the value '10' of type 'signedint'"
    )


def test_a_missing_limit_is_reported_as_none() -> None:
    assert compared(LIMIT, ()).endswith("received none but current is the value '10' of type 'signedint'")
    assert compared((), LIMIT).endswith("received the value '10' of type 'signedint' but current is none")


def test_a_boolean_does_not_equal_a_number() -> None:
    number: Table = ((b"max-payload-size", Value("I", 1)),)
    assert compared(number, ((b"max-payload-size", Value("t", True)),))


def test_unknown_arguments_are_ignored() -> None:
    assert compared((), ((b"color", Value("S", b"red")),)) == ""


def test_flags_are_compared_before_arguments_as_by_the_broker() -> None:
    text = compared(LIMIT, (), durable=False, auto_delete=True)
    assert text == "inequivalent arg 'durable' for exchange 'e' in vhost '/': received 'false' but current is 'true'"


def test_exchanges_of_rules_files_are_durable() -> None:
    assert compared((), (), declared=None) == ""
    assert "'durable'" in compared((), (), declared=None, durable=False)


def test_the_type_is_compared_first() -> None:
    text = compared(LIMIT, (), b"topic", durable=False)
    assert text == "inequivalent arg 'type' for exchange 'e' in vhost '/': received 'topic' but current is 'x-open'"
