"""The readable spelling of bindings and its translation into arguments."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxproxy.routing.bindings.arguments import HEADER_KEYS, KEYS
from oxproxy.routing.bindings.binding import typed_arguments
from oxproxy.rules.message import PROPERTIES
from oxproxy.rules.spelling.lines import (
    EFFECTS,
    MAY,
    OPERATORS,
    OWN_KEYS,
    PERMISSIONS,
    Line,
    SpellingError,
    arguments_of,
    lines_of,
    read_key,
)
from oxproxy.values import Value


def text(content: str) -> Value:
    return Value("S", content.encode())


def listed(*contents: Value) -> Value:
    return Value("A", contents)


def one(key: str, value: Value, match: str = "all") -> tuple[bytes, Value]:
    lines = [Line("", "match", text(match)), Line("when", key, value)]
    return arguments_of(lines)[1][1:]


CONDITIONS = [
    ("amount >=", Value("I", 1000), b"x-?hkv>= amount"),
    ("header amount >=", Value("I", 1000), b"x-?hkv>= amount"),
    ("country", text("de"), b"x-?hkv= country"),
    ("country =", text("de"), b"x-?hkv= country"),
    ("country !=", text("de"), b"x-?hkv!= country"),
    ("two words <", Value("d", 1.5), b"x-?hkv< two words"),
    ("country in", listed(text("de")), b"x-?hkvin country"),
    ("country not in", listed(text("de")), b"x-?hkv!= country"),
    ("title matches", text("^a"), b"x-?hkvre title"),
    ("title not matches", text("^a"), b"x-?hkv!re title"),
    ("tenant missing or =", text("a"), b"x-?hk?v= tenant"),
    ("tenant missing or not matches", text("a"), b"x-?hk?v!re tenant"),
    ("id share", listed(Value("I", 0), Value("d", 2.5)), b"x-?hkv% id"),
    ("country equals", text("de"), b"country"),
    ("log in =", text("x"), b"x-?hkv= log in"),
    ("header key", text("x"), b"x-?hkv= key"),
    ("header header =", text("x"), b"x-?hkv= header"),
    ("header in =", text("x"), b"x-?hkv= in"),
    ("header Key", text("x"), b"x-?hkv= Key"),
    ("header amount > =", text("x"), b"x-?hkv= amount >"),
    ("header tenant not exists =", text("x"), b"x-?hkv= tenant not exists"),
    ("header not amount =", text("x"), b"x-?hkv= not amount"),
    ("header message_id", text("x"), b"x-?hkv= message_id"),
    ("header x-match", text("x"), b"x-?hkv= x-match"),
    ("header $amount", text("x"), b"x-?hkv= $amount"),
    ("Header", text("x"), b"x-?hkv= Header"),
    ("type", text("x"), b"x-?hkv= type"),
    ("x-own", text("x"), b"x-?hkv= x-own"),
    ("key", text("a"), b"x-?rk="),
    ("key =", text("a"), b"x-?rk="),
    ("key in", listed(text("a")), b"x-?rkin"),
    ("key topic", text("#.late"), b"x-?rkta"),
    ("key not topic (any case)", text("a.*"), b"x-?rk!taci"),
    ("key share", listed(Value("I", 0), Value("I", 5)), b"x-?rk%"),
    ("property type matches", text("(?i)^late"), b"x-?prre type"),
    ("property priority >", Value("I", 5), b"x-?pr> priority"),
    ("property app_id not in", listed(text("a")), b"x-?pr!= app_id"),
    ("utc matches", text(" 08"), b"x-?dture"),
    ("local not matches", text(" 08"), b"x-?dtl!re"),
]


@pytest.mark.parametrize(("key", "value", "argument"), CONDITIONS, ids=[key for key, *_ in CONDITIONS])
def test_condition_is_the_argument_with_the_same_value(key: str, value: Value, argument: bytes) -> None:
    assert one(key, value) == (argument, value)


@pytest.mark.parametrize(
    ("key", "value", "argument", "name"),
    [
        ("customer exists", Value("t", True), b"x-?hkex", "customer"),
        ("customer exists", Value("t", False), b"x-?hk!ex", "customer"),
        ("property reply_to exists", Value("t", False), b"x-?pr!ex", "reply_to"),
        ("amount is", text("number"), b"x-?hkexn", "amount"),
        ("amount is not", text("list"), b"x-?hkex!a", "amount"),
    ],
)
def test_tests_of_existence_and_type_name_the_header_in_the_value(
    key: str, value: Value, argument: bytes, name: str
) -> None:
    assert one(key, value) == (argument, text(name))


def test_not_in_needs_an_extension_only_if_a_list_of_unequal_values_is_not_allowed_or_counts_several_times() -> None:
    names = listed(text("de"), text("at"))
    assert one("country not in", names, "all")[0] == b"x-?hkv!= country"
    assert [one("country not in", names, match)[0] for match in ("any", "eq", "set 2")] == [b"x-?hkv!in country"] * 3


def test_several_tests_of_existence_become_one_argument() -> None:
    yes = Value("t", True)
    lines = [Line("when", "a exists", yes), Line("when", "b exists", yes), Line("when", "a is", text("string"))]
    assert [entry[1:] for entry in arguments_of(lines)] == [
        (b"x-?hkex", listed(text("a"), text("b"))),
        (b"x-?hkexs", text("a")),
    ]


def test_effects_and_keys_of_the_binding() -> None:
    yes, order = Value("t", True), Value("I", 200)
    lines = [
        Line("", "match", text("any")),
        Line("", "order", order),
        Line("", "queue from key", yes),
        Line("", "drop destination", yes),
        Line("then", "add queue", listed(text("a"), text("b"))),
        Line("then", "stop", yes),
        Line("else", "goto", order),
        Line("else", "producer may", listed(text("add queues"), text("remove exchanges"))),
    ]
    assert [entry[1:] for entry in arguments_of(lines)] == [
        (b"x-match", text("any")),
        (b"x-order", order),
        (b"x-msg-destq-rk", text("")),
        (b"x-del-dest", text("")),
        (b"x-addq-ontrue", listed(text("a"), text("b"))),
        (b"x-stop-ontrue", text("")),
        (b"x-goto-onfalse", order),
        (b"x-msg-addq-onfalse", text("")),
        (b"x-msg-dele-onfalse", text("")),
    ]


def test_every_argument_key_has_a_readable_form() -> None:
    heads = {head for operator in OPERATORS.values() for head in operator.heads.values()}
    heads |= {
        head for operator in OPERATORS.values() for choices in operator.choices.values() for head in choices.values()
    }
    effects = {
        head + suffix for head in (*EFFECTS.values(), *PERMISSIONS.values()) for suffix in (b"-ontrue", b"-onfalse")
    }
    known = {head for head in heads if head and not head.startswith(b"x-?pr")} | effects | {*OWN_KEYS.values()}
    assert known - {b"x-match"} == {*HEADER_KEYS, *KEYS}


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ([(b"type", text("report"))], [("when", "type equals")]),
        ([(b"x-?hkv= type", text("report"))], [("when", "type")]),
        ([(b"x-?hkv= x-type", text("report"))], [("when", "x-type")]),
        ([(b"x-?hkv= key", text("a"))], [("when", "header key")]),
        ([(b"x-?hkv= a in", text("a"))], [("when", "a in =")]),
        ([(b"x-?hkv= headers.a", text("a"))], [("when", "header headers.a")]),
        ([(b"x-?hkv!= a", listed(text("a")))], [("when", "a not in")]),
        ([(b"x-match", text("set 1")), (b"x-?hkv!= a", listed(text("a")))], [("", "match"), ("when", "a !=")]),
        ([(b"x-match", text("any")), (b"x-?hkv= a", listed(text("a")))], [("", "match"), ("when", "a")]),
        ([(b"x-?hkex", listed(text("a"), text("b")))], [("when", "a exists"), ("when", "b exists")]),
        ([(b"x-stop-ontrue", text("")), (b"x-order", Value("I", 200))], [("", "order"), ("then", "stop")]),
    ],
)
def test_arguments_become_lines(arguments: list[tuple[bytes, Value]], lines: list[tuple[str, str]]) -> None:
    readable = lines_of(tuple(arguments))
    assert readable is not None
    assert [(line.section, line.key) for line in readable] == lines


@pytest.mark.parametrize(
    "arguments",
    [
        [(b"x-?hkex", listed(text("a")))],  # a list of one name is another binding than the name
        [(b"x-?hkex", listed(text("a"), text("a")))],
        [(b"x-stop-ontrue", listed(text("")))],
        [(b"x-unknown", listed())],
        [(b"x-?hkv< a missing or", Value("I", 5))],
        [(b"x-?hkv!in a", listed(text("a")))],
        [(b"a", Value("I", 1)), (b"a", Value("I", 2))],
        [(b"x-?hkexn", text("a")), (b"x-?hkexi", text("a"))],
        [(b"\xff", Value("I", 1))],
    ],
)
def test_some_arguments_have_no_readable_form(arguments: list[tuple[bytes, Value]]) -> None:
    assert lines_of(tuple(arguments)) is None


WRONG_KEYS = [
    ("amount>=", '"amount >="'),
    ("amount =>", '"amount >="'),
    ("amount ==", '"amount ="'),
    ("amount gte", '"amount >="'),
    ("amount IN", '"amount in"'),
    ("title matchs", '"title matches"'),
    ("title =~", '"title matches"'),
    ("title starts with", '"title matches"'),
    ("tenant exist", '"tenant exists"'),
    ("headers.amount", '"amount"'),
    ("headers.amount >=", '"amount >="'),
    ("headers['amount']", '"amount"'),
    ("properties.message_id", '"property message_id"'),
    ("routing_key", '"key"'),
    ("routing key topic", '"key topic"'),
    ("amount && country", "one condition for each key"),
    (">=", "NAME >="),
    ("in", "NAME in"),
    ("header", 'expected "header NAME"'),
    ("property", 'expected "property NAME"'),
    ("property message-id", "did you mean message_id?"),
    ("property priority is", "expected one of"),
    ("property type matchs", '"property type matches"'),
    ("property colour", "there is no property"),
    ("key >=", "expected one of"),
    ("key topics", '"key topic"'),
    ("key name", "after key"),
    ("utc", '"utc matches"'),
    ("local =", "after local"),
    ("x-type equals", '"x-type ="'),
    ("amount topic", "an operator for key"),
    ("amount > =", '"amount >="'),
    ("amount not =", '"amount !="'),
    ("tenant is in", '"tenant in"'),
    ("tenant notin", '"tenant not in"'),
    ("tenant missing", '"tenant exists": false'),
    ("tenant is missing", '"tenant exists": false'),
    ("tenant not exists", '"tenant exists": false'),
    ("tenant doesn't exist", '"tenant exists": false'),
    ("tenant isn't set", '"tenant exists": false'),
    ("tenant is string", '"tenant is": string'),
    ("tenant is not an int", '"tenant is not": integer'),
    ("amount between", '"amount >="'),
    ("amount >= 1000", '"amount >=": 1000'),
    ("not amount", '"amount !="'),
    ("!amount", '"amount !="'),
    ("amount\u00a0>=", 'got "amount\\u00a0>=", did you mean "amount >="'),
    ("Key", '"key"'),
    ("KEY topic", '"key topic"'),
    ("Property type", '"property type"'),
    ("prop type", '"property type"'),
    ("headers amount", '"amount"'),
    ("message_id", '"property message_id"'),
    ("${amount}", '"amount"'),
    ("x-match", "did you mean match in the binding?"),
    ("x-?hkv>= amount", 'got the argument "x-?hkv>= amount", did you mean "amount >="?'),
    ("x-?hk!ex", "did you mean NAME exists: false?"),
    ("x-?rkta", 'did you mean "key topic"?'),
    ("x-addq-ontrue", "did you mean then: add queue in the binding?"),
    ("x-?own a", "did you mean a key such as amount >=?"),
]


@pytest.mark.parametrize(("key", "hint"), WRONG_KEYS, ids=[key for key, _ in WRONG_KEYS])
def test_wrong_key_of_a_condition(key: str, hint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(hint)):
        read_key(key)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (Line("when", "a exists", text("yes")), 'got the string "yes", expected true or false'),
        (Line("when", "a is", text("int")), 'got the string "int"; did you mean integer?'),
        (Line("when", "a is", Value("I", 5)), "expected one of string, number, boolean, integer, list"),
        (Line("when", "a in", text("de, at")), "expected a list, such as [de, at]"),
        (Line("when", "a in", listed()), "got an empty list"),
        (Line("when", "a share", Value("I", 5)), "for 5 percent, write [0, 5]"),
        (Line("then", "add queues", text("a")), "did you mean add queue?"),
        (Line("then", "match", text("a")), "unknown effect"),
        (Line("then", "add queue", listed()), "got an empty list, expected a name or a list of names"),
        (Line("else", "stop", Value("t", False)), "expected true"),
        (Line("then", MAY, text("add queue")), "did you mean add queues?"),
    ],
)
def test_wrong_value(line: Line, message: str) -> None:
    with pytest.raises(SpellingError) as caught:
        arguments_of([line])
    assert message in str(caught.value)


def test_the_same_condition_twice() -> None:
    with pytest.raises(SpellingError, match='the same condition as "country"'):
        arguments_of([Line("when", "country", text("de")), Line("when", "country =", text("at"))])


_NAMES = st.one_of(
    st.sampled_from(("a", "amount", "x-a", "key", "header", "in", "log in", "a not", "a missing or", "utc", " a", "ü")),
    st.text(min_size=1, max_size=8),
    st.sampled_from(tuple(OPERATORS)).map(lambda words: f"a {words}"),
)
_SCALARS = st.one_of(
    st.integers(-9, 9).map(lambda number: Value("I", number)),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda number: Value("d", number)),
    st.booleans().map(lambda flag: Value("t", flag)),
    _NAMES.map(text),
    st.just(text("")),
    st.just(Value("V", None)),
)
_VALUES = st.one_of(_SCALARS, st.lists(_SCALARS, max_size=3).map(lambda values: listed(*values)))
_MATCH = st.sampled_from(("all", "any", "eq", "set", "set 2")).map(text)
_KEYS = st.one_of(
    st.tuples(st.sampled_from(sorted(HEADER_KEYS)), _NAMES).map(lambda pair: pair[0] + b" " + pair[1].encode()),
    st.sampled_from(sorted(KEYS)),
    st.tuples(
        st.sampled_from((b"x-?pr=", b"x-?pr!=", b"x-?prre", b"x-?pr>", b"x-?prin", b"x-?pr!in", b"x-?pr%")),
        st.sampled_from(PROPERTIES),
    ).map(lambda pair: pair[0] + b" " + pair[1].encode()),
    st.sampled_from((b"x-?prex", b"x-?pr!ex", b"x-?hkv= ", b"x-?rk= a", b"x-foo")),
    _NAMES.map(str.encode),
)
ARGUMENTS = st.tuples(
    st.one_of(st.none(), _MATCH), st.lists(st.tuples(_KEYS, _VALUES), max_size=5, unique_by=lambda entry: entry[0])
).map(
    lambda drawn: tuple(
        (key, value)
        for key, value in ((b"x-match", drawn[0]), *drawn[1])
        if value is not None and (key != b"x-match" or value is drawn[0])
    )
)


@given(ARGUMENTS)
def test_translation_there_and_back_is_the_same_binding(arguments: tuple[tuple[bytes, Value], ...]) -> None:
    lines = lines_of(arguments)
    if lines is not None:
        translated = tuple((key, value) for _, key, value in arguments_of(lines))
        assert typed_arguments(translated) == typed_arguments(arguments)
        assert sorted(lines_of(translated) or ()) == sorted(lines)
