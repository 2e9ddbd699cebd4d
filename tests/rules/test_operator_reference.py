"""Tests that the operator reference has exactly the keys that `routing` reads, and that its examples compile."""

from __future__ import annotations

import pytest
import yaml

from oxproxy.routing.bindings.arguments import HEADER_KEYS, KEYS, PROPERTY_PREFIX
from oxproxy.routing.filters import ARGUMENTS
from oxproxy.rules.loader import compile_rules
from oxproxy.rules.operator_reference import FILTERS, MATCH_TYPES, SECTIONS, OperatorEntry, OperatorSection

ENTRIES = [(section, entry) for section in SECTIONS for entry in section.entries]
_PROPERTY_KEYS = {
    f"{PROPERTY_PREFIX.decode()}{sign}"
    for sign in ("ex", "!ex", "=", "!=", "re", "!re", "<", "<=", ">=", ">", "in", "!in", "%")
}


def documented(*excluded: OperatorSection) -> set[str]:
    keys = [key for section, entry in ENTRIES if section not in excluded for key in entry.keys]
    assert len(keys) == len(set(keys))
    return {key.removesuffix(" NAME") for key in keys} - {"NAME"}


def test_exactly_the_keys_of_bindings_are_documented() -> None:
    known = {key.decode() for key in (*HEADER_KEYS, *KEYS)} | _PROPERTY_KEYS
    assert documented(MATCH_TYPES, FILTERS) == known


def test_exactly_the_filters_are_documented() -> None:
    keys = {key for entry in FILTERS.entries for key in entry.keys}
    assert keys == {name.decode() for name in ARGUMENTS} - {"alternate-exchange"}


@pytest.mark.parametrize(("section", "entry"), ENTRIES, ids=lambda value: getattr(value, "example", ""))
def test_an_example_is_an_argument_of_its_entry_that_compiles(section: OperatorSection, entry: OperatorEntry) -> None:
    arguments = yaml.safe_load(entry.example)
    (key,) = arguments
    if section is not MATCH_TYPES and entry.keys != ("NAME",):
        assert any(key.partition(" ")[0] == known.removesuffix(" NAME") for known in entry.keys), key
    of_exchange = f"arguments: {{{entry.example}}}, " if section.of_exchange else ""
    of_binding = "" if section.of_exchange else f", arguments: {{{entry.example}}}"
    text = f"exchanges: [{{name: e, {of_exchange}bindings: [{{queue: q{of_binding}}}]}}]\n"
    assert compile_rules([("example", text.encode())]).rules.vhosts
