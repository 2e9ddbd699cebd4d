from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxproxy.broker.management_api import BindingInfo
from oxproxy.broker.reconcile import checks
from oxproxy.relay.tokens import STORAGE, Tokens
from oxproxy.values import RESERVED_PREFIX

EVERY = Tokens("/", (b"new", b"old"))
TOKENS = [
    key
    for kind, name in product(("queue", "exchange"), (b"a", b"public"))
    for key in EVERY.candidates((kind, name), one_word=False)
]


def binding(name: str, key: bytes, kind: str = "queue") -> BindingInfo:
    return BindingInfo((kind, name.encode()), key, key.decode())


def topic_matches(pattern: bytes, key: bytes) -> bool:
    """Topic matching as one regular expression, with a dot before every word."""
    words = ["(?:\\.[^.]*)*" if w == b"#" else "\\.[^.]*" if w == b"*" else "\\." + re.escape(w.decode())
             for w in pattern.split(b".")]  # fmt: skip
    return re.fullmatch("".join(words), "." + key.decode()) is not None


def test_rows_of_a_carrier_are_told_apart() -> None:
    of_q, of_r = (EVERY.candidates(("queue", name), one_word=True) for name in (b"q", b"r"))
    theirs = Tokens("/", (b"theirs",)).candidates(("queue", b"q"), one_word=True)
    stored, own = binding("q", STORAGE + b"0" * 16), [binding("q", key) for key in of_q]
    foreign = [binding("r", of_q[0]), binding("q", b"plain"), binding("q", RESERVED_PREFIX + b"q.*")]
    rows = checks.carrier_rows(
        [*own, binding("r", of_r[1]), *foreign, stored, *(binding("q", key) for key in theirs)], EVERY
    )
    assert rows.tokens == {("queue", b"q"): set(of_q), ("queue", b"r"): {of_r[1]}}
    assert list(rows.foreign) == foreign
    assert len(rows.stale) == len(theirs)


def test_tokens_are_not_shown() -> None:
    (key,) = EVERY.candidates(("queue", b"q"), one_word=False)[:1]
    assert str(binding("q", key)) == "queue q with a token"


@pytest.mark.parametrize(
    "pattern",
    [b"*.*.*.*.*.*.*.*", b"x.#", b"#.q.*", b"#.e.*", b"#.*", b"*.#", b"x.o.p.e.n.x.q.*", b"#.0123456789abcdef",
     b"x.#.n.#", b"#.x.#"],
)  # fmt: skip
def test_patterns_that_match_tokens_are_detected(pattern: bytes) -> None:
    assert checks.matches_tokens(pattern)


@pytest.mark.parametrize(
    "pattern",
    [b"#", b"#.#", b"", b"*", b"documents.#", b"x.*", b"*.*.*.*.*.*.*", b"#.q", b"#.0123456789ABCDEF",
     b"x.o.p.e.n.x.b.*"],
)  # fmt: skip
def test_patterns_that_match_no_token_or_everything_are_ignored(pattern: bytes) -> None:
    assert not checks.matches_tokens(pattern)


@given(st.lists(st.sampled_from([b"#", b"*", b"x", b"o", b"p", b"e", b"n", b"q", b"z"]), max_size=9))
def test_patterns_without_a_hash_match_as_topic_exchanges_do(words: list[bytes]) -> None:
    pattern = b".".join(words)
    everything = all(word == b"#" for word in pattern.split(b"."))
    expected = not everything and any(topic_matches(pattern, key) for key in TOKENS)
    assert checks.matches_tokens(pattern) == expected
