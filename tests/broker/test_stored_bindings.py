from __future__ import annotations

import pytest

from proxy.amqp.tables import encode_table
from proxy.broker.declared.store import binding_from_listing, declared_exchange, exchange_from_listing
from proxy.broker.management_api import BindingInfo, ExchangeInfo
from proxy.relay.declare.storage import pack
from proxy.relay.tokens import Secrets, TokenForm, token
from proxy.relay.vhost import DeclaredExchange, Delivery, StoredBinding, VhostState
from proxy.routing.router import Router
from proxy.values import Table, Value
from tests.broker.clients import copied, stored, text

ARGUMENTS: Table = ((b"z", text("last")), (b"max-payload-size", Value("l", 5)), (b"alternate-exchange", text("ae")))


def marked(kept: str, alternate: str = "", **more: bool) -> ExchangeInfo:
    arguments = {"x-open-exchange": True, "x-oxproxy": kept} | ({"alternate-exchange": alternate} if alternate else {})
    return ExchangeInfo(b"ox", "direct", arguments=arguments, **more)


def test_an_exchange_is_read_from_its_stored_arguments() -> None:
    kept = pack(7, encode_table(ARGUMENTS)).decode()
    owned, exchange = exchange_from_listing(marked(kept, "ae", durable=False, auto_delete=True, internal=True))
    assert owned.declared == DeclaredExchange(False, True, True, encode_table(ARGUMENTS), 7)
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
        pack(2**64 - 1, b"").decode(),
    ],
)
def test_a_damaged_exchange_is_an_error(kept: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each case has another message
        exchange_from_listing(marked(kept))


@pytest.mark.parametrize("alternate", ["", "other"])
def test_a_stored_alternate_exchange_unknown_to_the_broker_is_an_error(alternate: str) -> None:
    with pytest.raises(ValueError, match="stored alternate exchange differs"):
        exchange_from_listing(marked(pack(7, encode_table(ARGUMENTS)).decode(), alternate))


@pytest.mark.parametrize(
    ("delivery", "form"), [(Delivery.QUEUE, TokenForm.DIRECT), (Delivery.CARRIER, TokenForm.ONE_WORD)]
)
def test_only_a_carrier_has_topic_tokens(delivery: Delivery, form: TokenForm) -> None:
    declared = DeclaredExchange(True, False, False, encode_table(((b"x-carrier-type", text("topic")),)), 1)
    owned, _ = declared_exchange(b"ox", declared, delivery)
    assert (owned.delivery, owned.form) == (delivery, form)


STATE = VhostState("/", Router(()))


def listed(made: StoredBinding, index: int = 0) -> BindingInfo:
    """A copy of a binding as the management API lists it."""
    copy = made.copies[index]
    kept = pack(copy.sequence, made.entries, made.binding.routing_key, copy.client)
    return BindingInfo(made.destination, copy.key, "", kept.decode(), copy.signature.decode())


def test_a_binding_is_read_from_its_stored_arguments() -> None:
    made = copied(stored("ox", "q", ARGUMENTS, 9, key="k"), 9, client="me")
    assert binding_from_listing(STATE, b"ox", b"ox", listed(made)) == made
    assert (made.binding.routing_key, made.binding.sequence, made.sequences) == (b"k", 9, (9,))
    assert (made.signed, made.client) == (True, "me")


def test_a_binding_under_the_token_is_a_mark() -> None:
    made = copied(stored("ox", "q", ARGUMENTS), 9, mark=True)
    binding = binding_from_listing(STATE, b"ox", b"ox", listed(made))
    assert binding == made
    assert (binding.is_mark, binding.copies[0].key) == (True, token("queue", b"q"))


def test_stored_arguments_of_another_binding_are_an_error() -> None:
    made, other = stored("ox", "q", ARGUMENTS, 9), stored("ox", "other", ARGUMENTS, 9)
    row = listed(made)
    for wrong in (row._replace(routing_key=other.key), row._replace(kept=pack(9, made.entries, b"k").decode())):
        with pytest.raises(ValueError, match="another binding"):
            binding_from_listing(STATE, b"ox", b"ox", wrong)


@pytest.mark.parametrize(
    "changes",
    [
        {"signature": ""},
        {"signature": "0" * 64},
        {"signature": "\N{SNOWMAN}"},
        {"kept": pack(9, encode_table(ARGUMENTS), b"", "you").decode()},
        {"kept": pack(8, encode_table(ARGUMENTS), b"", "me").decode()},
    ],
    ids=["none", "wrong", "no text of ours", "another user", "another sequence"],
)
def test_a_binding_without_a_valid_signature_has_no_user(changes: dict[str, str]) -> None:
    made = copied(stored("ox", "q", ARGUMENTS), 9, client="me")
    binding = binding_from_listing(STATE, b"ox", b"ox", listed(made)._replace(**changes))  # type: ignore[arg-type]
    assert (binding.signed, binding.client) == (False, "")


@pytest.mark.parametrize("exchange", [b"ox", b"other"])
@pytest.mark.parametrize("vhost", ["/", "other"])
def test_a_signature_is_valid_only_in_its_vhost_and_exchange(exchange: bytes, vhost: str) -> None:
    row = listed(copied(stored("ox", "q", ARGUMENTS), 9))
    binding = binding_from_listing(VhostState(vhost, Router(())), b"ox", exchange, row)
    assert binding.signed == ((exchange, vhost) == (b"ox", "/"))


def test_a_signature_with_another_secret_is_invalid() -> None:
    row = listed(copied(stored("ox", "q", ARGUMENTS), 9))
    assert not binding_from_listing(VhostState("/", Router(()), secrets=Secrets([bytes(32)])), b"ox", b"ox", row).signed


def test_signed_copies_come_first_then_the_lowest_sequence() -> None:
    made = copied(stored("ox", "q"), 9, 3, 5)
    assert (made.sequences, made.binding.sequence) == ((3, 5, 9), 3)
    unsigned = stored("ox", "q")._replace(copies=(made.copies[0]._replace(sequence=1, client="you", secret=None),))
    both = unsigned.merged_with(made)
    assert (both.sequences, both.binding.sequence, both.client) == ((3, 5, 9, 1), 3, "")
