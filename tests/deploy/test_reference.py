"""Tests that the generated tables in docs are up to date."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from deploy.diagrams import Diagram, pictures
from deploy.reference import TABLES, pages
from tests.deploy.prometheus import ROOT


def test_generated_pages_are_up_to_date() -> None:
    for path, text in pages().items():
        assert path.read_text() == text, "run python -m deploy.reference"


@pytest.mark.parametrize(("name", "head"), [table[:2] for table in TABLES])
def test_each_page_has_its_table_once(name: str, head: str) -> None:
    assert [text.count(head) for path, text in pages().items() if str(path).endswith(name)] == [1]


PICTURES = pictures()


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_diagram_is_up_to_date(path: Path) -> None:
    assert path.read_text() == PICTURES[path], "run python -m deploy.diagrams"
    assert any(path.name in page.read_text() for page in (ROOT / "docs").rglob("*.md")), "no page shows it"


def test_text_in_a_source_is_escaped() -> None:
    source = "{title: a <b>, grid: {columns: 1, width: 200, height: 90}, boxes: {'<x>': {at: [0, 0]}}, arrows: []}"
    texts = [element.text for element in ElementTree.fromstring(Diagram(source).svg()).iter()]
    assert {"a <b>", "<x>"} <= set(texts)
