from __future__ import annotations

import math

import pytest

from proxy.errors import ConfigErrors
from proxy.yamlfile.document import (
    ConfigWarning,
    Faults,
    Mapping,
    Node,
    Place,
    Plain,
    Scalar,
    Sequence,
    describe,
    join,
    release_tree,
    resolve,
)

HERE = Place("f.yaml", 1, 1)


@pytest.mark.parametrize("text", ["no", "No", "off", "on", "yes", "Y", "n", "NO"])
def test_yaml_1_1_booleans_are_strings(text: str) -> None:
    assert resolve(text) == text


@pytest.mark.parametrize(
    "text", ["2026-11-21", "2026-11-21T08:00:00Z", "1:30", "190:20:30", "1_000", "0b11", "=", "<<"]
)
def test_other_yaml_1_1_scalars_are_strings(text: str) -> None:
    assert resolve(text) == text


@pytest.mark.parametrize(
    "text", ["tRUE", "nULL", "-", "+", ".", "1.2.3", "0x", "0o8", "-0x1F", "0O7", "1e", "+.e3", "\u0661"]
)
def test_scalars_similar_to_booleans_or_numbers_are_strings(text: str) -> None:
    assert resolve(text) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("True", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("010", 10),
        ("-010", -10),
        ("+5", 5),
        ("0o10", 8),
        ("0x1F", 31),
        ("9223372036854775807", 9223372036854775807),
        ("1.0", 1.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("-1e3", -1000.0),
        ("1E-2", 0.01),
        (".inf", math.inf),
        ("+.Inf", math.inf),
        ("-.INF", -math.inf),
    ],
)
def test_plain_scalars_follow_the_core_schema(text: str, value: Plain) -> None:
    resolved = resolve(text)
    assert (type(resolved), resolved) == (type(value), value)


def test_not_a_number_is_a_float() -> None:
    resolved = resolve(".NaN")
    assert isinstance(resolved, float)
    assert math.isnan(resolved)


@pytest.mark.parametrize("text", ["9" * 10_000, "-" + "9" * 10_000, "0x" + "f" * 10_000, "0o" + "7" * 10_000])
def test_a_number_of_ten_thousand_digits_is_out_of_range(text: str) -> None:
    resolved = resolve(text)
    assert isinstance(resolved, int)
    assert abs(resolved) >= 10**60
    assert (resolved < 0) == text.startswith("-")


def test_a_quoted_scalar_is_a_string() -> None:
    assert Scalar(HERE, "5", plain=False).value == "5"


def test_a_scalar_with_a_local_tag_is_its_string() -> None:
    assert Scalar(HERE, "5", plain=True, tag="!int64").value == "5"


def test_only_an_empty_plain_scalar_is_absent() -> None:
    texts = [("", True), ("", False), ("~", True)]
    assert [Scalar(HERE, text, plain).absent for text, plain in texts] == [True, False, False]


def test_a_path_quotes_keys_that_are_not_identifiers() -> None:
    assert join(join("", "arguments"), "x-?hkv= document.type") == 'arguments["x-?hkv= document.type"]'
    assert join("a", "x-match") == "a.x-match"


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (None, "nothing"),
        (Scalar(HERE, "", plain=True), "no value"),
        (Scalar(HERE, "", plain=False), 'the string ""'),
        (Scalar(HERE, "5", plain=True), "the number 5"),
        (Scalar(HERE, "true", plain=True), "the boolean true"),
        (Scalar(HERE, "null", plain=True), "null"),
        (Scalar(HERE, "5", plain=False), 'the string "5"'),
        (Scalar(HERE, "0a", plain=False, tag="!bytes"), "!bytes 0a"),
        (Scalar(HERE, "x" * 100, plain=True), f'the string "{"x" * 57}..."'),
        (Scalar(HERE, "user:word@host:5", plain=True), 'the string "user:***@host:5"'),
        (Scalar(HERE, f"amqp://user:{'word@' * 20}host", plain=True), 'the string "amqp://user:***@host"'),
        (Sequence(HERE, []), "a list"),
        (Mapping(HERE, []), "a mapping"),
    ],
)
def test_nodes_are_described_in_error_messages(node: Node | None, words: str) -> None:
    assert describe(node) == words


def test_a_released_tree_has_no_entries() -> None:
    place = Place("f", 1)
    leaf = Mapping(place, [(Scalar(place, "k", True), Scalar(place, "v", True))])
    root = Mapping(place, [(Scalar(place, "list", True), Sequence(place, [leaf]))])
    release_tree(root)
    assert (root.entries, leaf.entries) == ([], [])


def test_all_errors_are_raised_together_in_line_order() -> None:
    faults = Faults()
    faults.error(Place("b.yaml", 1), "k", "second file")
    faults.error(Place("a.yaml", 7, 3), "k", "later")
    faults.error(Place("a.yaml", 2), "", "earlier")
    with pytest.raises(ConfigErrors) as raised:
        faults.check()
    assert str(raised.value) == "a.yaml:2: earlier\na.yaml:7:3: k: later\nb.yaml:1: k: second file"


def test_warnings_alone_raise_nothing() -> None:
    faults = Faults()
    faults.warn(Place("a.yaml", 2), "k", "odd")
    faults.warn(Place("a.yaml", 2, 5), "k", "odd")
    faults.check()
    assert [str(warning) for warning in faults.warnings] == ["a.yaml:2: k: warning: odd", "a.yaml:2:5: k: warning: odd"]


def test_a_warning_about_a_file_has_no_line() -> None:
    assert str(ConfigWarning(Place("a.yaml", 0), "", "odd")) == "a.yaml: warning: odd"
