from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxproxy.broker.management_api import BindingInfo, ExchangeInfo, QueueInfo
from oxproxy.broker.reconcile import checks
from oxproxy.broker.reconcile.carrier_types import CarrierBindings
from oxproxy.relay.tokens import FEW_DESTINATIONS, STORAGE, Tokens
from oxproxy.relay.vhost import CarrierType
from oxproxy.values import RESERVED_PREFIX
from tests.broker.observed import owned

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


# -- carriers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "mark", "conflict"),
    [
        ("direct", True, None),
        ("topic", True, None),
        ("topic", None, "as a topic exchange that no sidecar created"),
        ("direct", "true", "as a direct exchange that no sidecar created"),
        ("fanout", True, "with type fanout"),
    ],
)
def test_an_exchange_is_a_carrier_if_it_has_the_type_and_the_mark_of_one(
    kind: str, mark: object, conflict: str | None
) -> None:
    listed = ExchangeInfo(b"taken", kind, arguments={} if mark is None else {"x-open-exchange": mark})
    text = checks.carrier_conflict(owned("taken"), listed)
    ways_out = "give the carrier another name (carrier: NAME) or use delivery: queue"
    assert text == (conflict and f"exchange taken exists on the broker {conflict}: {ways_out}")


@pytest.mark.parametrize(
    ("wanted", "carrier_type", "bindings", "scans", "fits"),
    [
        (CarrierType.AUTO, CarrierType.DIRECT, FEW_DESTINATIONS, True, True),
        (CarrierType.AUTO, CarrierType.DIRECT, FEW_DESTINATIONS + 1, True, False),
        (CarrierType.AUTO, CarrierType.DIRECT, FEW_DESTINATIONS + 1, False, True),
        (CarrierType.AUTO, CarrierType.TOPIC, 1, True, True),
        (CarrierType.TOPIC, CarrierType.DIRECT, 1, False, False),
        (CarrierType.DIRECT, CarrierType.DIRECT, FEW_DESTINATIONS + 1, True, True),
        (CarrierType.DIRECT, CarrierType.TOPIC, 1, False, False),
    ],
)
def test_a_carrier_fits_if_it_has_the_requested_type_or_the_one_that_costs_less(
    wanted: CarrierType, carrier_type: CarrierType, bindings: int, scans: bool, fits: bool
) -> None:
    exchange = owned("e", wanted_type=wanted, carrier_type=carrier_type)
    assert CarrierBindings(exchange, bindings, scans).fits == fits


def test_the_description_of_a_carrier_gives_the_reason() -> None:
    shown = str(CarrierBindings(owned("e", carrier=b"c"), 2000, scans=True))
    assert shown == (
        "exchange e: carrier c is a direct exchange with 2000 bindings; RabbitMQ before 3.13 compares all of them "
        "with every message"
    )
    shown = str(CarrierBindings(owned("e", wanted_type=CarrierType.TOPIC), 1, scans=True))
    assert shown == "exchange e: carrier e is a direct exchange with 1 binding; carrier_type requests topic"


def test_alternate_and_dead_letter_exchanges_that_lead_to_a_carrier_are_found() -> None:
    alternates = {b"first": "second", b"second": "carrier", b"carrier": "elsewhere", b"apart": "amq.fanout"}
    exchanges = [ExchangeInfo(name, "fanout", arguments={"alternate-exchange": to}) for name, to in alternates.items()]
    dead_letters = {b"a": "first", b"b": "amq.fanout", b"c": "leading"}
    queues = [QueueInfo(name, arguments={"x-dead-letter-exchange": to}) for name, to in dead_letters.items()]
    assert checks.bypasses({b"carrier"}, {b"leading"}, exchanges, queues) == [
        "exchange first: its alternate exchange second routes to a carrier",
        "exchange second: its alternate exchange carrier routes to a carrier",
        "queue a: its dead-letter exchange first routes to a carrier",
        "queue c: its dead-letter exchange leading routes to a carrier",
    ]
