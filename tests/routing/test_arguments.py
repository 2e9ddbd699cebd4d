from __future__ import annotations

from dataclasses import replace

import pytest

from proxy.routing.bindings.arguments import ALL, ANY, EQ, match_type_of
from proxy.values import Value
from tests.routing.building import Plain, arguments, exchange, facts, many, queues, refusal, table, to_queue, value

_NO_EQUAL = "Invalid use of list type with = operator in this binding type"
_NO_DIFFERENT = "Invalid use of list type with != operator in this binding type"
_NO_ROUTE = "Invalid use of list type with regex in routing facilities"
_NO_COMPARISON = "Invalid use of list type with < or > operators and/or datetime related"
_DEEP = "Invalid use of list in list"
_REGEX_ROUTES = ("addqre", "addq!re", "add1qre", "add1q!re", "delqre", "delq!re")
_DECIMAL = Value("D", (1, 5))


def _unknown(key: str) -> str:
    return f"Unknown or invalid argument's key '<<\"{key}\">>'"


@pytest.mark.parametrize(("name", "match_type"), [("all", ALL), ("any", ANY), ("eq", EQ)])
def test_match_types_have_names(name: str, match_type: object) -> None:
    assert match_type_of(arguments({"x-match": name})) is match_type


def test_without_a_match_type_all_is_meant() -> None:
    assert match_type_of(()) is ALL


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("set", 0),
        ("set 0", 0),
        ("set 2", 2),
        ("set +2", 2),
        ("set 002", 2),
        ("set -0", 0),
        ("set " + "0" * 5000 + "1", 1),
    ],
)
def test_set_takes_a_decimal_integer(name: str, least: int) -> None:
    assert match_type_of(arguments({"x-match": name})).name == f"set {least}"


def test_set_of_a_huge_number_is_out_of_reach() -> None:
    made = exchange(to_queue("q", {"x-match": "set " + "9" * 5000, "a": 1}))
    assert queues(made, facts(headers={"a": 1})) == []


@pytest.mark.parametrize(
    "odd",
    [
        *(
            "",
            "ALL",
            "Any",
            "any 2",
            "all-with-x",
            "set ",
            "set  1",
            "set 1 ",
            "set -1",
            "set 1_0",
            "set ٣",
            "set 1\n",
            "eq 1",
        ),
        *(1, True, Value("x", b"all"), Value("V", None), many("all"), _DECIMAL),
    ],
)
def test_other_match_types_are_refused(odd: Plain) -> None:
    assert refusal(to_queue("q", {"x-match": odd})) == "Invalid binding type"


@pytest.mark.parametrize("match_type", ["all", "eq", "set", "set 1"])
@pytest.mark.parametrize("key", ["x-?hkv= a", "x-?hk?v= a", "x-?rk=", "x-?pr= app_id", "x-?pr=anything"])
def test_list_of_equals_is_refused_unless_under_any(key: str, match_type: str) -> None:
    assert refusal(to_queue("q", {"x-match": match_type, key: many()})) == _NO_EQUAL


@pytest.mark.parametrize("key", ["x-?hkv!= a", "x-?hk?v!= a", "x-?rk!=", "x-?pr!= app_id"])
def test_list_of_differences_is_refused_under_any(key: str) -> None:
    assert refusal(to_queue("q", {"x-match": "any", key: many()})) == _NO_DIFFERENT


@pytest.mark.parametrize(
    ("key", "text"),
    [
        *(
            (f"x-{what}-on{result}", _NO_ROUTE)
            for what in ("addqre", "addq!re", "add1qre", "add1q!re", "delqre", "delq!re")
            for result in ("true", "false")
        ),
        *(
            (f"x-?{what}", _NO_COMPARISON)
            for what in ("hkv< a", "hkv<= a", "hkv>= a", "hk?v> a", "pr< priority", "pr>= priority")
        ),
        *((f"x-?{what}", _NO_COMPARISON) for what in ("dture", "dtu!re", "dtlre", "dtl!re")),
    ],
)
@pytest.mark.parametrize("match_type", ["all", "any", "eq", "set"])
def test_some_lists_are_refused_always(key: str, text: str, match_type: str) -> None:
    assert refusal(to_queue("q", {"x-match": match_type, key: many()})) == text


@pytest.mark.parametrize("key", ["x-?hkex", "x-addq-ontrue", "a", "x-foo"])
def test_list_in_a_list_is_refused(key: str) -> None:
    assert refusal(to_queue("q", {key: many(many("a"))})) == _DEEP


