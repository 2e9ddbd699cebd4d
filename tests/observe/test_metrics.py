from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families as parse

from oxproxy.native import BUILD
from oxproxy.observe.exposition import Exposition
from oxproxy.observe.metrics import METRICS
from oxproxy.relay.counters import Counters, RemoteCounters

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


async def scrape(counters: Counters) -> dict[str, float]:
    page, _ = await Exposition(counters).render()
    return samples(parse(page.decode()))


def samples(families: Iterable[Metric]) -> dict[str, float]:
    values: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            key = f"{sample.name}{{{labels}}}"
            assert key not in values, f"{key} is duplicated"
            values[key] = sample.value
    return values


async def test_counters_are_read_at_the_scrape() -> None:
    counters = Counters()
    exposition = Exposition(counters)
    for expected in (1, 2):
        counters.relay("/").returns += 1
        page, _ = await exposition.render()
        assert f"oxproxy_returns_total {expected}.0\n" in page.decode()


async def test_every_plain_counter_has_its_documented_name() -> None:
    counters = Counters(version="1.2.3")
    relay = counters.relay("/")
    relay.publishes_passed, relay.bytes_passed = 11, 1100
    relay.cache_hits, relay.cache_misses, relay.cache_bypassed = 5, 4, 3
    relay.confirms_acked, relay.confirms_nacked = 7, 1
    relay.regex_limit_hits, relay.channels, relay.paused_producers, relay.upstream_blocked = 2, 6, 1, 1
    relay.protocol_errors[406] += 1
    relay.broker_closes[404] += 2
    counters.relay("v").channels = 1
    counters.downstream.open = 9
    counters.upstream.results["unavailable"] += 1
    counters.rules.version = "abc"
    counters.rules.reloads["error"] += 1
    counters.rules.last_success_seconds = 1700000000.5
    counters.audit.lines, counters.audit.dropped, counters.audit.text_bytes = 21, 22, 23
    counters.audit.failing = True
    counters.remotes["archive"] = RemoteCounters(links=1, wanted=1)
    counters.remotes["archive"].results["lost"] += 1
    counters.missing_destinations = 8
    counters.foreign_bindings = 2
    counters.unsigned_bindings = 3
    counters.certificates = {("downstream", "/tls/cert.pem"): 1800000000.0}
    got = await scrape(counters)
    expected = {
        f"oxproxy_build_info{{build={BUILD},version=1.2.3}}": 1,
        "oxproxy_rules_info{version=abc}": 1,
        "oxproxy_rules_reload_total{result=ok}": 0,
        "oxproxy_rules_reload_total{result=error}": 1,
        "oxproxy_rules_last_reload_success_timestamp_seconds{}": 1700000000.5,
        "oxproxy_connections{side=downstream}": 9,
        "oxproxy_connections_total{result=unavailable,side=upstream}": 1,
        "oxproxy_channels{}": 7,
        "oxproxy_publishes_total{exchange=other,outcome=passed,vhost=/}": 11,
        "oxproxy_publish_bytes_total{exchange=other,vhost=/}": 1100,
        "oxproxy_decision_cache_total{result=hit}": 5,
        "oxproxy_decision_cache_total{result=miss}": 4,
        "oxproxy_decision_cache_total{result=bypassed}": 3,
        "oxproxy_confirms_total{result=acked}": 7,
        "oxproxy_confirms_total{result=nacked}": 1,
        "oxproxy_regex_limit_hits_total{}": 2,
        "oxproxy_paused_producers{}": 1,
        "oxproxy_upstream_blocked{}": 1,
        "oxproxy_topology_missing_destinations{}": 8,
        "oxproxy_topology_foreign_bindings{}": 2,
        "oxproxy_topology_unsigned_bindings{}": 3,
        "oxproxy_certificate_expiry_timestamp_seconds{file=/tls/cert.pem,side=downstream}": 1800000000,
        "oxproxy_audit_lines_total{}": 21,
        "oxproxy_audit_dropped_total{}": 22,
        "oxproxy_audit_bytes_total{}": 23,
        "oxproxy_audit_failing{}": 1,
        "oxproxy_remote_up{broker=archive}": 1,
        "oxproxy_remote_publishes_total{broker=archive,result=lost}": 1,
        "oxproxy_protocol_errors_total{reply_code=406}": 1,
        "oxproxy_broker_closes_total{reply_code=404}": 2,
    }
    assert {key: got.get(key) for key in expected} == expected


async def test_traffic_of_rules_includes_series_with_value_zero() -> None:
    counters = Counters()
    counters.traffic.name(counters.traffic.labels([("/", b"x")], [("/", b"x", "b0"), ("/", b"x", "b1")], [("/", b"q")]))
    held = counters.traffic.tally("/", b"x", "routed", ((b"x", "b0"),), (b"q",))
    held.count.publishes, held.count.body_bytes = 2, 20
    got = await scrape(counters)
    expected = {
        "oxproxy_publishes_total{exchange=x,outcome=routed,vhost=/}": 2,
        "oxproxy_publishes_total{exchange=x,outcome=unrouted,vhost=/}": 0,
        "oxproxy_publish_bytes_total{exchange=x,vhost=/}": 20,
        "oxproxy_binding_matches_total{binding=b0,exchange=x,vhost=/}": 2,
        "oxproxy_binding_matches_total{binding=b1,exchange=x,vhost=/}": 0,
        "oxproxy_destination_publishes_total{destination=q,vhost=/}": 2,
    }
    assert {key: got.get(key) for key in expected} == expected


