"""Tests the page of a back-test in Chromium: layout at every width, links, and no requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from oxproxy.report.backtest.job import backtest
from oxproxy.report.request import Request
from oxproxy.rules.loader import compile_rules
from tests.browser import Tab, required_browser
from tests.report import lines
from tests.report.sample import LONG

pytestmark = pytest.mark.matrix

#: Widths of a phone, a tablet and three screens.
WIDTHS = (360, 800, 1120, 1920, 2560)
RULES = f"""
exchanges:
  - name: orders
    type: topic
    delivery: queue
    unmatched: pass
    bindings:
      - {{queue: {LONG}, routing_key: "order.#"}}
      - {{queue: archive, routing_key: "order.*.archived"}}
  - name: invoices
    delivery: queue
    bindings: [{{queue: invoices, when: {{tier: gold}}}}]
  - name: <b>&
    type: direct
    delivery: queue
    bindings: [{{queue: 日本, routing_key: a}}]
"""


def write_log(folder: Path) -> None:
    made = [
        lines.publish(exchange=exchange, rk=key, message_id=f"id-{number}-{exchange}", queues=queues)
        for exchange in ("orders", "invoices", "<b>&")
        for number, (key, queues) in enumerate(
            [
                ("order.1.archived", [LONG, "archive"]),
                (f"order.{LONG}", ["archive"]),
                ("a", []),
                (LONG * 4, [LONG, "archive"]),
            ]
        )
    ]
    passed = [lines.publish(exchange="orders", rk=f"order.{n}", outcome="passed", queues=[]) for n in range(30)]
    # Rules without conditions on headers were evaluated: the record refers to facts, which are empty.
    facts = lines.publish(kind="facts", facts=0, names=[], headers=[], property_names=[], properties={})
    with_facts = [line.replace('"v": 1', '"v": 1, "facts": 0', 1) for line in made]
    lines.segment(folder, [facts, *with_facts, *passed])


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pyspark")
    folder = tmp_path_factory.mktemp("backtest")
    write_log(folder / "log")
    (folder / "out").mkdir()
    (folder / "out/report.html").write_text("<!DOCTYPE html><title>report</title>")
    found = backtest(
        Request(str(folder / "log"), str(folder / "out")),
        compile_rules([("next.yaml", RULES.encode())]),
        ["next.yaml"],
    )
    assert min(found.equal, found.different, found.unroutable, found.not_judged) > 0
    return folder / "out"


@pytest.fixture
async def tab(output: Path) -> AsyncIterator[Tab]:
    async with required_browser() as tab:
        await tab.open(output / "backtest.html")
        yield tab


async def test_the_page_requests_nothing_and_causes_no_errors(tab: Tab) -> None:
    assert [url.rpartition("/")[2] for url in tab.requested] == ["backtest.html"]
    assert tab.complaints == []
    assert await tab.value("document.scripts.length") == 0
    assert await tab.value("document.compatMode") == "CSS1Compat"


async def test_all_links_have_a_target(tab: Tab) -> None:
    links = "[...document.querySelectorAll('a')].map(link => link.getAttribute('href'))"
    found = set(await tab.value(links))
    assert found == {"report.html", "#destinations", "#exchanges", "#differences"}
    for link in found - {"report.html"}:
        assert await tab.value(f"document.querySelector('{link}') !== null")
    await tab.page.click("text=Report")
    assert await tab.page.title() == "report"


async def test_names_from_the_log_are_text(tab: Tab) -> None:
    assert "<b>& in /" in await tab.value("document.body.textContent")
    assert await tab.value("document.querySelectorAll('b').length") == 0


@pytest.mark.parametrize("pixels", WIDTHS)
async def test_the_page_does_not_overflow_the_window(tab: Tab, pixels: int) -> None:
    await tab.width(pixels)
    await tab.value("document.querySelectorAll('.fold').forEach(box => { box.checked = true })")
    assert await tab.value("document.documentElement.scrollWidth") <= pixels
    wider = """[...document.querySelectorAll('table, td, p, code, section')].filter(
        part => part.clientWidth && part.scrollWidth > part.clientWidth + 1).map(part => part.outerHTML.slice(0, 80))"""
    assert await tab.value("document.querySelectorAll('td').length") > 20
    assert await tab.value(wider) == []


async def test_sections_are_folded_on_a_phone_only_and_a_link_shows_its_section(tab: Tab) -> None:
    visible = "[...document.querySelectorAll('section > .body')].filter(body => body.clientHeight).length"
    await tab.width(800)
    assert await tab.value(visible) == 3
    await tab.width(360)
    assert await tab.value(visible) == 0
    await tab.value("document.querySelector('nav a[href=\"#exchanges\"]').click()")
    assert await tab.value("document.querySelector('#exchanges > .body').clientHeight > 0")


async def test_the_width_of_a_large_screen_is_used(tab: Tab) -> None:
    await tab.width(2560)
    right = "Math.max(...[...document.querySelectorAll('section')].map(part => part.getBoundingClientRect().right))"
    assert await tab.value(right) > 2500
