from __future__ import annotations

import pytest

from proxy.errors import ProtocolError
from proxy.routing.decision import Facts
from proxy.routing.filters import HeadersFilter, PayloadFilter, read_filters
from proxy.values import Value
from tests.routing.building import VOID, Plain, arguments, facts, many, message, table


def _breach(limits: dict[str, int], seen: Facts) -> str | None:
    """The error of the first violated limit, with a mark for silent filters."""
    for limit in read_filters(arguments(limits)):
        text = limit.breach(message(seen))
        if text is not None:
            return text.removesuffix(" hit.") + (" (silent)" if limit.silent else "")
    return None


def _heavy(**headers: Plain) -> Facts:
    return facts(headers=headers)


@pytest.mark.parametrize(
    ("limits", "size", "breach"),
    [
        ({"min-payload-size": 10}, 10, None),
        ({"min-payload-size": 10}, 9, "Min size payload"),
        ({"max-payload-size": 10}, 10, None),
        ({"max-payload-size": 10}, 11, "Max size payload"),
        ({"min-payload-size-silent": 10}, 9, "Min size payload (silent)"),
        ({"max-payload-size-silent": 10}, 11, "Max size payload (silent)"),
        ({"max-payload-size": 0}, 0, None),
        ({"max-payload-size": -1}, 0, "Max size payload"),
        # In reverse order of declaration.
        ({"max-payload-size": 10, "max-payload-size-silent": 5}, 11, "Max size payload (silent)"),
        ({"max-payload-size-silent": 5, "max-payload-size": 10}, 11, "Max size payload"),
        ({"max-payload-size-silent": 5, "max-payload-size": 10}, 6, "Max size payload (silent)"),
    ],
)
def test_payload_limits_are_checked(limits: dict[str, int], size: int, breach: str | None) -> None:
    assert _breach(limits, facts(size=size)) == breach


@pytest.mark.parametrize(
    ("plain", "weight"),
    [
        ("", 0),
        ("é", 2),
        (Value("x", b"abc"), 3),
        (1, 4),
        (2**40, 4),
        (1.5, 4),
        (Value("T", 1), 4),
        (True, 1),
        (VOID, 1),
        (Value("D", (1, 5)), 1),
        (many(), 10),
        (many("abc", 1, many(True)), 10 + 3 + 4 + 10 + 1),
        (table(), 0),
        (table(k="long text", j=many("more")), 2),
    ],
)
def test_each_value_has_a_size(plain: Plain, weight: int) -> None:
    seen = _heavy(name=plain)
    exact = len("name") + weight
    assert _breach({"max-headers-size": exact, "max-headers-depth": 9}, seen) is None
    assert _breach({"max-headers-size": exact - 1, "max-headers-depth": 9}, seen) == "Max headers size"


def test_duplicate_headers_both_count() -> None:
    twice = Facts(b"", ((b"a", Value("S", b"xx")), (b"a", Value("S", b"xx"))))
    assert _breach({"max-headers-size": 6}, twice) is None
    assert _breach({"max-headers-size": 5}, twice) == "Max headers size"


@pytest.mark.parametrize(
    ("plain", "depth"),
    [
        (1, 0),
        (many(), 1),
        (many(1, many(2)), 2),
        (many(many(1), many(2), many(3)), 2),
        (table(k=many(many(many(1)))), 0),
        (many(table(k=many(1))), 1),
    ],
)
def test_depth_is_the_nesting_of_lists(plain: Plain, depth: int) -> None:
    seen = _heavy(a=plain, b=many(1))
    limit = max(depth, 1)
    assert _breach({"max-headers-depth": limit}, seen) is None
    if depth:
        assert _breach({"max-headers-depth": depth - 1}, seen) == "Max headers depth"


def test_very_deep_lists_do_not_exhaust_the_stack() -> None:
    deep = many()
    for _ in range(5000):
        deep = many(deep)
    assert _breach({"max-headers-depth": 10_000, "max-headers-size": 10**9}, _heavy(a=deep)) is None


