from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

from proxy.report.figures import Figures, Finding, Lost, Named, Sender, Sent, Stop
from proxy.report.page import render
from tests.report.sample import DAY, at, figures

HOSTILE = '"><script>alert(1)</script>'
#: Elements without an end.
VOID = {"meta", "rect", "line", "circle", "polyline"}


class Outline(HTMLParser):
    """Which elements there are, and whether each is closed in turn."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def outline(page: str) -> Outline:
    found = Outline(page)
    assert found.open == []
    return found


def test_every_table_has_its_section_in_order() -> None:
    sections = [attributes.get("id") for tag, attributes in outline(render(figures())).seen if tag == "section"]
    assert sections == [
        *("traffic", "destinations", "bindings", "unroutable", "latency", "producers", "anomalies", "trace")
    ]


def test_there_are_charts_with_a_description_each() -> None:
    charts = [attributes for tag, attributes in outline(render(figures())).seen if tag == "svg"]
    assert len(charts) >= 9
    assert all(chart["role"] == "img" and chart["aria-label"] for chart in charts)


def test_nothing_is_loaded_and_nothing_runs() -> None:
    page = outline(render(figures()))
    loading = {"script", "link", "img", "iframe", "object", "embed", "video", "audio", "base", "form"}
    assert [tag for tag, _ in page.seen if tag in loading] == []
    assert [
        name for _, attributes in page.seen for name in attributes if name in ("src", "href", "onload", "style")
    ] == []
    policies = [attributes["content"] for tag, attributes in page.seen if "http-equiv" in attributes]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_the_page_says_for_which_days_it_is_and_when_it_was_made() -> None:
    text = outline(render(figures())).text
    assert "Message routing, 2026-11-20" in text
    assert "made 2026-11-21 02:05:00 UTC from 864 segments" in text


def test_text_of_the_log_can_not_become_markup() -> None:
    hostile = replace(
        figures(),
        exchanges=[Named(HOSTILE, 1, 1)],
        destinations=[Sent(HOSTILE, HOSTILE, HOSTILE, 1, at(0), at(1))],
        unroutable=[Lost(HOSTILE, HOSTILE, HOSTILE, 1, 1, HOSTILE, HOSTILE)],
        producers=[Sender(HOSTILE, HOSTILE, HOSTILE, 1, 1, 1.0, 1)],
        anomalies=[Finding(at(0), HOSTILE, HOSTILE, 1.0, 1.0, 1.0, HOSTILE)],
        ways=[(HOSTILE, [Stop(at(0), HOSTILE, HOSTILE, HOSTILE, HOSTILE, [HOSTILE])])],
        rejected={HOSTILE: 1},
        rules=[HOSTILE],
    )
    page = render(hostile)
    assert "<script" not in page
    assert HOSTILE in outline(page).text


def test_what_is_lost_has_a_chart_of_its_own_beside_the_mass_of_the_rest() -> None:
    assert "Publishes without destination over time" in render(figures())
    fine = replace(figures(), steps=[step._replace(outcomes={"routed": 1}) for step in figures().steps])
    assert "Publishes without destination over time" not in render(fine)


def test_an_outcome_that_came_after_this_report_is_shown_too() -> None:
    newer = replace(figures(), steps=[step._replace(outcomes={"postponed": 3}) for step in figures().steps])
    assert "postponed 100.0 %" in outline(render(newer)).text


def test_a_list_that_was_cut_says_so() -> None:
    assert render(figures()).count("The table has more.") == 1
    assert "more than 2" in outline(render(replace(figures(), found={"anomalies": 3}))).text


def test_dead_bindings_need_rules_files() -> None:
    text = outline(render(replace(figures(), bindings_known=False))).text
    assert "this run had no rules files" in text
    assert "each binding of the rules files matched" in outline(render(replace(figures(), dead=[]))).text


def test_an_empty_log_gives_a_friendly_page() -> None:
    page = outline(render(Figures((DAY,), at(1))))
    assert "Nothing was published" in page.text
    assert "five minutes after its first line" in page.text
    assert [tag for tag, _ in page.seen if tag == "svg"] == []


def test_an_empty_log_tells_what_was_kept_aside() -> None:
    assert "3 foreign: in _rejected" in outline(render(Figures((), at(1), rejected={"foreign": 3}))).text


def test_a_day_with_nothing_but_one_publish_has_all_sections() -> None:
    bare = replace(Figures((DAY,), at(1), 1), steps=[figures().steps[0]._replace(outcomes={"passed": 1}, bytes=0)])
    text = outline(render(bare)).text
    for sentence in ("No publish had a destination.", "No binding matched.", "No samples.", "None found."):
        assert sentence in text


def test_numbers_are_readable() -> None:
    assert re.search(r"1\.86 M.*publishes", outline(render(figures())).text)


def test_queues_and_bindings_of_two_virtual_hosts_can_be_told_apart() -> None:
    base = figures()
    two = replace(
        base,
        destinations=[sent._replace(vhost=vhost) for sent in base.destinations[:1] for vhost in ("/", "shop")],
        hot=[hot._replace(vhost=vhost) for hot in base.hot[:1] for vhost in ("/", "shop")],
    )
    text = outline(render(two)).text
    for name in ("queue.0 in /", "queue.0 in shop", "(orders in /)", "(orders in shop)"):
        assert name in text
