"""Tests that the generated tables in docs are up to date."""

from __future__ import annotations

import pytest

from deploy.reference import TABLES, pages


def test_generated_pages_are_up_to_date() -> None:
    for path, text in pages().items():
        assert path.read_text() == text, "run python -m deploy.reference"


@pytest.mark.parametrize(("name", "head"), [table[:2] for table in TABLES])
def test_each_page_has_its_table_once(name: str, head: str) -> None:
    assert [text.count(head) for path, text in pages().items() if str(path).endswith(name)] == [1]
