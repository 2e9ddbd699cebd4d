"""Tests back-tests: candidate rules are judged on recorded publishes as a sidecar with these rules would decide."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxproxy.errors import ConfigErrors
from oxproxy.relay.records.audit_record import PublishLog
from oxproxy.relay.records.facts_record import FactsMode, FactsTable
from oxproxy.relay.records.privacy import Privacy
from oxproxy.relay.vhost import VhostState
from oxproxy.rules.loader import compile_rules
from oxproxy.rules.wire import owned_exchanges
from oxproxy.values import Table, Value
from tests.relay.wire import Wire, publish
from tests.report import lines
from tests.sidecar import oxproxy_here

pytest.importorskip("pyspark")
from oxproxy.report.backtest import job as backtest_job
from oxproxy.report.backtest.job import backtest
from oxproxy.report.backtest.judge import Result
from oxproxy.report.backtest.result import BacktestResult
from oxproxy.report.job import report
from oxproxy.report.request import Request
from oxproxy.report.session import LazySession

DAY = "2026-11-20"
RULES = """
exchanges:
  - name: x
    delivery: queue
    bindings:
      - {queue: eu, name: eu, when: {region: eu}}
      - {queue: large, name: large, when: {"amount >=": 1000}}
      - {queue: orders, name: orders, when: {property type: order}}
