"""Tests the audit lines of publishes and settlements."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from proxy.audit.policy import AuditPolicy
from proxy.audit.record import LineRenderer, Privacy, PublishLog
from proxy.audit.writer import AuditWriter
from proxy.relay.counters import AuditCounters


def publish_log(lines: list[bytes], *, ruled_only: bool = False) -> PublishLog:
    renderer = LineRenderer("one", Privacy(frozenset((b"to",))), lambda: "v2")
    return PublishLog(renderer, lambda line, count: lines.append(line), lambda: 0.25, ruled_only=ruled_only)


def test_the_time_is_that_of_the_clock() -> None:
    assert publish_log([]).opening() == '{"ts":"1970-01-01T00:00:00.250000Z'


def test_a_line_contains_the_version_of_the_rules_that_decided() -> None:
    lines: list[bytes] = []
    made = publish_log(lines)
    template = made.template(b"e", "unrouted", (), (), (), "because")
    line = template.line(made.opening() + made.origin("c", "u", "/", 2), 7, b"rk", None, 0, "{}", -1.0)
    record = json.loads(line)
    assert (record["rules"], record["reason"], record["seq"], record["ch"]) == ("v2", "because", 7, 2)


def test_a_settle_record_has_no_exchange() -> None:
    lines: list[bytes] = []
    publish_log(lines).settle("c", 1, 3, "nacked")
    record = json.loads(lines[0])
    assert (record["kind"], record["result"], record["seq"]) == ("settle", "nacked", 3)
    assert "exchange" not in record


def test_scope_and_header_names_are_passed_on() -> None:
    made = publish_log([], ruled_only=True)
    assert made.ruled_only
    assert made.names == {b"to"}


def written(directory: Path) -> list[dict[str, object]]:
    (segment,) = directory.rglob("audit-*.jsonl.gz")
    return [json.loads(line) for line in gzip.decompress(segment.read_bytes()).splitlines()]


async def test_appended_lines_are_in_a_closed_segment(tmp_path: Path) -> None:
    counters = AuditCounters()
    writer = AuditWriter(AuditPolicy(tmp_path, "one"), counters)
    made = PublishLog(LineRenderer("one"), writer.append, lambda: 0.25, ruled_only=False)
    await writer.start()
    template = made.template(b"letters", "routed", [b"a"], [], ["to a"], None)
    begin = made.opening() + made.origin("c1", "guest", "/", 1)
    made.append(template.line(begin, 1, b"k", b"m", 3, "{}", -1.0).encode(), 1)
    made.settle("c1", 1, 1, "acked", 12.5)
    await writer.close(5.0)
    publish, settle = written(tmp_path)
    assert (publish["exchange"], publish["queues"], publish["bindings"]) == ("letters", ["a"], ["to a"])
    assert (settle["result"], settle["confirm_us"]) == ("acked", 12.5)
    assert counters.lines == 2
