from __future__ import annotations

import re
from pathlib import Path

import oxproxy.report
from oxproxy.report.pages import render
from tests.report.sample import figures

STYLE = (Path(oxproxy.report.__file__).parent / "templates/style.css").read_text()


def test_every_class_on_the_page_has_a_style_rule() -> None:
    used = {name for names in re.findall(r'class="([^"]+)"', render(figures())) for name in names.split()}
    assert sorted(name for name in used if not re.search(rf"\.{name}\b", STYLE)) == []


def test_the_style_loads_no_resources() -> None:
    assert not re.search(r"url\(|@import|https?:", STYLE)


def test_the_page_contains_the_style() -> None:
    assert STYLE in render(figures())


def test_the_style_has_a_dark_colour_scheme() -> None:
    assert "prefers-color-scheme: dark" in STYLE