"""
EU, LARGE = (b"region", Value("S", b"eu")), (b"amount", Value("I", 2000))
Message = tuple[str, Table, bytes, dict[str, bytes | int]]  # key, headers, body, properties


def recorded(
    rules: str,
    messages: Iterable[Message],
    privacy: Privacy | None = None,
    mode: FactsMode | None = FactsMode.ALL_MENTIONED,
    to: str = "x",
) -> list[str]:
    """Publish messages through the relay with these rules, and return the audit records."""
    loaded = compile_rules([("rules.yaml", rules.encode())])
    privacy = privacy or Privacy()
    table = None if mode is None else FactsTable("p", privacy, mode)
    made: list[str] = []
    now = Wire().plans.sources.wall()

    def append(text: bytes, _count: int) -> None:
        facts = {} if table is None else table.take_used()[0]
        begin = text[:34]
        for number, line in facts.items():
            if number not in defined:
                defined.add(number)
                made.append((begin + line).decode().rstrip("\n"))
        made.extend(text.decode().splitlines())

    defined: set[int] = set()
    journal = PublishLog("p", privacy, lambda: "v1", append, lambda: now, ruled_only=False, facts=table)
    for number, (key, headers, body, properties) in enumerate(messages):
        state = VhostState("/", loaded.routers["/"], owned_exchanges(loaded.rules.vhosts["/"]))
        state.set_addresses(loaded.books.get("/"))
        wire = Wire(state)
        wire.plans.journal = journal
        wire.relay.connection.start_audit(f"c{number}")
        wire.open()
        ids: Any = {"message_id": b"m%d" % number, **properties}  # keyword arguments
        wire.produce(publish(key, headers, body, to=to, **ids))
        wire.relay.connection.audit.begin()  # type: ignore[union-attr]  # audited
    return made


def judged(log: Path, rules: str, **more: Any) -> BacktestResult:  # Any: fields of the request
    request = Request(str(log), more.pop("output", ""), **more)
    return backtest(request, compile_rules([("next.yaml", rules.encode())]), ["next.yaml"])


def written(folder: Path, rules: str, messages: Sequence[Message], **more: Any) -> Path:  # Any: see `recorded`
    lines.segment(folder, recorded(rules, messages, **more))
    return folder


def message(key: str = "k", *headers: tuple[bytes, Value], body: bytes = b"", **properties: bytes | int) -> Message:
    return key, headers, body, properties


MESSAGES = [message("k", EU), message("k", LARGE), message("k", EU, LARGE), message("k"), message(type=b"order")]


def test_the_rules_in_force_have_equal_results(tmp_path: Path) -> None:
    found = judged(written(tmp_path, RULES, MESSAGES), RULES)
    assert (found.judged, found.equal, found.different, found.not_judged) == (5, 5, 0, 0)


def test_gains_and_losses_are_counted_by_destination_with_examples(tmp_path: Path) -> None:
    found = judged(written(tmp_path, RULES, MESSAGES), RULES.replace("1000", "3000").replace("queue: eu", "queue: de"))
    rows = {(row["kind"], row["name"]): (row["gains"], row["losses"]) for row in found.destinations}
    assert rows == {
        ("unroutable", "x"): (1, 0),
        ("queue", "eu"): (0, 2),
        ("queue", "de"): (2, 0),
        ("queue", "large"): (0, 2),
    }
    assert found.destinations[0]["kind"] == "unroutable"
    assert [example["message_id"] for example in found.destinations[0]["gained"]] == ["m1"]
    assert (found.equal, found.different, found.unroutable) == (2, 3, 1)


def test_the_command_of_an_example_shows_the_candidates_result(tmp_path: Path) -> None:
    candidate = RULES.replace("1000", "3000")
    (tmp_path / "next.yaml").write_text(candidate)
    log = written(tmp_path / "log", RULES, [message("k", LARGE, type=b"other")])
    result = oxproxy_here("backtest", str(tmp_path / "next.yaml"), "--input", str(log), "--json")
    [example] = json.loads(result.stdout)["destinations"][0]["gained"]
    quoted, _, command = example["explain"].removeprefix("printf %s ").partition(" | ")
    explained = oxproxy_here(*command.split()[1:], input=quoted.strip("'"))
    assert "outcome   unrouted" in explained.stdout
    assert "amount" in explained.stdout


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        ("tier: gold", "header tier is not recorded"),
        ("tier: gold, color: red", "headers color, tier are not recorded"),
        ("property app_id: shop", "property app_id is not recorded"),
    ],
)
def test_what_is_not_recorded_is_not_judged(tmp_path: Path, conditions: str, reason: str) -> None:
    candidate = f"{RULES}      - {{queue: new, when: {{{conditions}}}}}\n"
    found = judged(written(tmp_path, RULES, MESSAGES), candidate)
    assert (found.judged, found.not_judged) == (0, 5)
    assert found.exchanges[0]["reasons"] == {reason: 5}


def test_without_facts_nothing_evaluated_is_judged(tmp_path: Path) -> None:
    found = judged(written(tmp_path, RULES, MESSAGES, mode=None), RULES)
    assert found.exchanges[0]["reasons"] == {"the record has no facts (audit.facts)": 5}


def test_headers_that_are_not_listed_are_not_judged(tmp_path: Path) -> None:
    privacy = Privacy(frozenset((b"region",)))
    found = judged(written(tmp_path, RULES, MESSAGES, privacy=privacy, mode=FactsMode.LISTED), RULES)
    assert found.exchanges[0]["reasons"] == {"header amount is not recorded": 5}


def test_hashed_routing_keys_are_not_judged_if_rules_test_them(tmp_path: Path) -> None:
    privacy = Privacy(frozenset(), frozenset(("rk",)), b"0123456789abcdef")
    log = written(tmp_path, RULES, MESSAGES, privacy=privacy)
    assert judged(log, RULES).equal == 5
    keyed = f'{RULES}      - {{queue: new, arguments: {{"x-?rkta": "a.*"}}}}\n'
    assert judged(log, keyed).exchanges[0]["reasons"] == {"routing keys are hashed": 5}


def test_an_exchange_without_rules_is_judged_by_its_routing_key(tmp_path: Path) -> None:
    passed = [lines.publish(exchange="new", rk=key, outcome="passed", queues=[], bindings=[]) for key in ("a.b", "c")]
    lines.segment(tmp_path, passed)
    candidate = """
exchanges:
  - name: new
    type: topic
    delivery: queue
    unmatched: pass
    bindings: [{queue: q, routing_key: "a.*"}]
