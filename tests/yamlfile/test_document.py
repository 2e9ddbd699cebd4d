from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from oxproxy.yamlfile import document
from oxproxy.yamlfile.document import (
    MAX_DEPTH,
    ConfigWarning,
    Faults,
    Mapping,
    Node,
    Place,
    Plain,
    Scalar,
    Sequence,
    describe,
    read_document,
    release_tree,
    resolve,
)
from tests.rules.loading import by_line

Tree = dict[str, "Tree"] | list["Tree"] | Plain


def plain(node: Node | None) -> Tree:
    match node:
        case None:
            return None
        case Scalar():
            return node.value
        case Sequence():
            return [plain(item) for item in node.items]
        case Mapping():
            return {key.text: plain(child) for key, child in node.entries}


def read(text: str | bytes) -> tuple[Tree, list[str]]:
    faults = Faults()
    root = read_document(text, "f.yaml", faults)
    return plain(root), [str(error) for error in faults.errors]


def test_lists_mappings_and_scalars_are_read_into_a_tree() -> None:
    text = "a: [1, two, {b: null}]\nc:\n  - 'yes'\n  - |\n    line\n  - no\n"
    assert read(text) == ({"a": [1, "two", {"b": None}], "c": ["yes", "line\n", "no"]}, [])


def test_json_is_yaml() -> None:
    assert read('{"a": [1, 2.5, true, null, "x\\u00e9\\n"]}') == ({"a": [1, 2.5, True, None, "xé\n"]}, [])


def test_every_node_knows_its_line_and_column() -> None:
    root = read_document("a:\n  - b\n  - c: d\n", "f.yaml", Faults())
    assert isinstance(root, Mapping)
    items = root.entries[0][1]
    assert isinstance(items, Sequence)
    last = items.items[1]
    assert isinstance(last, Mapping)
    assert [(node.place.line, node.place.column) for node in (*items.items, last.entries[0][1])] == [
        (2, 5),
        (3, 5),
        (3, 8),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: a: duplicate key"),
        ('a: {"x y": 1, "x y": 2}\n', 'f.yaml:1:15: a["x y"]: duplicate key'),
        ("a: 1\n'a': 2\n", "f.yaml:2:1: a: duplicate key"),
        (
            "a:\n  - &x 1\n",
            "f.yaml:2:5: a[0]: got the anchor &x, but anchors are not supported; put strings in quotes",
        ),
        ("a: &x {}\n", "f.yaml:1:4: a: got the anchor &x, but anchors are not supported; put strings in quotes"),
        (
            "passwd: &x1 y\n",
            "f.yaml:1:9: passwd: got the anchor &***, but anchors are not supported; put strings in quotes",
        ),
        ("a: *x\n", "f.yaml:1:4: a: got the alias *x, but aliases are not supported; put strings in quotes"),
        ("a:\n  <<: {b: 1}\n", 'f.yaml:2:3: a["<<"]: merge keys are not supported'),
        ("a: {5: 1}\n", "f.yaml:1:5: a: got the number 5 as a key, expected a string: put it in quotes"),
        ("true: 1\n", "f.yaml:1:1: got the boolean true as a key, expected a string: put it in quotes"),
        ("? [1, 2]\n: 3\n", "f.yaml:1:3: got a list as a key, expected a string"),
        ("a: !!python/name:x y\n", "f.yaml:1:4: a: got the tag !!python/name:x, which is not supported"),
        ("a: !set [1]\n", "f.yaml:1:4: a: got the tag !set before a list; put strings in quotes"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:1: got a second document, expected one per file"),
    ],
)
def test_unsupported_yaml_is_an_error(text: str, message: str) -> None:
    assert read(text)[1] == [message]


def test_all_errors_of_a_file_are_reported_together() -> None:
    assert [error.split(":")[1] for error in read("a: &x 1\nb: *x\na: 2\n5: 3\n")[1]] == ["1", "2", "3", "4"]


def test_the_first_of_two_equal_keys_is_kept() -> None:
    assert read("a: {b: 1}\na: {c: 2}\nd: 3\n")[0] == {"a": {"b": 1}, "d": 3}


def test_a_list_as_a_key_does_not_misalign_keys_and_values() -> None:
    assert read("? [1]\n: 2\na: 3\n")[0] == {"": 2, "a": 3}


QUOTE = "put a value in quotes if it begins with one of "


