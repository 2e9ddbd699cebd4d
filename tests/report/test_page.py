from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser
from pathlib import Path

import pytest

from oxproxy.report.figures import Figures
from oxproxy.report.pages import Days, explain_command, relinked, render, render_index
from tests.report.sample import (
    DAY,
    Compared,
    Connection,
    Finding,
    Frequent,
    Lost,
    Named,
    Queue,
    Reason,
    Sender,
    Sent,
    Stop,
    Timed,
    User,
    Version,
    at,
    figures,
)

HOSTILE = '"><script>alert(1)</script>'
#: Elements without an end tag.
VOID = {"meta", "rect", "line", "circle", "polyline", "input"}


class Outline(HTMLParser):
    """The elements of a page. Checks that end tags match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def outline(page: str) -> Outline:
    parser = Outline(page)
    assert parser.open == []
    return parser


def test_the_sections_are_in_order() -> None:
    sections = [attributes.get("id") for tag, attributes in outline(render(figures())).elements if tag == "section"]
    assert sections == [
        *("traffic", "hours", "destinations", "users", "rules", "bindings", "unroutable", "confirms", "latency"),
        *("producers", "comparison", "anomalies", "trace"),
    ]


def test_every_chart_has_a_description() -> None:
    elements = outline(render(figures())).elements
    charts = [attributes for tag, attributes in elements if tag == "svg" and "aria-hidden" not in attributes]
    assert [chart.get("class") for chart in charts].count("ticks") == 6
    assert all(chart["role"] == "img" and chart["aria-label"] for chart in charts)
    lists = [attributes for tag, attributes in elements if tag == "ol" and attributes.get("class") == "bars"]
    assert len(lists) == 5 + 24 * 3
    assert all(attributes["aria-label"] for attributes in lists)


def test_the_page_loads_no_resources_and_runs_no_scripts() -> None:
    page = outline(render(figures()))
    loading = {"script", "link", "img", "iframe", "object", "embed", "video", "audio", "base", "form"}
    assert [tag for tag, _ in page.elements if tag in loading] == []
    assert [name for _, attributes in page.elements for name in attributes if name in ("src", "onload", "style")] == []
    policies = [attributes["content"] for tag, attributes in page.elements if "http-equiv" in attributes]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_the_page_shows_its_days_and_the_time_of_creation() -> None:
    text = outline(render(figures())).text
    assert "Message routing, 2026-11-20" in text
    assert "generated 2026-11-21 02:05:00 UTC from 864 segments" in text


def test_strings_of_the_log_are_escaped() -> None:
    hostile = replace(
        figures(),
        exchanges=[Named(HOSTILE, 1, 1)],
        destinations=[Sent(HOSTILE, HOSTILE, HOSTILE, 1, at(0), at(1))],
        unroutable=[Lost(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1, 1, HOSTILE, HOSTILE, at(0))],
        producers=[Sender(HOSTILE, HOSTILE, 1, 1, 1.0, 1, [Connection(-1, HOSTILE, HOSTILE, 1, 1)], 1)],
        users=[User(HOSTILE, HOSTILE, 1, 1, 1, 1, {1: 1})],
        queues=[Queue(HOSTILE, HOSTILE, HOSTILE, 1, [HOSTILE], [HOSTILE], {1: 1})],
        reasons=[Reason(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1, [HOSTILE], HOSTILE)],
        versions=[Version(HOSTILE, HOSTILE, HOSTILE, 1, 1, 1, at(0), at(1))],
        compared=[Compared(HOSTILE, HOSTILE, 1, 1, 0)],
        hours=[Frequent(1, HOSTILE, HOSTILE, 1)],
        anomalies=[Finding(at(0), HOSTILE, HOSTILE, 1.0, 1.0, 1.0, HOSTILE)],
        ways=[(HOSTILE, [Stop(at(0), HOSTILE, HOSTILE, HOSTILE, HOSTILE, [HOSTILE])])],
        rejected={HOSTILE: 1},
        duplicates=[HOSTILE],
        rules=[HOSTILE],
    )
    page = render(hostile)
    assert "<script" not in page
    assert HOSTILE in outline(page).text


def test_publishes_without_destination_have_a_separate_chart() -> None:
    assert "Publishes without destination over time" in render(figures())
    fine = replace(figures(), steps=[step | {"outcomes": {"routed": 1}} for step in figures().steps])
    assert "Publishes without destination over time" not in render(fine)


def test_an_unknown_outcome_is_shown() -> None:
    newer = replace(figures(), steps=[step | {"outcomes": {"postponed": 3}} for step in figures().steps])
    assert "postponed 100.0 %" in outline(render(newer)).text


def test_bars_are_proportional_to_their_values() -> None:
    page = render(replace(figures(), sizes=[(100, 10_000), (1000, 5000), (10_000, 0), (None, 1)]))
    bars = re.findall(
        r'<span class="name">(up to .*?|larger)</span>'
        r'<svg aria-hidden="true">(?:<rect [^>]* width="(.*?)%"[^>]*>)?</svg>',
        page,
    )
    # A small value is visible; nothing is drawn for zero.
    assert bars == [("up to 100 B", "100"), ("up to 1 kB", "50"), ("up to 10 kB", ""), ("larger", "0.3")]


def test_a_truncated_table_is_marked() -> None:
    assert render(figures()).count("The table has more rows.") == 1
    assert "more than 2" in outline(render(replace(figures(), found={"anomalies": 3}))).text


def test_dead_bindings_need_rules_files() -> None:
    text = outline(render(replace(figures(), bindings_known=False))).text
    assert "this run had no rules files" in text
    assert "every binding in the rules files matched" in outline(render(replace(figures(), dead=[]))).text


def test_an_empty_log_has_a_page_with_an_explanation() -> None:
    page = outline(render(Figures((DAY,), at(1))))
    assert "Nothing was published" in page.text
    assert "five minutes after its first line" in page.text
    assert [tag for tag, _ in page.elements if tag == "svg"] == []


def test_a_log_without_days_has_a_page_with_an_explanation() -> None:
    text = outline(render(Figures((), at(1)))).text
    assert "The audit log contains no publishes. This may be correct." in text
    assert re.search(r"Message routing\s+From", text)


def test_a_page_without_publishes_shows_rejected_lines() -> None:
    assert "3 foreign: in _rejected" in outline(render(Figures((), at(1), rejected={"foreign": 3}))).text


def test_a_day_with_one_publish_has_all_sections() -> None:
    bare = replace(Figures((DAY,), at(1), 1), steps=[figures().steps[0] | {"outcomes": {"passed": 1}, "bytes": 0}])
    text = outline(render(bare)).text
    for sentence in ("No publish had a destination.", "No binding matched.", "No samples.", "None found."):
        assert sentence in text


def test_large_numbers_have_a_prefix() -> None:
    assert re.search(r"1\.86 M\s*publishes", outline(render(figures())).text)


def test_queues_and_bindings_of_two_virtual_hosts_are_distinguished() -> None:
    base = figures()
    two = replace(
        base,
        destinations=[sent | {"vhost": vhost} for sent in base.destinations[:1] for vhost in ("/", "shop")],
        hot=[hot | {"vhost": vhost} for hot in base.hot[:1] for vhost in ("/", "shop")],
    )
    text = outline(render(two)).text
    for name in ("queue.0 in /", "queue.0 in shop", "(orders in /)", "(orders in shop)"):
        assert name in text


def test_the_table_of_contents_links_to_every_section() -> None:
    elements = outline(render(figures())).elements
    targets = [attributes["href"] for tag, attributes in elements if tag == "a" and str(attributes["href"])[0] == "#"]
    assert {f"#{attributes['id']}" for tag, attributes in elements if tag == "section"} <= set(targets)


def test_rejected_and_filtered_publishes_count_as_without_a_destination() -> None:
    steps = [figures().steps[0] | {"outcomes": {"routed": 6, "unrouted": 1, "filtered": 1, "rejected": 2}}]
    text = outline(render(replace(figures(), steps=steps))).text
    assert re.search(r"40\.0 %\s*without destination\s*1 unrouted, 1 filtered, 2 rejected", text)
    none_unrouted = replace(figures(), steps=steps, unroutable=[])
    assert "every publish had a destination" not in outline(render(none_unrouted)).text


def test_singular_and_plural_are_correct() -> None:
    base = figures()
    single = replace(
        base,
        segments=1,
        steps=[base.steps[0] | {"outcomes": {"unrouted": 1}, "bytes": 1}],
        proxies=base.proxies[:1],
        anomalies=base.anomalies[:1],
        destinations=base.destinations[:1],
        late=1,
        rejected={"torn": 1},
        latency=base.latency[:1],
        found={},
    )
    text = " ".join(outline(render(single)).text.split())
    assert re.findall(r"\b1 \w+", text.replace("1 unrouted", "").replace("2026-11-2", "")) != []
    for wrong in ("1 publishes", "1 bytes", "1 sidecars", "1 anomalies", "1 lines", "1 segments", "1 destinations"):
        assert not re.search(rf"\b{wrong}\b", text)
    assert "1 record in the directory of a different day" in text


@pytest.mark.parametrize(("hours", "charts"), [(1, 4), (2, 4), (3, 6)])
def test_latency_of_few_hours_is_shown_as_a_table(hours: int, charts: int) -> None:
    latency = [Timed(at(hour), what, 1.0, 2.0, 3.0, 1) for hour in range(hours) for what in ("decide", "confirm")]
    page = render(replace(figures(), latency=latency))
    assert page.count('class="chart"') == charts
    assert ('<th class="n">p95</th>' in page) == (charts == 4)


def test_a_line_has_a_dot_for_each_hour_and_strokes_between_them() -> None:
    latency = [Timed(at(hour), "decide", 1.0, 2.0, 3.0, 1) for hour in (0, 1, 5)]
    page = render(replace(figures(), latency=latency, confirms=[]))
    assert page.count('<circle class="s5"') == 3
    assert re.findall(r'<line class="l5" x1="(.*?)%" y1=".*?" x2="(.*?)%"', page) == [("8.33", "25"), ("25", "91.67")]
    assert "2026-11-20 05:30 p99: 3 µs" in page


def test_the_latency_axis_has_a_title() -> None:
    page = render(figures())
    assert page.count('<p class="axis-title">latency</p>') == 2


def test_a_page_links_to_adjacent_days() -> None:
    first, current, last = date(2026, 11, 18), DAY, date(2026, 11, 25)
    page = render(figures(), Days.around(current, current, [last, first, current], "pages/"))
    links = [attributes["href"] for tag, attributes in outline(page).elements if tag == "a" and "rel" in attributes]
    assert links == ["pages/2026-11-18.html", "pages/2026-11-25.html"]
    assert 'href="pages/index.html"' in page


def test_a_link_to_a_later_day_is_added_to_an_existing_page() -> None:
    page = render(figures())
    later = relinked(page, Days.around(DAY, DAY, [DAY, date(2026, 11, 21)]))
    assert later == render(figures(), Days(next=date(2026, 11, 21)))
    assert relinked("no such page", Days()) == "no such page"


def test_the_index_has_every_day_even_without_numbers() -> None:
    counts = {"publishes": 7, "undelivered": 1, "returned": 0, "anomalies": 2}
    page = render_index([{"name": "2026-11-21"} | counts, {"name": "2026-11-20"}], ["2026-11-20_2026-11-21"])
    index = outline(page)
    links = [attributes["href"] for tag, attributes in index.elements if tag == "a"]
    assert links == ["../report.html", "2026-11-21.html", "2026-11-20.html", "2026-11-20_2026-11-21.html"]
    assert "2026-11-20 to 2026-11-21" in index.text
    assert "No pages for single days yet" in render_index([], [])


RULES = """\
exchanges:
  - name: it's "orders"
    type: x-open
    delivery: carrier
    bindings:
      - queue: billing
        arguments: {x-?rk=: other}