def test_one_headers_limit_enables_the_default_of_the_other() -> None:
    deep, large = _heavy(a=many(many(many()))), _heavy(a="x" * 16384)
    assert _breach({"max-headers-size": 100}, deep) == "Max headers depth"
    assert _breach({"max-headers-depth": 5}, large) == "Max headers size"
    assert _breach({"max-headers-depth": 5}, _heavy(a="x" * 16383)) is None
    assert _breach({"max-payload-size": 5}, deep) is None


@pytest.mark.parametrize("limit", ["max-headers-depth", "max-headers-size"])
def test_a_negative_headers_limit_rejects_every_message(limit: str) -> None:
    assert _breach({limit: -1}, facts()) == f"M{limit[1:].replace('-', ' ')}"


def test_headers_are_checked_in_the_order_of_their_names() -> None:
    limits = {"max-headers-depth": 1, "max-headers-size": 20}
    assert _breach(limits, _heavy(b=many(many()), a="x" * 30)) == "Max headers size"
    assert _breach(limits, _heavy(a=many(many()), b="x" * 30)) == "Max headers depth"


def test_depth_of_a_header_is_tested_before_its_size() -> None:
    limits = {"max-headers-depth": 1, "max-headers-size": 5}
    assert _breach(limits, _heavy(a=many("xxxxxxxxx", many()))) == "Max headers depth"


def test_both_headers_limits_are_checked_at_the_position_of_the_later_one() -> None:
    seen = facts(headers={"a": many(many())}, size=11)
    limits = {"max-headers-depth": 1, "max-payload-size": 10}
    assert _breach(limits, seen) == "Max size payload"
    assert _breach(limits | {"max-headers-size": 100}, seen) == "Max headers depth"


@pytest.mark.parametrize("letter", "bBsuIilL")
def test_limits_may_have_any_integer_type(letter: str) -> None:
    [made] = read_filters(((b"max-payload-size", Value(letter, 5)),))
    assert made == PayloadFilter(b"max-payload-size", 5, False, False)


@pytest.mark.parametrize("odd", [Value("T", 5), 5.0, "5", True, VOID, many(5), Value("D", (0, 5)), table()])
@pytest.mark.parametrize(
    "name",
    [
        *(f"{end}-payload-size{silent}" for end in ("min", "max") for silent in ("", "-silent")),
        "max-headers-size",
        "max-headers-depth",
    ],
)
def test_limits_of_another_type_are_refused(name: str, odd: Plain) -> None:
    with pytest.raises(ProtocolError) as caught:
        read_filters(arguments({name: odd}))
    assert (caught.value.reply_code, caught.value.text) == (406, b"Invalid exchange argument.")


def test_other_arguments_are_not_filters() -> None:
    assert read_filters(arguments({"alternate-exchange": "ae", "max-headers-size-silent": "x"})) == ()


def test_a_size_threshold_is_the_first_size_with_the_other_result() -> None:
    assert PayloadFilter(b"", 10, True, False).cut == 10
    assert PayloadFilter(b"", 10, False, False).cut == 11
    assert HeadersFilter(b"", 1, 1).silent is False


@pytest.mark.parametrize(
    ("seen", "breach"),
    [
        (facts(size=160), None),
        (facts(size=1024), None),
        (facts(size=159), "Min size payload (silent)"),
        (facts(size=1025), "Max size payload"),
        (facts(size=500, headers={"a": many(many(many(many())))}), None),
        (facts(size=500, headers={"a": many(many(many(many(many()))))}), "Max headers depth"),
        (facts(size=500, headers={"a": "x" * 16384}), "Max headers size"),
    ],
)
def test_a_usual_set_of_filters(seen: Facts, breach: str | None) -> None:
    limits = {
        "max-headers-depth": 4,
        "max-headers-size": 16384,
        "max-payload-size": 1024,
        "min-payload-size-silent": 160,
    }
    assert _breach(limits, seen) == breach
