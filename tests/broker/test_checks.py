from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.broker.management_api import BindingInfo, ExchangeInfo, QueueInfo
from proxy.broker.reconcile import checks
from proxy.relay.tokens import UNKEYED, Tokens, token
from tests.broker.observed import owned

EVERY = Tokens("/", (b"new", b"old"))
MARKED = {"x-open-exchange": True}
TOKENS = [key for kind, name in product(("queue", "exchange"), (b"a", b"public")) for key in EVERY.of(kind, name)]


def binding(name: str, key: bytes, kind: str = "queue") -> BindingInfo:
    return BindingInfo((kind, name.encode()), key, key.decode())


def topic_matches(pattern: bytes, key: bytes) -> bool:
    """Topic matching as one regular expression, with a dot before every word."""
    words = ["(?:\\.[^.]*)*" if w == b"#" else "\\.[^.]*" if w == b"*" else "\\." + re.escape(w.decode())
             for w in pattern.split(b".")]  # fmt: skip
    return re.fullmatch("".join(words), "." + key.decode()) is not None


def test_a_free_name_is_no_conflict() -> None:
    assert checks.carrier_conflict(owned("documents"), None) is None


def test_our_own_carrier_is_no_conflict() -> None:
    assert checks.carrier_conflict(owned("documents"), ExchangeInfo(b"documents", "direct", False, MARKED)) is None


@pytest.mark.parametrize(
    "existing",
    [
        ExchangeInfo(b"documents", "topic"),
        ExchangeInfo(b"documents", "direct"),
        ExchangeInfo(b"documents", "direct", False, {"x-open-exchange": "true"}),
        ExchangeInfo(b"documents", "fanout", False, MARKED),
    ],
)
def test_an_existing_exchange_is_a_conflict_that_names_both_solutions(existing: ExchangeInfo) -> None:
    text = checks.carrier_conflict(owned("documents"), existing)
    assert text is not None
    assert "documents" in text
    assert "carrier: NAME" in text
    assert "delivery: queue" in text


def test_a_carrier_whose_name_the_broker_refuses_is_a_conflict() -> None:
    text = checks.carrier_conflict(owned("documents", carrier=b"\xff"), None)
    assert text is not None
    assert "not UTF-8" in text


def test_a_refused_declare_names_the_permissions_it_needs() -> None:
    text = checks.declare_conflict(owned("documents", alternate=b"rest"), 403, "ACCESS_REFUSED", "control")
    assert "'control'" in text
    assert "configure" in text
    assert "read" in text
    assert "write" in text
    assert "rest" in text


def test_internal_exchanges_can_not_be_published_to() -> None:
    existing = {b"inner": ExchangeInfo(b"inner", "fanout", internal=True), b"outer": ExchangeInfo(b"outer", "fanout")}
    conflicts = checks.internal_conflicts({b"inner": b"mine", b"outer": b"other", b"nowhere": b"third"}, existing)
    assert list(conflicts) == [b"mine"]


def test_tokens_and_stored_bindings_are_ours_and_everything_else_is_foreign() -> None:
    ours = [
        binding("q", token("queue", b"q")),
        binding("x", token("exchange", b"x"), "exchange"),
        binding("q", b"x.o.p.e.n.x.b.0123456789abcdef"),
    ]
    foreign = [
        binding("q", b"plain"),
        binding("q", token("queue", b"another")),
        binding("x", token("queue", b"x"), "exchange"),
    ]
    assert checks.foreign_bindings(ours + foreign) == foreign
    tokens = checks.carrier_tokens(ours + foreign, Tokens())
    assert tokens.bound == {("queue", b"q"), ("exchange", b"x")}
    assert not tokens.incomplete
    assert not tokens.former
    assert tokens.unkeyed == 2


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


def test_a_warning_names_the_pattern_and_its_exchange() -> None:
    [text] = checks.topic_warnings(b"news", [binding("q", b"x.#"), binding("q", b"news.#")])
    assert "news" in text
    assert "x.#" in text


def test_dead_letters_to_the_default_exchange_without_a_key_are_warned_of() -> None:
    risky = QueueInfo(b"risky", False, {"x-dead-letter-exchange": ""})
    keyed = QueueInfo(b"keyed", False, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    elsewhere = QueueInfo(b"elsewhere", False, {"x-dead-letter-exchange": "dlx"})
    [text] = checks.dead_letter_warnings([risky, keyed, elsewhere, QueueInfo(b"plain")])
    assert "risky" in text
