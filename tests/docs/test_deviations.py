"""Tests that docs/explanation/deviations.md agrees with the code, the vectors and the tests."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.conformance.deviations import DEVIATIONS
from tests.conformance.end_to_end import every_vector
from tests.docs.test_protocol_support import DEFINED

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "explanation" / "deviations.md").read_text()
NAMED = sorted(set(re.findall(r"`(test_\w+)`", TEXT)))


def section(title: str) -> list[str]:
    """Return the rows of a section's table, without its header."""
    _, _, rest = TEXT.partition(f"\n## {title}\n")
    rows = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return rows[2:]


def test_deviations_from_the_vectors_are_listed() -> None:
    assert section("Deviations from the test vectors") == [deviation.row for deviation in DEVIATIONS]


def test_reasons_to_follow_the_specification_equal_those_of_the_vectors() -> None:
    stated = {}
    for row in section("Specification instead of plugin behaviour"):
        reason, number = re.findall(r"^\| `([\w-]+)` \| (\d+) \|", row)[0]
        stated[reason] = int(number)
    assert stated == Counter(
        reason for vector in every_vector() if vector.get("seed_differs") for reason in vector["seed_reason"]
    )


def test_the_number_of_vectors_is_stated() -> None:
    assert f"\n{len(every_vector())} recorded" in TEXT


def test_every_other_deviation_names_a_test() -> None:
    rows = section("Other deviations")
    assert rows
    assert [row for row in rows if "`test_" not in row] == []


@pytest.mark.parametrize("name", NAMED)
def test_every_test_in_the_deviations_exists(name: str) -> None:
    assert name in DEFINED
