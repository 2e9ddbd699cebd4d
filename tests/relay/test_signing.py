from __future__ import annotations

import pytest

from proxy.relay.tokens import Secrets

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
