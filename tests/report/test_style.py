from __future__ import annotations

import re
from pathlib import Path

import proxy.report
from proxy.report.page import render
from tests.report.sample import figures

STYLE = (Path(proxy.report.__file__).parent / "templates/style.css").read_text()


def test_every_class_on_the_page_has_a_rule() -> None:
    used = {name for found in re.findall(r'class="([^"]+)"', render(figures())) for name in found.split()}
    assert sorted(name for name in used if not re.search(rf"\.{name}\b", STYLE)) == []


def test_nothing_is_loaded_by_the_style() -> None:
    assert not re.search(r"url\(|@import|https?:", STYLE)


def test_the_page_has_the_style_as_it_is() -> None:
    assert STYLE in render(figures())


def test_dark_screens_have_colours_of_their_own() -> None:
    assert "prefers-color-scheme: dark" in STYLE