"""


def test_the_explain_command_of_an_unroutable_row_can_be_run(tmp_path: Path) -> None:
    key = "a.'$(touch oops)'.\\n\u00e4"
    lost = Lost("/", 'it\'s "orders"', "a.*", "unrouted", "unmatched", 1, 0, key, None, at(7))
    command = explain_command(lost)
    assert "--at 2026-11-20T07:00:00Z" in command
    (tmp_path / "RULES.yaml").write_text(RULES)
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False, env={"PATH": path}
    )
    assert done.returncode == 0, done.stderr
    assert "unrouted" in done.stdout
    assert sorted(tmp_path.iterdir()) == [tmp_path / "RULES.yaml"]
    page = render(replace(figures(), unroutable=[lost]))
    assert command in outline(page).text


def test_the_hours_of_the_day_can_be_selected_without_scripts() -> None:
    page = outline(render(figures()))
    choices = [attributes["id"] for tag, attributes in page.elements if attributes.get("type") == "radio"]
    assert choices == ["hour-all", *(f"hour-{hour}" for hour in range(24))]
    shown = [
        attributes["class"] for tag, attributes in page.elements if str(attributes.get("class")).startswith("hour ")
    ]
    assert shown == [f"hour hour-{hour}" for hour in range(24)]


def test_confirms_are_compared_with_an_objective() -> None:
    page = outline(render(figures()))
    assert "Objective: 99.9 % of the publishes are neither nacked nor lost" in page.text
    assert "objective: at most 0.1 %" in page.text
