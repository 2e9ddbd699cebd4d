from __future__ import annotations

import re
from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st

from proxy.amqp.tokens import NOWHERE, RESERVED, token

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
    assert made.startswith(RESERVED)


@given(NAMES, NAMES)
def test_tokens_of_different_destinations_differ(one: bytes, other: bytes) -> None:
    tokens = {token(kind, name) for kind in ("queue", "exchange") for name in (one, other)}
    assert len(tokens) == 2 * len({one, other})
    assert NOWHERE not in tokens


def test_nowhere_is_under_the_reserved_prefix() -> None:
    assert NOWHERE.startswith(RESERVED)
