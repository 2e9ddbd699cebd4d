from __future__ import annotations

import re
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.relay.tokens import NOWHERE, UNKEYED, Secrets, TokenForm, Tokens, is_eight_words, is_grant, is_keyed, token
from proxy.values import RESERVED_PREFIX

NAMES = st.binary(max_size=255)


def test_token_is_prefix_kind_and_hash_of_the_name() -> None:
    digest = blake2b(b"orders", digest_size=8).hexdigest().encode()
    assert token("queue", b"orders") == b"x.o.p.e.n.x.q." + digest
    assert token("exchange", b"orders") == b"x.o.p.e.n.x.e." + digest


@given(NAMES)
def test_token_has_eight_words_of_letters_and_digits_only(name: bytes) -> None:
    made = token("queue", name)
    assert re.fullmatch(rb"[a-z0-9.]+", made)
    assert len(made.split(b".")) == 8
    assert made.startswith(RESERVED_PREFIX)


@given(NAMES, NAMES)
def test_tokens_of_different_destinations_differ(first: bytes, second: bytes) -> None:
    tokens = {token(kind, name) for kind in ("queue", "exchange") for name in (first, second)}
    assert len(tokens) == 2 * len({first, second})
    assert NOWHERE not in tokens


def test_the_unroutable_key_has_the_reserved_prefix() -> None:
    assert NOWHERE.startswith(RESERVED_PREFIX)


# -- keyed tokens -----------------------------------------------------------------------------------------------------

SECRETS = (b"current", b"previous")


def test_a_destination_has_a_token_per_secret_and_an_unkeyed_one_last() -> None:
    tokens = Tokens("/", SECRETS)
    current, previous, unkeyed = tokens.of("queue", b"orders")
    assert unkeyed == token("queue", b"orders")
    assert len({current, previous, unkeyed}) == 3
    assert Tokens("/", (b"current",)).of("queue", b"orders") == (current, unkeyed)
    assert Tokens("/", (b"previous", b"current")).of("queue", b"orders") == (previous, current, unkeyed)
    assert Tokens().of("queue", b"orders") == (unkeyed,)


@given(NAMES)
def test_a_keyed_token_depends_on_secret_virtual_host_kind_and_name(name: bytes) -> None:
    made = {
        Tokens(vhost, (key,)).of(kind, name)[0]
        for vhost in ("/", "other")
        for key in SECRETS
        for kind in ("queue", "exchange")
    }
    assert len(made) == 8
    for key in made:
        assert re.fullmatch(rb"[a-z0-9.]+", key)
        assert key.startswith(RESERVED_PREFIX)
        assert is_keyed(key)
        assert not is_grant(key)
    assert not is_keyed(token("queue", name))


def test_tokens_of_retired_secrets_are_former_tokens() -> None:
    tokens = Tokens("/", SECRETS)
    current, previous, unkeyed = tokens.of("queue", b"q")
    first = tokens.without(UNKEYED)
    assert (first.of("queue", b"q"), first.former("queue", b"q")) == ((current, previous), (unkeyed,))
    last = first.without(b"previous")
    assert last.of("queue", b"q") == (current,)
    assert set(last.former("queue", b"q")) == {previous, unkeyed}


def test_a_retirement_record_requires_a_newer_secret() -> None:
    markers = Tokens("/", SECRETS).markers()
    assert set(markers.values()) == {(b"current", b"previous"), (b"current", UNKEYED), (b"previous", UNKEYED)}
    assert set(Tokens("/", (b"previous",)).markers()) < set(markers)
    assert not set(Tokens("other", SECRETS).markers()) & set(markers)
    assert Tokens("/", SECRETS).without(b"previous").without(UNKEYED).markers() == {}


# -- topic carriers ---------------------------------------------------------------------------------------------------


@given(NAMES)
def test_a_token_of_a_topic_carrier_is_one_word_without_wildcards(name: bytes) -> None:
    for kind in ("queue", "exchange"):
        tokens = Tokens("/", SECRETS).in_form(TokenForm.ONE_WORD).of(kind, name)
        assert len(tokens) == 2, "one for each secret, and none for version 0.1, which has no topic carriers"
        for made in tokens:
            assert re.fullmatch(rb"x-o-p-e-n-x-r-[qe]-[0-9a-f]{16}", made)
            assert is_keyed(made)
            assert not is_grant(made)
            assert not is_eight_words(made)


def test_destinations_have_both_tokens_while_a_carrier_changes_its_form() -> None:
    direct = Tokens("/", (b"current",))
    queue = "queue", b"orders"
    (word,) = direct.in_form(TokenForm.ONE_WORD).of(*queue)
    (words,) = direct.in_form(TokenForm.EIGHT_WORDS).of(*queue)
    assert direct.of(*queue) == (words, token(*queue)), "tokens of eight words are those of a direct carrier"
    changing = direct.in_form(TokenForm.CHANGING)
    assert (changing.of(*queue), changing.former(*queue), changing.count) == ((word, words), (), 2)
    assert direct.in_form(TokenForm.EIGHT_WORDS).former(*queue) == (word,)
    assert direct.in_form(TokenForm.CHANGING) is changing, "callers compare these objects by identity"


def test_tokens_of_one_word_and_of_eight_words_do_not_match() -> None:
    one_word, changing, eight_words = (
        Tokens("/", SECRETS).in_form(form) for form in (TokenForm.ONE_WORD, TokenForm.CHANGING, TokenForm.EIGHT_WORDS)
    )
    assert one_word.lead_to(changing)
    assert changing.lead_to(eight_words)
    assert not one_word.lead_to(eight_words)


def test_tokens_of_a_retired_secret_are_former_tokens_in_every_form() -> None:
    tokens = Tokens("/", SECRETS).without(b"previous").in_form(TokenForm.EIGHT_WORDS)
    former = tokens.former("queue", b"orders")
    assert len(tokens.of("queue", b"orders")) == 1
    assert len(former) == len(set(former)) == 3
    assert sum(map(is_eight_words, former)) == 1


NEW, OLD = bytes(range(32)), bytes(range(32, 64))


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
