from __future__ import annotations

import pytest

from proxy.routing.bindings.producer_routes import ProducerRoutes, begins_with_character
from proxy.values import EXCHANGE, QUEUE, Value
from tests.routing.building import VOID, Plain, arguments, many


def _routes(**headers: Plain) -> ProducerRoutes:
    return ProducerRoutes(arguments({f"x-{name.replace('_', '-')}": plain for name, plain in headers.items()}))


def test_names_are_a_string_or_a_list_of_strings() -> None:
    routes = _routes(addq_ontrue="q1", dele_onfalse=many("e1", "e2"))
    assert routes.named == {
        b"x-addq-ontrue": {(QUEUE, b"q1")},
        b"x-dele-onfalse": {(EXCHANGE, b"e1"), (EXCHANGE, b"e2")},
    }


@pytest.mark.parametrize("odd", [1, "", True, VOID, Value("x", b"q1"), Value("S", b"\xff")])
def test_other_values_and_elements_are_ignored(odd: Plain) -> None:
    assert _routes(addq_ontrue=odd).named == {b"x-addq-ontrue": set()}
    assert _routes(addq_ontrue=many(odd, "q2")).named == {b"x-addq-ontrue": {(QUEUE, b"q2")}}


def test_two_headers_of_one_name_both_name_queues() -> None:
    routes = ProducerRoutes(((b"x-addq-ontrue", Value("S", b"a")), (b"x-addq-ontrue", Value("S", b"b"))))
    assert routes.named[b"x-addq-ontrue"] == {(QUEUE, b"a"), (QUEUE, b"b")}


def test_of_two_regexes_under_one_name_the_first_counts() -> None:
    routes = ProducerRoutes(((b"x-addqre-ontrue", Value("S", b"a")), (b"x-addqre-ontrue", Value("S", b"b"))))
    assert routes.patterns[b"x-addqre-ontrue"].pattern.source == b"a"


def test_regex_is_one_string_and_says_whether_it_is_negated() -> None:
    routes = ProducerRoutes(
        arguments({"x-addqre-ontrue": "^a", "x-delq!re-ontrue": "^b", "x-delqre-onfalse": many("c")})
    )
    assert {name: route.negated for name, route in routes.patterns.items()} == {
        b"x-addqre-ontrue": False,
        b"x-delq!re-ontrue": True,
    }


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("(", b"Invalid regex '(': missing closing parenthesis at offset 1"),
        ("", b"Invalid regex '': empty pattern"),
        ("(é", b"Invalid regex '(\xe9': missing closing parenthesis at offset 3"),
    ],
)
def test_invalid_regex_is_an_error(source: str, error: bytes) -> None:
    assert ProducerRoutes(arguments({"x-delqre-onfalse": source})).error == error


def test_first_invalid_regex_by_header_name_is_reported() -> None:
    assert ProducerRoutes(arguments({"x-addqre-onfalse": "(", "x-addqre-ontrue": "["})).error.startswith(
        b"Invalid regex '(': "
    )


@pytest.mark.parametrize(
    "name", ["x-addere-ontrue", "x-add1qre-ontrue", "x-del-dest", "x-stop-ontrue", "x-goto-ontrue", "x-addq"]
)
def test_producers_have_no_other_routes(name: str) -> None:
    routes = ProducerRoutes(arguments({name: "("}))
    assert (routes.named, routes.patterns, routes.error) == ({}, {}, b"")


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        (b"", False),
        (b"a\xff", True),
        ("é".encode(), True),
        ("€x".encode(), True),
        ("😀".encode(), True),
        (b"\x80", False),
        (b"\xc3", False),
        (b"\xe2\x82", False),
        (b"\xed\xa0\x80", False),
        (b"\xf8\x88\x80\x80\x80", False),
    ],
)
def test_name_begins_with_a_whole_character(text: bytes, begins: bool) -> None:
    assert begins_with_character(text) is begins
