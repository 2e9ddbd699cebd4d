"""Tests the report's page in Chromium: layout at every width, and no requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from oxproxy.report.pages import render
from tests.browser import Tab, required_browser
from tests.report.sample import figures

pytestmark = pytest.mark.matrix

#: Widths of a phone, a tablet and three screens.
WIDTHS = (360, 800, 1120, 1920, 2560)


@pytest.fixture
async def tab(tmp_path: Path) -> AsyncIterator[Tab]:
    page = tmp_path / "report.html"
    page.write_text(render(figures()))
    async with required_browser() as tab:
        await tab.open(page)
        await unfold(tab)
        yield tab


async def unfold(tab: Tab, *, is_open: bool = True) -> None:
    """Show the content of all sections, or hide it, as their headings do on a narrow screen."""
    state = str(is_open).lower()
    await tab.value(f"document.querySelectorAll('.fold').forEach(box => {{ box.checked = {state} }})")


async def test_the_page_requests_nothing_and_causes_no_errors(tab: Tab) -> None:
    assert [url.rpartition("/")[2] for url in tab.requested if not url.startswith("data:")] == ["report.html"]
    assert tab.complaints == []


async def test_the_page_is_standard_html(tab: Tab) -> None:
    assert await tab.value("document.compatMode") == "CSS1Compat"
    assert await tab.value("document.characterSet") == "UTF-8"


@pytest.mark.parametrize("pixels", WIDTHS)
async def test_the_page_does_not_overflow_the_window(tab: Tab, pixels: int) -> None:
    await tab.width(pixels)
    assert await tab.value("innerWidth") == pixels
    assert await tab.value("document.documentElement.scrollWidth") <= pixels


@pytest.mark.parametrize("pixels", WIDTHS)
async def test_no_element_scrolls_horizontally(tab: Tab, pixels: int) -> None:
    await tab.width(pixels)
    wider = """[...document.querySelectorAll('table, td, details, ol, ul, div')].filter(
        part => part.clientWidth && part.scrollWidth > part.clientWidth + 1).map(part => part.outerHTML.slice(0, 80))"""
    assert await tab.value("document.querySelectorAll('td').length") > 50
    assert await tab.value(wider) == []


@pytest.mark.parametrize("pixels", WIDTHS)
async def test_charts_have_a_size_and_their_text_is_in_the_window(tab: Tab, pixels: int) -> None:
    await tab.width(pixels)
    charts = await tab.value(
        "[...document.querySelectorAll('.ticks')].map(chart => chart.getBoundingClientRect().width)"
    )
    assert len(charts) > 2
    assert all(width > 200 for width in charts)
    outside = """[...document.querySelectorAll('svg text')].filter(text => {
        const place = text.getBoundingClientRect()
        return place.width && (place.left < 0 || place.right > innerWidth)
    }).map(text => text.textContent)"""
    assert await tab.value(outside) == []


@pytest.mark.parametrize("pixels", WIDTHS)
async def test_text_of_charts_is_readable_and_time_labels_do_not_overlap(tab: Tab, pixels: int) -> None:
    await tab.width(pixels)
    shown = (
        "[...document.querySelectorAll('svg text')].map(text => text.getBoundingClientRect()).filter(at => at.width)"
    )
    assert await tab.value(f"Math.min(...{shown}.map(at => at.height))") >= 11
    met = """[...document.querySelectorAll('.ticks')].filter(chart => {
        const places = [...chart.querySelectorAll('text')].map(text => text.getBoundingClientRect())
        const labels = places.filter(at => at.width)
        return labels.some((at, number) => number && at.left < labels[number - 1].right + 4)
    }).length"""
    assert await tab.value(met) == 0


@pytest.mark.parametrize("pixels", WIDTHS)
async def test_names_of_bars_do_not_overflow(tab: Tab, pixels: int) -> None:
    await tab.width(pixels)
    over = """[...document.querySelectorAll('.bars li')].filter(
        bar => [...bar.children].some(part => part.scrollWidth > part.clientWidth + 1 && part.clientWidth)).length"""
    assert await tab.value("document.querySelectorAll('.bars li').length") > 20
    assert await tab.value(over) == 0


async def test_sections_are_folded_on_a_phone_only_and_a_link_shows_its_section(tab: Tab) -> None:
    await unfold(tab, is_open=False)
    visible = "[...document.querySelectorAll('section > .body')].filter(body => body.clientHeight).length"
    every = await tab.value("document.querySelectorAll('section > .body').length")
    await tab.width(800)
    assert await tab.value(visible) == every
    await tab.width(360)
    assert await tab.value(visible) == 0
    await tab.value("document.querySelector('h2 label').click()")
    assert await tab.value(visible) == 1
    await tab.value("document.querySelector('nav a[href=\"#users\"]').click()")
    assert await tab.value("document.querySelector('#users > .body').clientHeight > 0")


async def test_an_hour_can_be_selected(tab: Tab) -> None:
    await tab.width(1120)
    visible = "[...document.querySelectorAll('.hour')].filter(hour => hour.clientHeight).map(hour => hour.className)"
    assert await tab.value(visible) == []
    await tab.value("document.querySelector('label[for=hour-7]').click()")
    assert await tab.value(visible) == ["hour hour-7"]


async def test_the_width_of_a_large_screen_is_used(tab: Tab) -> None:
    await tab.width(2560)
    right = "Math.max(...[...document.querySelectorAll('section')].map(part => part.getBoundingClientRect().right))"
    assert await tab.value(right) > 2500