@pytest.mark.parametrize(
    ("text", "way_out"),
    [
        *((f"a: {sign}x\n", QUOTE) for sign in "%@`"),
        ("a: *\n", QUOTE),
        ("a: b: c\n", QUOTE),
        ("a: {b: c d: e}\n", QUOTE),
        ("a: [b\n", "the value that begins on line 2, column 4 is not closed"),
        ("a: 'b\n", "the value that begins on line 2, column 4 is not closed"),
        ("a:\n\t- b\n", "indent with spaces, not with tabs"),
        ("a:\n  b: 1\n c: 2\n", "check its indentation"),
        ("- a\n", "check its indentation"),
    ],
)
def test_a_syntax_error_names_its_line_and_what_to_do(text: str, way_out: str) -> None:
    _, errors = read("first: 1\n" + text)
    assert len(errors) == 1
    assert by_line(errors)[0].startswith(tuple(f"f.yaml:{line}: YAML syntax: " for line in (2, 3, 4)))
    assert errors[0].partition("; ")[2].startswith(way_out)


@pytest.mark.parametrize("text", ["a: {x-?rk=: b}\n", "a: [b?c]\n"])
def test_a_question_mark_that_requires_quotes_without_libyaml_is_explained(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(text)[1] == []
    monkeypatch.setattr(document, "_LOADER", yaml.SafeLoader)
    (error,) = read(text)[1]
    assert error.startswith("f.yaml:1:")
    assert error.endswith(
        "; since PyYAML was built without libyaml, keys and values within {} or [] that contain ? require quotes"
    )
    assert read('a: {"x-?rk=": b}\nx-?rk=: b?c\n')[1] == []


def test_errors_before_a_syntax_error_are_reported() -> None:
    assert [error.split(": ")[1] for error in read("a: 1\na: 2\nb: %\n")[1]] == ["a", "YAML syntax"]


def test_bytes_that_are_not_utf_8_are_an_error_with_a_line() -> None:
    assert read("a: 1\nä: ".encode() + b"\xff\n")[1] == [
        "f.yaml:2:4: got bytes that are not UTF-8, expected UTF-8 text"
    ]


def test_a_byte_order_mark_is_not_part_of_the_first_key() -> None:
    assert read(b"\xef\xbb\xbfa: 1\n") == ({"a": 1}, [])


def test_control_characters_are_an_error() -> None:
    (error,) = read("a: 1\nä: é\x01\n")[1]
    assert error.startswith("f.yaml:2:5: YAML syntax: ")
    assert error.endswith("control characters are not allowed")


def test_an_empty_file_has_no_root_and_no_error() -> None:
    assert read("# nothing\n") == (None, [])


@pytest.mark.parametrize(("opening", "column"), [("[", 65), ("{a: ", 257), ("- ", 129)])
def test_nesting_beyond_the_limit_is_an_error(opening: str, column: int) -> None:
    errors = read(opening * 50_000)[1]
    assert errors == [f"f.yaml:1:{column}: got more than {MAX_DEPTH} levels of nested lists and mappings"]


@pytest.mark.parametrize("text", ["!!str 5", "! 5", "'5'", '"5"'])
def test_tagged_or_quoted_scalars_are_strings(text: str) -> None:
    assert read(f"a: {text}\n") == ({"a": "5"}, [])


def test_a_local_tag_is_kept() -> None:
    root = read_document("!bytes 0a", "f.yaml", Faults())
    assert isinstance(root, Scalar)
    assert (root.tag, root.text) == ("!bytes", "0a")


@given(st.text(alphabet=st.sampled_from("ab:-?!&*[]{},#|>'\"% \n\t~1.\\<=\x00é"), max_size=60) | st.binary(max_size=40))
def test_any_text_gives_a_tree_or_errors(text: str | bytes) -> None:
    faults = Faults()
    read_document(text, "f.yaml", faults)
    assert all(str(error).startswith("f.yaml") for error in faults.errors)


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


def test_a_scalar_with_a_local_tag_is_its_string() -> None:
    assert Scalar(HERE, "5", plain=True, tag="!int64").value == "5"


def test_only_an_empty_plain_scalar_is_absent() -> None:
    texts = [("", True), ("", False), ("~", True)]
    assert [Scalar(HERE, text, plain).absent for text, plain in texts] == [True, False, False]


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


def test_a_warning_about_a_file_has_no_line() -> None:
    assert str(ConfigWarning(Place("a.yaml", 0), "", "odd")) == "a.yaml: warning: odd"


@pytest.mark.parametrize("value", ["true", "False", "null", "NULL"])
def test_a_boolean_or_null_in_place_of_a_password_is_not_masked_elsewhere(value: str) -> None:
    faults = Faults()
    read_document(f"a: {{password: {value}}}\nb: 1\n", "f.yaml", faults)
    faults.error(HERE, "b", f'got the string "{value}"')
    assert str(faults.errors[0]).endswith(f'got the string "{value}"')
