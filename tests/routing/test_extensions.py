"""The operators ``in`` and ``share``, which the open-exchange plugin does not have."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from oxproxy.errors import ProtocolError
from oxproxy.routing.bindings.operators import share_of
from oxproxy.routing.decision import Facts
from oxproxy.values import Value
from tests.routing.building import VOID, Plain, decide, exchange, facts, many, table, to_queue

DE_AT = many("de", "at")


def is_true(entries: Mapping[str, Plain], seen: Facts) -> bool:
    return decide(exchange(to_queue("q", entries, extensions=True)), seen).queues == (b"q",)


def headers(**entries: Plain) -> Facts:
    return facts(headers=entries)


@pytest.mark.parametrize("match", ["all", "any", "eq", "set 1"])
@pytest.mark.parametrize(
    ("operator", "expected", "seen", "true"),
    [
        ("x-?hkvin a", DE_AT, "at", True),
        ("x-?hkvin a", DE_AT, Value("x", b"at"), True),
        ("x-?hkvin a", DE_AT, "AT", False),
        ("x-?hkvin a", many(1, 2.5), Value("d", 1.0), True),
        ("x-?hkvin a", many(1, 2.5), True, False),
        ("x-?hkvin a", many(VOID, True, table(b=1)), table(b=1), True),
        ("x-?hkvin a", DE_AT, DE_AT, False),
    ],
)
def test_a_header_is_in_a_list(match: str, operator: str, expected: Value, seen: Plain, true: bool) -> None:
    assert is_true({"x-match": match, operator: expected}, headers(a=seen)) is true


def test_a_missing_header_is_in_no_list_but_satisfies_the_optional_operator() -> None:
    assert [is_true({f"x-?hk{mode} a": DE_AT}, headers(b=1)) for mode in ("vin", "v!in", "?vin", "?v!in")] == [
        False,
        False,
        True,
        True,
    ]
    assert [is_true({f"x-?hk{mode} a": DE_AT}, headers(a="fr")) for mode in ("vin", "v!in", "?vin", "?v!in")] == [
        False,
        True,
        False,
        True,
    ]


def test_the_routing_key_and_properties_are_in_a_list() -> None:
    assert is_true({"x-?rkin": many("a", "b.c")}, facts("b.c"))
    assert not is_true({"x-?rk!in": many("a", "b.c")}, facts("b.c"))
    assert is_true({"x-?prin type": DE_AT}, facts(properties={"type": "de"}))
    assert is_true({"x-?pr!in type": DE_AT}, facts(properties={"type": "fr"}))
    assert not is_true({"x-?pr!in type": DE_AT}, facts())
    assert is_true({"x-?prin priority": many(1, 5)}, facts(properties={"priority": 5}))
    assert is_true({"x-?prin expiration": many(1, 5)}, facts(properties={"expiration": "+005"}))


#: Recorded once. The share of a value must be the same in every version, on every machine.
SHARES = {b"": 9876, b"5": 7792, b"order-1": 6429, b"true": 479, "Zürich".encode(): 3848}


def test_the_share_of_a_value_never_changes() -> None:
    assert {content: share_of(content) for content in SHARES} == SHARES


@pytest.mark.parametrize(
    ("seen", "content"),
    [
        ("order-1", b"order-1"),
        (Value("x", b"order-1"), b"order-1"),
        (5, b"5"),
        (Value("l", 5), b"5"),
        (5.0, b"5"),
        (True, b"true"),
    ],
)
def test_equal_values_belong_to_the_same_share(seen: Plain, content: bytes) -> None:
    share = SHARES[content] / 100
    assert is_true({"x-?hkv% a": many(share, round(share + 0.01, 2))}, headers(a=seen))
    assert not is_true({"x-?hkv% a": many(round(share + 0.01, 2), 100)}, headers(a=seen))
    assert not is_true({"x-?hkv% a": many(0, share)}, headers(a=seen))


def test_shares_of_the_routing_key_and_of_properties() -> None:
    below, above = many(0, 64.29), many(64.29, 100)
    assert [is_true({"x-?rk%": share}, facts("order-1")) for share in (below, above)] == [False, True]
    by_id = [
        is_true({"x-?pr% message_id": share}, facts(properties={"message_id": "order-1"})) for share in (below, above)
    ]
    assert by_id == [False, True]
    assert is_true({"x-?pr% priority": many(77.92, 77.93)}, facts(properties={"priority": 5}))


@pytest.mark.parametrize("seen", [VOID, many(1), table(a=1), Value("D", (0, 5))])
def test_other_values_belong_to_no_share(seen: Value) -> None:
    assert not is_true({"x-?hkv% a": many(0, 100)}, headers(a=seen))
    assert not is_true({"x-?hkv% a": many(0, 100)}, headers())


def test_shares_divide_all_values_evenly() -> None:
    made = exchange(
        *(to_queue(f"q{at}", {"x-?hkv% id": many(at, at + 25)}, extensions=True) for at in range(0, 100, 25))
    )
    counts = dict.fromkeys((b"q0", b"q25", b"q50", b"q75"), 0)
    for number in range(4000):
        (queue,) = decide(made, headers(id=f"order-{number}")).queues
        counts[queue] += 1
    assert all(900 < count < 1100 for count in counts.values())


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("x-?hkvin a", "de"),
        ("x-?hkvin a", many()),
        ("x-?rkin", many(1)),
        ("x-?prin type", many(1)),
        ("x-?prin priority", many("5")),
        ("x-?prin priority", 5),
        ("x-?prin colour", DE_AT),
        ("x-?hkvin", DE_AT),
        *(
            ("x-?hkv% a", expected)
            for expected in (
                5,
                many(5),
                many(0, 5, 10),
                many(5, 5),
                many(10, 5),
                many(-1, 5),
                many(0, 100.5),
                many(0, 0.005),
            )
        ),
        ("x-?rk%", many("0", "5")),
        ("x-?pr% type", 5),
        ("x-?hk?v% a", many(0, 5)),
    ],
)
def test_wrong_values_are_refused(operator: str, expected: Plain) -> None:
    with pytest.raises(ProtocolError) as refused:
        exchange(to_queue("q", {operator: expected}, extensions=True))
    assert refused.value.reply_code == 406


def test_a_decimal_in_a_list_is_refused() -> None:
    with pytest.raises(ProtocolError, match="Usage of decimal type is forbidden"):
        exchange(to_queue("q", {"x-?hkvin a": many(Value("D", (0, 5)))}, extensions=True))


def test_without_extensions_the_operators_are_unknown_keys_and_the_setting_is_named() -> None:
    with pytest.raises(ProtocolError) as refused:
        exchange(to_queue("q", {"x-?hkvin a": DE_AT}))
    assert refused.value.text == (
        b"Unknown or invalid argument's key '<<\"x-?hkvin a\">>': requires declared.extensions: true"
    )
    # As in the plugin, an empty list is no operator at all.
    assert decide(exchange(to_queue("q", {"x-?hkvin a": many()})), facts()).queues == (b"q",)
