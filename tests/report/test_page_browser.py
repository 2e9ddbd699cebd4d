"""Does a real browser show the report's page as it is meant: whole, at every width, and without asking anybody?"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.report.page import render
from tests.report.browser import Tab, browser, program
from tests.report.sample import figures

pytestmark = pytest.mark.matrix

#: A phone, a tablet, and two screens.
WIDTHS = (400, 800, 1120, 1920)


@pytest.fixture
async def tab(tmp_path: Path) -> AsyncIterator[Tab]:
    command = program()
    if command is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no Chromium (make test-matrix installs one)")
    page = tmp_path / "report.html"
    page.write_text(render(figures()))
    async with browser(command) as tab:
        await tab.open(page)
        yield tab


async def test_it_asks_for_nothing_but_itself_and_the_browser_has_nothing_to_complain_of(tab: Tab) -> None:
    asked = [one["request"]["url"] for one in tab.named("Network.requestWillBeSent")]
    assert [url.rpartition("/")[2] for url in asked if not url.startswith("data:")] == ["report.html"]
    assert tab.named("Log.entryAdded") == []
    assert tab.named("Runtime.exceptionThrown") == []


async def test_it_is_written_by_the_rules_of_html(tab: Tab) -> None:
    assert await tab.value("document.compatMode") == "CSS1Compat"
    assert await tab.value("document.characterSet") == "UTF-8"


@pytest.mark.parametrize("pixels", WIDTHS)
async def test_it_is_never_wider_than_the_window(tab: Tab, pixels: int) -> None:
    await tab.width(pixels)
    assert await tab.value("innerWidth") == pixels
    assert await tab.value("document.documentElement.scrollWidth") <= pixels


@pytest.mark.parametrize("pixels", WIDTHS)
async def test_every_chart_has_a_size_and_its_text_lies_in_the_window(tab: Tab, pixels: int) -> None:
    await tab.width(pixels)
    charts = await tab.value("[...document.querySelectorAll('svg')].map(one => one.getBoundingClientRect().width)")
    assert len(charts) > 2
    assert all(width > 100 for width in charts)
    outside = """[...document.querySelectorAll('svg text')].filter(text => {
        const place = text.getBoundingClientRect()
        return place.width && (place.left < 0 || place.right > innerWidth)
    }).map(text => text.textContent)"""
    assert await tab.value(outside) == []
