"""What docs/reference/protocol-support.md promises: each test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxy.amqp import methods

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "reference" / "protocol-support.md").read_text()
NAMED = sorted(set(re.findall(r"`(test_\w+)`", TEXT)))
DEFINED = frozenset(
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
)


@pytest.mark.parametrize("name", NAMED)
def test_every_test_that_is_named_exists(name: str) -> None:
    assert name in DEFINED


@pytest.mark.parametrize("name", sorted({name.split(".")[0].lower() for name in methods.NAMES.values()} - {"access"}))
def test_every_class_of_methods_is_spoken_of(name: str) -> None:
    assert f"{name}." in TEXT
