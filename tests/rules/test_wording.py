from __future__ import annotations

import pytest

from proxy.rules.message import destination_text, json_value, quoted, text
from proxy.values import Value


@pytest.mark.parametrize(
    ("seen", "shown"),
    [
        (None, None),
        (5, 5),
        (b"a", "a"),
        (b"\xff", {"hex": "ff"}),
        (Value("x", b"a"), {"hex": "61"}),
        (Value("t", True), True),
        (Value("V", None), None),
        (Value("A", (Value("I", 1), Value("S", b"a"))), [1, "a"]),
        (Value("F", ((b"k", Value("d", 1.5)),)), {"k": 1.5}),
    ],
)
def test_values_are_shown_as_json_can_carry_them(seen: object, shown: object) -> None:
    assert json_value(seen) == shown


def test_texts_are_quoted_and_numbers_are_not() -> None:
    assert [quoted(seen) for seen in (b"a", 5, Value("S", b"b"))] == ['"a"', "5", '"b"']


def test_names_of_any_bytes_can_be_read() -> None:
    assert text(b"a\xff") == "a\\xff"
    assert destination_text(("queue", b"q")) == "queue q"
