"""Tests that every relative link in a page has an existing file and heading as its target."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for folder in ("docs", "helm", "tests") for page in (ROOT / folder).rglob("*.md"))],
    key=lambda page: page.relative_to(ROOT).as_posix(),
)


def links(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", link)]


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of the headings of a page, in GitHub's form."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_target_of_every_link_exists(page: Path) -> None:
    broken = []
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / link).resolve() for link in links(index)}
    pages = {page for page in PAGES if page.parent.name in ("tutorial", "how-to", "reference", "explanation")}
    assert sorted(page.name for page in pages - listed) == []
