"""Tests docs/reference/protocol-support.md and the test names in tests/DEFECTS.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oxproxy.amqp import methods

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "reference" / "protocol-support.md").read_text()
DEFECTS = (ROOT / "tests" / "DEFECTS.md").read_text()
NAMED = sorted(set(re.findall(r"`(test_\w+)`", DEFECTS)))
DEFINED = frozenset(
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
)


@pytest.mark.parametrize("name", NAMED)
def test_every_test_in_the_defects_exists(name: str) -> None:
    assert name in DEFINED


def test_the_page_states_the_number_of_defects() -> None:
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \|", DEFECTS, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert f"lists {len(numbers)} defects" in TEXT


@pytest.mark.parametrize("name", sorted({name.split(".")[0].lower() for name in methods.NAMES.values()} - {"access"}))
def test_every_amqp_class_is_documented(name: str) -> None:
    assert f"{name}." in TEXT
