"""Tests the hashes that all sidecars of a broker compute in the same way."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxproxy.relay.tokens import NOWHERE, Secrets, Tokens, is_storage_key, is_token
from oxproxy.relay.vhost import CarrierType
from oxproxy.values import RESERVED_PREFIX, RESERVED_WORD
from tests.relay.wire import ruled
from tests.routing.building import to_exchange, to_queue

NAMES = st.binary(max_size=255)
NEW, OLD = bytes(range(32)), bytes(range(32, 64))
QUEUE = ("queue", b"orders")


def candidates(*secrets: bytes, one_word: bool = False, vhost: str = "/") -> tuple[bytes, ...]:
    return Tokens(vhost, Secrets(secrets).token_keys).candidates(QUEUE, one_word=one_word)


# -- tokens -----------------------------------------------------------------------------------------------------------


@given(NAMES, st.sampled_from(["queue", "exchange"]))
def test_a_token_is_one_word_or_eight_words_of_letters_and_digits(name: bytes, kind: str) -> None:
    one, eight = Tokens("/", (NEW,)).candidates((kind, name), one_word=True)
    assert re.fullmatch(rb"x-o-p-e-n-x-[qe]-[0-9a-f]{16}", one)
    assert re.fullmatch(rb"[a-z0-9.]+", eight)
    assert len(eight.split(b".")) == 8
    assert eight.startswith(RESERVED_PREFIX)
    assert one.startswith(RESERVED_WORD)
    assert is_token(one)
    assert is_token(eight)
    assert not is_storage_key(one)
    assert not is_storage_key(eight)


@given(NAMES, NAMES)
def test_tokens_differ_by_secret_virtual_host_kind_and_name(first: bytes, second: bytes) -> None:
    tokens = {
        token
        for vhost in ("/", "other")
        for kind in ("queue", "exchange")
        for name in (first, second)
        for token in Tokens(vhost, (NEW, OLD)).candidates((kind, name), one_word=True)
    }
    assert len(tokens) == 16 * len({first, second})
    assert NOWHERE not in tokens
    assert not is_token(NOWHERE)


def test_the_current_secret_comes_first_and_of_one_secret_the_short_form() -> None:
    eight_new, eight_old = candidates(NEW, OLD)
    assert (candidates(NEW), candidates(OLD)) == ((eight_new,), (eight_old,))
    assert candidates(OLD, NEW) == (eight_old, eight_new)
    mixed = candidates(NEW, OLD, one_word=True)
    assert mixed[1::2] == (eight_new, eight_old)
    assert [token.startswith(RESERVED_WORD) for token in mixed] == [True, False, True, False]


def test_a_destination_has_a_token_without_a_secret() -> None:
    assert len(candidates()) == 1
    assert candidates() == Tokens().candidates(QUEUE, one_word=False)


def test_the_first_candidate_that_is_bound_is_used() -> None:
    state = ruled(to_queue("orders"), bound=())
    state.set_secrets(Secrets((NEW, OLD)))
    owned = state.exchanges[b"xo"]
    owned.carrier_type = CarrierType.TOPIC
    every = state.candidates(owned, QUEUE)
    assert len(every) == 4
    assert state.token_of(owned, QUEUE) is None
    for token in reversed(every):
        owned.tokens.bind_ok(QUEUE, (token,))
        assert state.token_of(owned, QUEUE) == token


def test_tokens_of_a_secret_that_is_not_listed_are_not_used() -> None:
    state = ruled(to_queue("orders"), bound=())
    state.set_secrets(Secrets((NEW,)))
    owned = state.exchanges[b"xo"]
    owned.tokens.bind_ok(QUEUE, candidates(OLD))
    assert state.token_of(owned, QUEUE) is None


@pytest.mark.parametrize("carrier_type", [CarrierType.DIRECT, CarrierType.TOPIC])
def test_tokens_have_one_word_only_for_queues_of_topic_carriers_that_lead_to_no_exchange(
    carrier_type: CarrierType,
) -> None:
    """A topic exchange behind the carrier would match one word with ``*``."""
    state, leading = ruled(to_queue("orders")), ruled(to_queue("orders"), to_exchange("next"))
    for vhost in (state, leading):
        vhost.exchanges[b"xo"].carrier_type = carrier_type
    one_word = carrier_type is CarrierType.TOPIC
    assert state.candidates(state.exchanges[b"xo"], QUEUE)[0].startswith(RESERVED_WORD) == one_word
    for vhost, destination in ((leading, QUEUE), (leading, ("exchange", b"next")), (state, ("exchange", b"next"))):
        (token,) = vhost.candidates(vhost.exchanges[b"xo"], destination)
        assert token.startswith(RESERVED_PREFIX)


# -- signatures -------------------------------------------------------------------------------------------------------


def test_the_first_secret_signs_and_every_secret_verifies() -> None:
    signed = Secrets([OLD]).sign(b"a", b"b")
    assert Secrets([OLD]).verify(signed, b"a", b"b") == 0
    assert Secrets([NEW, OLD]).verify(signed, b"a", b"b") == 1
    assert Secrets([NEW, OLD]).sign(b"a", b"b") == Secrets([NEW]).sign(b"a", b"b") != signed


@pytest.mark.parametrize("fields", [(b"a",), (b"ab",), (b"", b"ab"), (b"a", b"b", b""), (b"a", b"c")])
def test_a_signature_is_valid_for_its_fields_only(fields: tuple[bytes, ...]) -> None:
    secrets = Secrets([NEW])
    assert secrets.verify(secrets.sign(b"a", b"b"), *fields) is None


def test_other_secrets_and_damaged_signatures_are_refused() -> None:
    signed = Secrets([NEW]).sign(b"a")
    for wrong in (
        b"",
        signed[:-1],
        signed.upper() + b"0",
        Secrets([OLD]).sign(b"a"),
        Secrets().sign(b"a"),
        b"\xff" * 64,
    ):
        assert Secrets([NEW]).verify(wrong, b"a") is None


def test_tokens_are_derived_with_separate_keys() -> None:
    secrets = Secrets([NEW, OLD])
    assert len({NEW, OLD, *secrets.token_keys}) == 4
    assert secrets.token_keys[0] == Secrets([NEW]).token_keys[0]
    assert NEW.hex() not in repr(secrets)