@pytest.mark.parametrize(
    "entries",
    [
        {"x-foo": many()},
        {"": many()},
        {"x-?hkex": many()},
        {"x-stop-ontrue": many(), "x-msg-addq-ontrue": many()},
        {"x-order": many(), "x-goto-ontrue": many(), "x-del-dest": many()},
        {"x-?hkv!= a": many()},
        {"x-match": "any", "x-?hkv= a": many(), "x-?hk!ex": "b"},
    ],
)
def test_empty_list_is_no_operator_and_is_not_looked_at(entries: dict[str, Plain]) -> None:
    assert queues(exchange(to_queue("q", entries), to_queue("r"))) == ["q", "r"]


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({"a": _DECIMAL}, "Usage of decimal type is forbidden"),
        ({"x-foo": _DECIMAL}, "Usage of decimal type is forbidden"),
        ({"": _DECIMAL}, "Usage of decimal type is forbidden"),
        ({"x-?hkv!= a": many(1, _DECIMAL)}, "Usage of decimal type is forbidden"),
        ({"": 1}, "Binding's argument key can't be empty"),
        ({"": many(1)}, "Binding's argument key can't be empty"),
        ({"x-order": many(100)}, _unknown("x-order")),
        ({"x-goto-onfalse": many(_DECIMAL)}, "Usage of decimal type is forbidden"),
        ({"x-del-dest": many("")}, _unknown("x-del-dest")),
        ({"x-goto-ontrue": many(100)}, _unknown("x-goto-ontrue")),
        ({"x-?hkex": many("a", 1)}, _unknown("x-?hkex")),
    ],
)
def test_what_is_wrong_with_a_single_argument_is_said(entries: dict[str, Plain], text: str) -> None:
    assert refusal(to_queue("q", entries)) == text


def test_decimal_inside_a_table_is_not_looked_at() -> None:
    assert exchange(to_queue("q", {"a": Value("F", ((b"k", _DECIMAL),))}))


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({"x-match": "bad", "x-?hkv= a": many(1)}, "Invalid binding type"),
        # Lists: from the greatest key down, before anything else.
        ({"x-?hkv< a": many(1), "x-?hkv= a": many(1)}, _NO_EQUAL),
        ({"x-?dture": many("a"), "x-addqre-ontrue": many("a")}, _NO_ROUTE),
        ({"x-?hkex": many(many("a")), "x-?rk=": many("b")}, _NO_EQUAL),
        # Then lists in lists.
        ({"a": _DECIMAL, "x-?hkex": many(many("a"))}, _DEEP),
        # Then each from the smallest key up.
        ({"x-zzz": "a", "x-aaa": "a"}, _unknown("x-aaa")),
        ({"a": _DECIMAL, "x-foo": ""}, "Usage of decimal type is forbidden"),
        ({"z": _DECIMAL, "x-foo": ""}, _unknown("x-foo")),
        (
            {"x-?rkre": "(", "x-?hkvre color": "["},
            "Invalid regex '[': missing terminating ] for character class at offset 1",
        ),
        ({"x-order": 5, "x-goto-ontrue": 5}, "Binding's goto must be an integer between 100 and 999999"),
        ({"x-?hkvre a": many("ok", "(", "[")}, "Invalid regex '(': missing closing parenthesis at offset 1"),
    ],
)
def test_only_the_first_problem_is_reported(entries: dict[str, Plain], text: str) -> None:
    assert refusal(to_queue("q", entries)) == text


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", ["x-open", "headers", "topic", "direct", "fanout"])
def test_numbers_that_are_none_are_refused(number: float, kind: str) -> None:
    for entry in (value(number), Value("f", number), table(k=number), table(k=many(number))):
        text = refusal(to_queue("q", {"a": entry}), kind)
        assert text == "Argument 'a' holds a number that is infinite or not a number"


def test_numbers_that_are_none_are_refused_in_a_list() -> None:
    text = refusal(to_queue("q", {"x-match": "any", "a": many(1, float("nan"))}))
    assert text == "Argument 'a' holds a number that is infinite or not a number"


def test_duplicate_arguments_are_both_operators() -> None:
    binding = to_queue("q")
    twice = ((b"x-?hkv= a", Value("I", 1)), (b"x-?hkv= a", Value("I", 2)))
    assert queues(exchange(replace(binding, arguments=twice)), facts(headers={"a": 1})) == []