async def test_a_binding_keeps_its_total_in_new_rules_until_it_is_removed() -> None:
    counters = Counters(2)
    traffic = counters.traffic

    def name(*ids: str) -> None:
        traffic.name(traffic.labels([("/", b"x")], [("/", b"x", binding) for binding in ids], []))

    name("b0", "b1", "b2")
    traffic.add("/", b"x", "routed", ((b"x", "b0"), (b"x", "b1"), (b"x", "b2")), (), 4, 0)
    name("b3", "b4", "b1")
    assert sorted(traffic.matches()) == [("/", b"other", "other", 4), ("/", b"x", "b1", 4), ("/", b"x", "b3", 0)]
    name("b4")
    assert sorted(traffic.matches()) == [("/", b"other", "other", 4), ("/", b"x", "b4", 0)]


async def test_equal_names_in_two_virtual_hosts_are_separate_series() -> None:
    counters = Counters()
    hosts = ("a", "b")
    counters.traffic.name(
        counters.traffic.labels(
            [(host, b"x") for host in hosts], [(host, b"x", "b0") for host in hosts], [(host, b"q") for host in hosts]
        )
    )
    counters.traffic.add("a", b"x", "routed", ((b"x", "b0"), (b"x", "client")), (b"q",), 3, 0)
    got = await scrape(counters)
    expected = {
        "oxproxy_binding_matches_total{binding=b0,exchange=x,vhost=a}": 3,
        "oxproxy_binding_matches_total{binding=b0,exchange=x,vhost=b}": 0,
        "oxproxy_binding_matches_total{binding=other,exchange=other,vhost=b}": 0,
        "oxproxy_destination_publishes_total{destination=q,vhost=a}": 3,
        "oxproxy_destination_publishes_total{destination=q,vhost=b}": 0,
    }
    assert {key: got.get(key) for key in expected} == expected


async def test_metrics_without_vhost_are_sums_over_virtual_hosts() -> None:
    counters = Counters()
    for vhost, code in (("a", 404), ("b", 404), ("b", 406)):
        counters.relay(vhost).protocol_errors[code] += 1
        counters.relay(vhost).returns += 1
    got = await scrape(counters)
    assert got["oxproxy_protocol_errors_total{reply_code=404}"] == 2
    assert got["oxproxy_protocol_errors_total{reply_code=406}"] == 1
    assert got["oxproxy_returns_total{}"] == 3


async def test_passed_publishes_and_an_exchange_named_other_share_a_series() -> None:
    counters = Counters()
    counters.traffic.add("/", b"unnamed", "passed", (), (), 1, 10)
    counters.relay("/").publishes_passed = 2
    got = await scrape(counters)
    assert got["oxproxy_publishes_total{exchange=other,outcome=passed,vhost=/}"] == 3


async def test_names_with_any_bytes_are_escaped() -> None:
    odd = [
        b'quo"te',
        b"back\\slash",
        b"new\nline",
        b"cr\r# HELP",
        b"\xff\xfe",
        b"\\xff\\xfe",
        "ünï".encode(),
        b"",
    ]
    counters = Counters()
    counters.traffic.name(
        counters.traffic.labels([("/", name) for name in odd], [("/", b"x", "\udc80")], [("/", name) for name in odd])
    )
    for name in odd:
        counters.traffic.add("/", name, "routed", (), (name,), 1, 0)
    page, _ = await Exposition(counters).render("application/openmetrics-text; version=1.0.0")
    got = samples(openmetrics_families(page))
    assert got["oxproxy_destination_publishes_total{destination=new\nline,vhost=/}"] == 1
    assert got["oxproxy_destination_publishes_total{destination=\\xff\\xfe,vhost=/}"] == 2
    assert got["oxproxy_binding_matches_total{binding=\\udc80,exchange=x,vhost=/}"] == 0


async def test_histogram_buckets_are_cumulative() -> None:
    counters = Counters()
    counters.confirm_seconds.observe(0.003)
    got = await scrape(counters)
    assert got["oxproxy_confirm_seconds_bucket{le=0.0025}"] == 0
    assert got["oxproxy_confirm_seconds_bucket{le=0.005}"] == 1
    assert got["oxproxy_confirm_seconds_bucket{le=+Inf}"] == 1
    assert got["oxproxy_confirm_seconds_sum{}"] == 0.003


def test_the_documentation_lists_exactly_the_existing_metrics() -> None:
    rows = re.findall(r"^\| `(oxproxy_\w+)` \| (\w+) \| ([^|]*) \| (.+) \|$", DOCS.read_text(), re.MULTILINE)
    assert rows == [(spec.name, spec.kind, ", ".join(spec.labels), spec.help) for spec in METRICS]


def test_counters_and_only_counters_end_in_total() -> None:
    for spec in METRICS:
        assert spec.name.endswith("_total") == (spec.kind == "counter"), spec.name


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
