"""What the wire gives, as lines."""

from __future__ import annotations

import json
from pathlib import Path

from proxy.audit.opening import PublishLog
from proxy.audit.record import LineRenderer, Privacy
from proxy.audit.writer import AuditPolicy, AuditWriter
from proxy.relay.counters import AuditCounters


def log(folder: Path, lines: list[bytes], *, ruled_only: bool = False) -> PublishLog:
    writer = AuditWriter(AuditPolicy(folder, "one"), AuditCounters())
    made = PublishLog(
        LineRenderer("one", Privacy(frozenset((b"to",)))), writer, lambda: "v2", lambda: 0.25, ruled_only=ruled_only
    )
    made.append = lines.append  # type: ignore[assignment]  # another sink
    return made


async def test_time_is_that_of_the_clock_it_was_given(tmp_path: Path) -> None:
    assert log(tmp_path, []).opening() == '{"ts":"1970-01-01T00:00:00.250000Z'


async def test_the_rules_in_force_when_the_decision_was_made_stand_in_its_lines(tmp_path: Path) -> None:
    lines: list[bytes] = []
    made = log(tmp_path, lines)
    template = made.template(b"e", "unrouted", (), (), (), "because", decide_us=2.5)
    assert template.decide_us == 2.5
    ending = template.ending(b"rk", None, 0, "{}")
    record = json.loads(made.opening() + made.origin("c", "u", "/", 2) + "7" + ending)
    assert (record["rules"], record["reason"], record["seq"], record["ch"]) == ("v2", "because", 7, 2)


async def test_a_settle_record_names_no_exchange(tmp_path: Path) -> None:
    lines: list[bytes] = []
    log(tmp_path, lines).settle("c", 1, 3, "nacked")
    record = json.loads(lines[0])
    assert (record["kind"], record["result"], record["seq"]) == ("settle", "nacked", 3)
    assert "exchange" not in record


async def test_scope_and_names_are_what_was_asked_for(tmp_path: Path) -> None:
    made = log(tmp_path, [], ruled_only=True)
    assert made.ruled_only
    assert made.names == {b"to"}