"""
    found = judged(tmp_path, candidate)
    assert (found.equal, found.different) == (1, 1)
    assert found.differences[0]["candidate"]["queues"] == ("q",)


def test_the_size_and_the_clock_are_those_of_the_record(tmp_path: Path) -> None:
    rules = """
exchanges:
  - name: x
    delivery: queue
    arguments: {max-payload-size-silent: 3}
    bindings: [{queue: q, arguments: {"x-?dture": "^20261121"}}]
"""
    log = written(tmp_path, rules, [message(body=b"abc"), message(body=b"abcd")])
    assert judged(log, rules).equal == 2
    assert judged(log, rules.replace("size-silent: 3", "size-silent: 2")).different == 1
    assert judged(log, rules.replace("20261121", "20261122")).different == 1


def test_times_with_the_same_results_of_clock_conditions_are_judged_together(tmp_path: Path) -> None:
    rules = """
timezone: Asia/Tokyo
exchanges:
  - name: x
    delivery: queue
    bindings:
      - {queue: day, arguments: {"x-?dture": " 1[0-9]{5} "}}
      - {queue: evening, arguments: {"x-?dtl!re": " 18"}}
      - {queue: eu, when: {region: eu}}
"""
    made = recorded(rules, [message("k", EU), message("k")])
    facts, publishes = [line for line in made if '"facts",' in line], [line for line in made if '"publish"' in line]
    for second in range(3000):
        at = datetime(2026, 11, 20, 9, 30, tzinfo=UTC) + timedelta(seconds=second)
        record = json.loads(publishes[second % 2])
        queues = ["day", "evening"] * (at.hour == 10) + ["eu"] * (second % 2 == 0)
        outcome = {"queues": queues, "outcome": "routed" if queues else "unrouted"}
        # The last publish of each minute may have been decided in the next minute.
        part = "970000" if at.second == 59 else "100000"
        facts.append(json.dumps(record | outcome | {"ts": f"{at:%Y-%m-%dT%H:%M:%S}.{part}Z"}))
    lines.segment(tmp_path, facts, hour=9)
    found = judged(tmp_path, rules)
    assert (found.equal, found.different) == (2999, 0)
    [exchange] = found.exchanges
    assert exchange["reasons"] == {"the clock may have changed between the decision and its record": 1}
    assert found.evaluations < 10


ADDRESSES = """
addresses:
  - {pattern: large, translation: /queue/big}
  - {pattern: /exchange/old/*, translation: /exchange/x/$1}
  - {pattern: /exchange/gone/*, translation: /queue/$1}
"""


def test_the_address_table_is_part_of_the_rules(tmp_path: Path) -> None:
    rules = RULES + ADDRESSES
    for hour, to in enumerate(("x", "old", "gone", "other")):
        lines.segment(
            tmp_path, recorded(rules, [message("k", EU), message("q.1", LARGE), message("k")], to=to), hour=hour
        )
    same = judged(tmp_path, rules)
    assert (same.equal, same.different, same.not_judged) == (12, 0, 0)
    found = judged(tmp_path, rules.replace("queue/big", "queue/huge").replace("/exchange/gone/*", "/exchange/other/*"))
    rows = {(row["name"], row["gains"], row["losses"]) for row in found.destinations}
    assert rows == {("huge", 1, 0), ("big", 0, 1), ("k", 2, 2), ("q.1", 1, 1)}


def test_copies_of_segments_count_once_and_tables_are_used_again(tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    lines.segment(log, recorded(RULES, MESSAGES))
    lines.segment(log, recorded(RULES, MESSAGES), name="copy-1-1.jsonl")
    first = judged(log, RULES, output=str(output))
    tables = {path: path.stat().st_mtime_ns for path in output.rglob("*.parquet")}
    assert (first.judged, len(tables)) == (5, 3)
    assert judged(log, RULES, output=str(output)).judged == 5
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*.parquet")} == tables
    assert "Back-test of rules" in (output / "backtest.html").read_text()
    lines.segment(log, recorded(RULES, MESSAGES[:2]), name="more-1-1")
    assert judged(log, RULES, output=str(output)).judged == 7
    assert len(list(output.rglob("*.parquet"))) == 3, "tables of the earlier listing are removed"


def test_the_pages_of_a_report_and_of_a_back_test_link_to_each_other(tmp_path: Path) -> None:
    log, output = written(tmp_path / "log", RULES, MESSAGES), tmp_path / "out"
    link = '<a href="backtest.html">'
    report(Request(str(log), str(output)))
    assert link not in (output / "report.html").read_text()
    judged(log, RULES, output=str(output))
    assert link in (output / "report.html").read_text()
    assert '<a href="report.html">' in (output / "backtest.html").read_text()
    report(Request(str(log), str(output)))
    assert link in (output / "report.html").read_text()
    assert not [page for page in (output / "pages").iterdir() if "backtest.html" in page.read_text()]


def test_the_command_prints_text_markdown_and_statuses(tmp_path: Path) -> None:
    log = written(tmp_path / "log", RULES, MESSAGES)
    (tmp_path / "next.yaml").write_text(RULES.replace("1000", "3000"))
    common = ("backtest", str(tmp_path / "next.yaml"), "--input", str(log))
    text = oxproxy_here(*common)
    assert (text.returncode, text.stderr) == (0, "")
    assert "vhost /, exchange x: judged 5, equal 3, different 2, unroutable 1, not judged 0" in text.stdout
    assert "newly unroutable, from exchange x in vhost /: 1 publish\n" in text.stdout
    markdown = oxproxy_here(*common, "--format", "markdown", "--fail-over", "1")
    assert markdown.returncode == 1
    assert "| `/` | `x` | 5 | 3 | 2 | 1 | 0 |" in markdown.stdout
    assert oxproxy_here(*common, "--fail-over", "2").returncode == 0


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "next.yaml").write_text(RULES)
    result = oxproxy_here("backtest", str(tmp_path / "next.yaml"), "--input", str(tmp_path / "none"))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert "no such directory" in result.stderr
    bad = oxproxy_here("backtest", str(tmp_path / "missing.yaml"), "--input", str(tmp_path), "--output", "out")
    assert (bad.returncode, bad.stderr.count("\n")) == (2, 1)
    assert not Path("out").exists()


def test_an_empty_log_is_judged(tmp_path: Path) -> None:
    assert judged(tmp_path, RULES).judged == 0


def test_records_of_facts_are_valid_lines_for_the_report(tmp_path: Path) -> None:
    log = written(tmp_path / "log", RULES, MESSAGES)
    done = oxproxy_here("report", "--input", str(log), "--output", str(tmp_path / "report"), "--json")
    summary = json.loads(done.stdout)
    assert (summary["publishes"], summary["rejected"]) == (5, {})


def test_two_runs_at_once_have_the_same_result(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for hour in range(5):
        lines.segment(log, recorded(RULES, [*MESSAGES, message(f"k{hour}")]), hour=hour)
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(judged, log, RULES, output=str(tmp_path / "out")) for _ in range(4)]
        assert [run.result().equal for run in runs] == [30] * 4
    assert not [path for path in (tmp_path / "out").rglob("_*") if path.is_file() and path.name != "_lock"]


def test_spark_judges_a_log_on_any_file_system(
    session: LazySession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    for hour in range(3):
        lines.segment(log, recorded(RULES, [*MESSAGES, message(f"k{hour}")]), hour=hour)
    rules = RULES.replace("1000", "3000")
    local = asdict(judged(log, rules))
    # With this variable, all files are accessed through Hadoop, as on a cluster.
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setattr(backtest_job, "LazySession", lambda _: nullcontext(session))
    found = asdict(judged(log, rules, output=str(tmp_path / "out")))
    assert found.pop("page") == f"file:{tmp_path}/out/backtest.html"
    assert local.pop("page") == ""
    assert local.pop("evaluations") > 0 < found.pop("evaluations")
    assert found == local


# -- any rules, messages and changes ------------------------------------------------------------------------------


_CONDITIONS = (
    '"x-?hkv= region": eu', '"x-?hkv= region": us', '"x-?hkex": amount', '"x-?hk!ex": region',
    '"x-?hkv>= amount": 1000',
    '"x-?pr= type": order', '"x-?prex": app_id', '"x-?rkta": "order.*"', '"x-?rk=": k', '"x-delq-ontrue": b',
    '"x-addq-onfalse": c', '"x-stop-ontrue": ""', '"x-?pr= message_id": m1',
)  # fmt: skip
_bindings = st.builds(
    lambda queue, match, conditions: (
        f"      - {{queue: {queue}, arguments: {{{', '.join([f'x-match: {match}', *conditions])}}}}}"
    ),
    st.sampled_from("abc"),
    st.sampled_from(("all", "any")),
    st.lists(st.sampled_from(_CONDITIONS), max_size=3, unique=True),
)
_files = st.builds(
    lambda bindings, arguments, more: "\n".join(
        [
            "exchanges:",
            "  - name: x",
            "    delivery: queue",
            f"    arguments: {{{arguments}}}",
            more,
            "    bindings:",
            *bindings,
        ]
    ),
    st.lists(_bindings, min_size=1, max_size=5, unique=True),
    st.sampled_from(("", "min-payload-size-silent: 3", "alternate-exchange: amq.fanout")),
    st.sampled_from(("", "    unmatched: pass")),
)
_headers = st.lists(
    st.sampled_from(
        (EU, LARGE, (b"region", Value("S", b"us")), (b"amount", Value("l", 5)), (b"other", Value("V", None)))
    ),
    max_size=3,
    unique_by=lambda entry: entry[0],
)
_messages = st.builds(
    lambda key, headers, body, properties: (key, tuple(headers), body, properties),
    st.sampled_from(("k", "order.a", "")),
    _headers,
    st.sampled_from((b"", b"body")),
    st.fixed_dictionaries({}, optional={"type": st.sampled_from((b"order", b"x")), "app_id": st.just(b"a")}),
)


def results(made: Iterable[str]) -> dict[str, Result]:
    """Return the recorded results by message id."""
    found = {}
    for record in map(json.loads, made):
        if record["kind"] == "publish":
            names = (tuple(sorted(record[key])) for key in ("queues", "exchanges", "remotes"))
            queues, exchanges, remotes = names
            violates = tuple(sorted(record.get("violates", ())))
            failed = record["reason"] == "translation_failed"
            more = (violates, record.get("alternate"), failed)
            found[record["message_id"]] = Result(record["outcome"], queues, exchanges, remotes, *more)
    return found


@pytest.mark.timeout(300)
@settings(max_examples=60, deadline=None)
@given(_files, _files, st.lists(_messages, min_size=1, max_size=8))
def test_a_back_test_predicts_what_the_relay_does(before: str, after: str, messages: list[Message]) -> None:
    try:
        compiled = [compile_rules([("r", text.encode())]) for text in (before, after)]
    except ConfigErrors:
        return
    old, new = recorded(before, messages), recorded(after, messages)
    with TemporaryDirectory() as folder:
        lines.segment(Path(folder), old)
        found, same = judged(Path(folder), after), judged(Path(folder), before)
    assert (same.equal, same.different, same.not_judged) == (len(messages), 0, 0)
    known, wanted = (loaded.routers["/"].interest(b"x") for loaded in compiled)
    assert known.headers is not None
    assert wanted.headers is not None
    if wanted.headers <= known.headers and wanted.properties - {"message_id"} <= known.properties:
        assert found.judged == len(messages)
        was, is_now = results(old), results(new)
        expected = Counter((was[name], is_now[name]) for name in was if was[name] != is_now[name])
        assert found.equal == sum(was[name] == is_now[name] for name in was)
        assert expected == {
            (Result(**row["recorded"]), Result(**row["candidate"])): row["publishes"] for row in found.differences
        }
    else:
        assert found.judged == 0
