"""Tests that docs/reference/header-types.md states the types that the tests of the client libraries have found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.broker.client_libraries.header_types import TYPES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "header-types.md").read_text()
(HEAD, *ROWS) = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")
]
#: Cells of the table, by value and library.
CELLS = {
    (row[0], library): cell
    for row in ROWS
    for libraries, cell in zip(HEAD[1:], row[1:], strict=True)
    for library in libraries.partition(" (")[0].split(", ")
}

#: Rows of the table, by the names of headers.
VALUES = {
    "string symbol": "string",
    "integer long big int32 int64 short small": "whole number",
    "double single float": "number with a fraction",
    "boolean": "`true`, `false`",
    "decimal": "decimal number",
    "timestamp": "date and time",
    "bytes": "bytes",
    "null": "null",
    "list": "list",
    "table": "mapping",
}
NAMES = {
    "S": "string",
    "b": "8-bit integer",
    "s": "16-bit integer",
    "I": "32-bit integer",
    "l": "64-bit integer",
    "d": "double",
    "f": "single precision",
    "t": "boolean",
    "D": "decimal",
    "T": "timestamp",
    "x": "byte array",
    "V": "void",
    "A": "array",
    "F": "table",
}


def stated(library: str, header: str) -> str:
    """The cell of the table for a header of the tests."""
    [value] = [value for headers, value in VALUES.items() if header in headers.split()]
    return CELLS[value, library]


@pytest.mark.parametrize("library", TYPES)
def test_the_types_of_a_library_are_those_that_the_tests_have_found(library: str) -> None:
    found = {header: NAMES[letter] for header, letter in TYPES[library].items()}
    assert [header for header, name in found.items() if not re.search(rf"\b{name}\b", stated(library, header))] == []
