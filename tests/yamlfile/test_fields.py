from __future__ import annotations

import pytest

from proxy.yamlfile.document import Faults, read_document
from proxy.yamlfile.fields import Fields, name_fault, short_fault
from tests.rules.loading import by_line


def fields(text: str) -> Fields:
    faults = Faults()
    root = read_document(text, "f.yaml", faults)
    assert root is not None
    return Fields(root, "", faults)


def errors(read: Fields) -> list[str]:
    return [str(error) for error in read.faults.errors]


def test_a_text_is_read() -> None:
    read = fields("a: b")
    assert (read.text("a"), errors(read)) == ("b", [])


def test_a_missing_text_is_a_fault_where_it_is_required() -> None:
    read = fields("a: b")
    assert read.text("c") is None
    assert read.text("d", "a name", required=True) is None
    assert errors(read) == ["f.yaml:1:1: d: seen nothing, expected a name"]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("5", "seen the number 5, expected a text: put it in quotes"),
        ("", "seen no value, expected a text"),
        ("[b]", "seen a list, expected a text"),
        ("!bytes 0a", "seen !bytes 0a, expected a text: put it in quotes"),
    ],
)
def test_what_is_no_text_is_a_fault(written: str, message: str) -> None:
    read = fields(f"a: {written}")
    assert read.text("a") is None
    assert by_line(errors(read)) == [f"f.yaml:1: a: {message}"]


def test_a_word_outside_the_choice_is_a_fault_and_gives_the_default() -> None:
    read = fields("a: c\nb: x\n")
    assert read.choice("a", ("b", "c"), "b") == "c"
    assert read.choice("b", ("y", "z"), "z") == "z"
    assert read.choice("d", ("y", "z"), "z") == "z"
    assert errors(read) == ['f.yaml:2:4: b: seen the text "x", expected one of y, z']


@pytest.mark.parametrize("written", ["''", "x.o.p.e.n.x.q.1", "a" * 256])
def test_a_name_that_no_rule_may_use_is_a_fault(written: str) -> None:
    read = fields(f"a: {written}")
    assert read.name("a", "the name of a queue") is None
    assert errors(read)[0].startswith("f.yaml:1:4: a: seen ")
    assert errors(read)[0].endswith(", expected the name of a queue")


@pytest.mark.parametrize("written", ["1.0", "true", "x", "-1", "11", "'5'", "[1]"])
def test_what_is_no_whole_number_within_bounds_is_a_fault(written: str) -> None:
    read = fields(f"a: {written}")
    assert read.integer("a", 7, 0, 10) == 7
    assert errors(read)[0].endswith(", expected a whole number from 0 to 10")


def test_items_and_texts_know_their_paths() -> None:
    read = fields("a: [b, 5, c]\nd: {}\n")
    assert [(path, item.text) for path, item in read.texts("a")] == [("a[0]", "b"), ("a[2]", "c")]
    assert read.items("d") == []
    assert read.items("e") == []
    assert errors(read) == [
        "f.yaml:1:8: a[1]: seen the number 5, expected a list of texts",
        "f.yaml:2:4: d: seen a mapping, expected a list",
    ]


def test_a_section_has_fields_of_its_own() -> None:
    section = fields("a:\n  b: c\n  d: 5\n").section("a")
    assert section is not None
    assert section.text("b") == "c"
    section.text("d")
    assert errors(section) == ["f.yaml:3:6: a.d: seen the number 5, expected a text: put it in quotes"]


def test_a_section_that_is_no_mapping_is_a_fault() -> None:
    read = fields("a: [b]")
    assert read.section("a") is None
    assert errors(read) == ["f.yaml:1:4: a: seen a list, expected a mapping"]


def test_keys_that_nobody_asked_for_are_faults_with_what_was_probably_meant() -> None:
    read = fields("adress: b\nzzz: 1\n")
    read.text("address")
    read.finish()
    assert errors(read) == [
        "f.yaml:1:1: adress: unknown key; did you mean address?",
        "f.yaml:2:1: zzz: unknown key, expected one of address",
    ]


def test_a_single_value_in_place_of_a_mapping_is_not_shown() -> None:
    assert errors(fields("hunter2")) == ["f.yaml:1:1: seen a single value, expected a mapping"]


def test_the_reserved_prefix_is_refused_for_names_and_keys() -> None:
    assert short_fault(b"x.o.p.e.n.x") is None
    assert "reserved" in (short_fault(b"x.o.p.e.n.x.") or "")
    assert name_fault("x.o.p.e.n.y.q") is None


def test_a_name_is_measured_in_bytes() -> None:
    assert name_fault("é" * 127) is None
    assert name_fault("é" * 128) == "256 bytes, the protocol allows 255"
