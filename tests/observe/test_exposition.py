from __future__ import annotations

import asyncio
import re

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families as parse

from proxy.observe.exposition import Exposition
from proxy.relay.counters import Counters

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def openmetrics_families(page: bytes) -> list[Metric]:
    return list(openmetrics_parser.text_string_to_metric_families(page.decode()))  # type: ignore[no-untyped-call]


def many(series: int) -> Counters:
    counters = Counters(series)
    counters.traffic.name(
        counters.traffic.labels(
            [("/", b"x")], [("/", b"x", f"b{n}") for n in range(series)], [("/", b"q%d" % n) for n in range(series)]
        )
    )
    return counters


async def test_a_family_with_many_series_has_one_header() -> None:
    page, _ = await Exposition(many(200)).render()
    lines = page.decode().splitlines()
    headlines = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(headlines) == len(set(headlines))
    assert sum(line.startswith("oxproxy_destination_publishes_total{") for line in lines) == 200
    assert len(list(parse(page.decode()))) == len(headlines)


async def test_openmetrics_is_negotiated() -> None:
    page, content_type = await Exposition(many(65)).render(OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert page.endswith(b"# EOF\n")
    assert page.count(b"# EOF") == 1
    names = {sample.name for family in openmetrics_families(page) for sample in family.samples}
    assert {"oxproxy_connections", "oxproxy_connections_total", "oxproxy_channels"} <= names


async def test_both_formats_contain_the_same_series() -> None:
    def series(page: bytes) -> set[str]:
        lines = [line.rpartition(" ")[0] for line in page.decode().splitlines() if not line.startswith("#")]
        # OpenMetrics formats the bounds of buckets differently.
        return {re.sub(r'le="[^"]*"', "le", line) for line in lines}

    exposition = Exposition(many(3))
    plain, _ = await exposition.render()
    openmetrics, _ = await exposition.render(OPENMETRICS)
    assert series(plain) == series(openmetrics)


async def test_other_tasks_run_while_a_large_page_is_written() -> None:
    rendering = asyncio.ensure_future(Exposition(many(5000)).render())
    turns = 0
    while not rendering.done():
        await asyncio.sleep(0)
        turns += 1
    # 10,000 series take tens of milliseconds. Without interruptions, other tasks would run only a few times.
    assert turns > 10


async def test_every_series_of_a_worker_has_the_workers_number() -> None:
    counters = many(2)
    for form in ("", OPENMETRICS):
        page, _ = await Exposition(counters, worker=1).render(form)
        lines = [line for line in page.decode().splitlines() if not line.startswith("#")]
        assert [line for line in lines if 'worker="1"' not in line] == []
        page, _ = await Exposition(counters).render(form)
        assert b"worker=" not in page


async def test_counters_change_while_a_page_is_written() -> None:
    counters = many(2000)
    held = [counters.traffic.tally("/", b"x", "routed", (), (b"q%d" % n,)) for n in range(2000)]
    rendering = asyncio.ensure_future(Exposition(counters).render())
    published = 0
    while not rendering.done():
        await asyncio.sleep(0)
        held[published % 2000].count.publishes += 1
        published += 1
        counters.relay(f"v{published}").returns += 1
    await rendering
    page, _ = await Exposition(counters).render()
    assert f'exchange="x",outcome="routed",vhost="/"}} {float(published)}\n' in page.decode()


async def test_process_metrics_are_exposed() -> None:
    page, _ = await Exposition(Counters()).render()
    assert b"process_resident_memory_bytes" in page
    assert b"python_info" in page


@pytest.mark.parametrize("accept", ["application/openmetrics-text; version=x", "text/plain; version=1..0"])
async def test_an_invalid_version_in_the_accept_header_gives_the_plain_text_format(accept: str) -> None:
    _, content_type = await Exposition(Counters()).render(accept)
    assert content_type.startswith("text/plain")
