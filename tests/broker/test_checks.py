from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.broker.management_api import BindingInfo
from proxy.broker.reconcile import checks
from proxy.relay.tokens import UNKEYED, Tokens

EVERY = Tokens("/", (b"new", b"old"))
TOKENS = [key for kind, name in product(("queue", "exchange"), (b"a", b"public")) for key in EVERY.of(kind, name)]


def binding(name: str, key: bytes, kind: str = "queue") -> BindingInfo:
    return BindingInfo((kind, name.encode()), key, key.decode())


def topic_matches(pattern: bytes, key: bytes) -> bool:
    """Topic matching as one regular expression, with a dot before every word."""
    words = ["(?:\\.[^.]*)*" if w == b"#" else "\\.[^.]*" if w == b"*" else "\\." + re.escape(w.decode())
             for w in pattern.split(b".")]  # fmt: skip
    return re.fullmatch("".join(words), "." + key.decode()) is not None


def test_missing_and_former_tokens_of_a_carrier_are_listed() -> None:
    whole = [binding("q", key) for key in EVERY.of("queue", b"q")]
    lacking = [binding("r", key) for key in EVERY.of("queue", b"r")[1:]]
    tokens = checks.carrier_tokens([*whole, *lacking], EVERY)
    assert tokens.bound == {("queue", b"q"), ("queue", b"r")}
    assert tokens.incomplete == {("queue", b"r")}
    assert (tokens.unkeyed, tokens.previous) == (2, 2)
    ended = EVERY.without(UNKEYED).without(b"old")
    tokens = checks.carrier_tokens([*whole, *lacking], ended)
    assert tokens.bound == {("queue", b"q")}
    assert list(tokens.former) == whole[1:]  # not if the current one is missing
    assert (tokens.unkeyed, tokens.previous) == (2, 2)
    assert checks.foreign_bindings([*whole, *lacking], ended) == []


def test_a_token_of_an_unknown_secret_is_foreign_and_is_not_shown() -> None:
    unknown = binding("q", Tokens("/", (b"theirs",)).of("queue", b"q")[0])
    assert checks.foreign_bindings([unknown], Tokens("/", (b"ours",))) == [unknown]
    assert str(unknown) == "queue q with a token"


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
