from __future__ import annotations

import json
from collections.abc import Sequence

from prometheus_client.parser import text_string_to_metric_families as parse

from proxy.observe.exposition import Exposition
from proxy.observe.merging import MergedExposition, MetricsSnapshot, read_snapshot
from proxy.observe.metrics import METRICS
from proxy.relay.counters import Counters, RemoteCounters


def worked(times: int = 1) -> Counters:
    """What a process counts that has done a bit of everything."""
    counters = Counters()
    counters.rules.version = "v1"
    counters.rules.reloads["ok"] = 1
    counters.rules.last_success_seconds = 100.0 + times
    counters.downstream.open = 3 * times
    counters.traffic.name([("/", b"x")], [(b"x", "b")], [b"q"])
    counters.traffic.add("/", b"x", "routed", ((b"x", "b"),), (b"q",), 5 * times, 50 * times)
    counters.relay("/").channels = 2 * times
    counters.relay("/").protocol_error(530)
    counters.missing_destinations = 4
    for _ in range(times):
        counters.decision_seconds.observe(2e-6)
        counters.decision_seconds.observe(0.5)
    return counters


async def snapshot(counters: Counters) -> MetricsSnapshot:
    return read_snapshot(await Exposition(counters, "1").snapshot())


async def page(*snapshots: MetricsSnapshot) -> dict[tuple[str, str], float]:
    """All series of a page."""

    async def gather() -> Sequence[MetricsSnapshot]:
        return snapshots

    text, _ = await MergedExposition(gather).render()
    return series(text)


def series(text: bytes) -> dict[tuple[str, str], float]:
    return {
        (sample.name, json.dumps(sample.labels, sort_keys=True)): sample.value
        for family in parse(text.decode())
        for sample in family.samples
    }


def without_process(found: dict[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    return {key: value for key, value in found.items() if not key[0].startswith("process_")}


async def test_the_page_of_one_process_alone_is_its_own_page() -> None:
    own, _ = await Exposition(worked(), "1").render()
    assert without_process(await page(await snapshot(worked()))) == without_process(series(own))
    assert {name for name, _ in await page(await snapshot(worked()))} == {name for name, _ in series(own)}


async def test_the_page_of_three_is_that_of_one_that_did_all_the_work() -> None:
    found = await page(*[await snapshot(worked()) for _ in range(3)])
    own, _ = await Exposition(worked(3), "1").render()
    expected = series(own)
    for name in ("oxproxy_workers", "oxproxy_protocol_errors_total"):
        [key] = [key for key in expected if key[0] == name]
        assert found.pop(key) == 3
        del expected[key]
    [key] = [key for key in expected if key[0].endswith("success_timestamp_seconds")]
    del found[key], expected[key]
    assert without_process(found) == without_process(expected)


async def test_memory_and_processor_time_are_sums_and_the_start_is_that_of_the_first() -> None:
    one = await snapshot(worked())
    alone, two = await page(one), await page(one, one)
    for name in ("process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"):
        assert two[name, "{}"] == 2 * alone[name, "{}"]
    assert two["process_start_time_seconds", "{}"] == alone["process_start_time_seconds", "{}"]


async def test_of_a_process_that_has_ended_what_counts_stays_and_what_was_open_goes() -> None:
    ended = (await snapshot(worked())).growing()
    found = await page(ended, await snapshot(worked()))
    counted = '{"exchange": "x", "outcome": "routed", "vhost": "/"}'
    assert found["oxproxy_publishes_total", counted] == 10
    assert found["oxproxy_connections", '{"side": "downstream"}'] == 3
    assert found["oxproxy_decision_seconds_count", "{}"] == 4
    assert found["oxproxy_workers", "{}"] == 1


async def test_a_link_that_is_down_for_one_is_down() -> None:
    one, other = worked(), worked()
    for counters, up in ((one, True), (other, False)):
        counters.remotes["archive"] = RemoteCounters(up=up)
    found = await page(await snapshot(one), await snapshot(other))
    assert found["oxproxy_remote_up", '{"broker": "archive"}'] == 0


async def test_without_anybody_every_family_is_there_all_the_same() -> None:
    async def gather() -> Sequence[MetricsSnapshot]:
        return []

    text, _ = await MergedExposition(gather).render("application/openmetrics-text; version=1.0.0")
    headlines = {line.split()[2] for line in text.decode().splitlines() if line.startswith("# TYPE")}
    assert len(headlines & {spec.name for spec in METRICS}) > 10
    assert text.endswith(b"# EOF\n")
