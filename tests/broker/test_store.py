from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from oxproxy.amqp.tables import encode_table
from oxproxy.broker.declared.store import DeclarationStore, binding_from_listing, exchange_from_listing
from oxproxy.broker.management_api import BindingInfo, ExchangeInfo
from oxproxy.relay.declare.storage import pack
from oxproxy.relay.vhost import StoredBinding, VhostState
from oxproxy.routing.router import Router
from oxproxy.values import Table, Value
from tests.broker.clients import copied, declare_here, stored, text
from tests.broker.observed import has


@pytest.fixture
def known() -> VhostState:
    return VhostState("/", Router(()))


@pytest.fixture
def store(known: VhostState) -> DeclarationStore:
    return DeclarationStore(known)


def listed(*names: str, sequence: int = 1, arguments: Table = ()) -> dict[bytes, ExchangeInfo]:
    kept = pack(sequence, encode_table(arguments)).decode()
    stored_arguments = {"x-open-exchange": True, "x-oxproxy": kept}
    return {name.encode(): ExchangeInfo(name.encode(), "direct", arguments=stored_arguments) for name in names}


@pytest.mark.parametrize("single", [False, True], ids=["of all exchanges", "of one exchange"])
def test_a_listing_older_than_a_declare_does_not_remove_the_exchange(
    store: DeclarationStore, known: VhostState, single: bool
) -> None:
    store.exchanges_listed(store.exchanges_before(), listed("a"))
    before = store.exchanges_before()
    known.exchanges[b"a"].declares += 1
    if single:
        store.exchange_found(before, b"a", None)
    else:
        store.exchanges_listed(before, listed())
    assert set(known.exchanges) == {b"a"}


def test_arguments_without_effect_are_accepted_with_one_warning_each(
    store: DeclarationStore, known: VhostState
) -> None:
    misspelt: Table = ((b"max-payload-sise", Value("l", 5)), (b"x-owner", Value("S", b"billing")))
    negative: Table = ((b"max-payload-size", Value("l", -1)),)
    declare_here(known, "ours", arguments=negative)
    with capture_logs() as events:
        for _ in range(2):
            both = listed("a", arguments=misspelt) | listed("ours", arguments=negative)
            store.exchanges_listed(store.exchanges_before(), both)
    assert known.exchanges[b"a"].arguments == misspelt
    warnings = has(events, "an argument of a declared exchange has no effect")
    assert [event["argument"] for event in warnings] == ["max-payload-sise", "max-payload-size"]
    assert warnings[0]["reason"] == "unknown argument; did you mean max-payload-size?"


def test_an_unknown_exchange_is_added_if_nothing_changed_meanwhile_or_if_listed_twice(
    store: DeclarationStore, known: VhostState
) -> None:
    before = store.exchanges_before()
    known.changed()
    store.exchanges_listed(before, listed("a"))
    assert known.exchanges == {}
    assert store.has_unverified
    before = store.exchanges_before()
    known.changed()
    store.exchanges_listed(before, listed("a"))
    assert set(known.exchanges) == {b"a"}
    assert not store.has_unverified


def test_an_unverified_exchange_is_dropped_if_the_next_listing_lacks_it(
    store: DeclarationStore, known: VhostState
) -> None:
    before = store.exchanges_before()
    known.changed()
    store.exchanges_listed(before, listed("a"))
    store.exchanges_listed(store.exchanges_before(), {})
    assert not store.has_unverified
    assert known.exchanges == {}


def test_the_number_of_logged_errors_is_limited(store: DeclarationStore) -> None:
    with capture_logs() as events:
        for number in range(2000):
            store.log_fault(b"ox", str(number))
    assert len(events) == 1000


# -- stored exchanges and bindings -------------------------------------------------------------------------------------


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
        exchange_from_listing(ExchangeInfo(b"ox", "direct", arguments={"x-open-exchange": True, "x-oxproxy": kept}))


def read_back(
    exchange: bytes = b"ox", vhost: str = "/", *, kept: bytes | None = None, signature: str | None = None
) -> StoredBinding:
    """A client's binding, read from a listing of this exchange with these changes."""
    made = copied(stored("ox", "q"), 9, client="me")
    copy = made.copies[0]
    kept = pack(9, b"", b"", "me") if kept is None else kept
    signed = copy.signature.decode() if signature is None else signature
    row = BindingInfo(made.destination, made.key, "", kept.decode(), signed)
    return binding_from_listing(VhostState(vhost, Router(())), b"ox", exchange, row)


def test_a_signed_binding_has_its_user() -> None:
    binding = read_back()
    assert (binding.signed, binding.client) == (True, "me")
    assert [copy.sequence for copy in binding.copies] == [9]


@pytest.mark.parametrize(
    "changes",
    [
        {"signature": ""},
        {"signature": "0" * 64},
        {"signature": "\N{SNOWMAN}"},
        {"kept": pack(9, b"", b"", "you")},
        {"kept": pack(8, b"", b"", "me")},
        {"vhost": "other"},
        {"exchange": b"other"},
    ],
    ids=["none", "wrong", "no text of ours", "another user", "another sequence", "another vhost", "another exchange"],
)
def test_a_binding_without_a_valid_signature_has_no_user(changes: dict[str, Any]) -> None:
    binding = read_back(**changes)
    assert (binding.signed, binding.client) == (False, "")
