"""From what the configuration says to a log that is written that way."""

from __future__ import annotations

import gzip
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.audit.opening import AuditRequest, open_audit
from proxy.errors import ConfigError
from proxy.relay.counters import AuditCounters


def request(directory: Path) -> AuditRequest:
    return AuditRequest(directory, "best_effort", False, "one", 1, 1, 300.0, None, None, ["to"], [], b"")


def only_segment(directory: Path) -> Path:
    (found,) = directory.rglob("audit-*.jsonl.gz")
    return found


async def test_a_line_that_is_appended_stands_in_a_closed_segment_at_the_end(tmp_path: Path) -> None:
    counters = AuditCounters()
    writer, journal = open_audit(request(tmp_path), counters, lambda: "v1", time.time)
    await writer.start()
    template = journal.template(b"letters", "routed", [b"a"], [], ["to a"], None)
    origin = journal.origin("c1", "guest", "/", 1)
    journal.append((journal.opening() + origin + "1" + template.ending(b"k", b"m", 3, "{}")).encode())
    journal.settle("c1", 1, 1, "acked", 12.5)
    await writer.close(5.0)
    segment = only_segment(tmp_path)
    publish, settle = [json.loads(line) for line in gzip.decompress(segment.read_bytes()).splitlines()]
    assert (publish["exchange"], publish["queues"], publish["rules"], publish["bindings"]) == (
        "letters",
        ["a"],
        "v1",
        ["to a"],
    )
    assert (settle["result"], settle["confirm_us"]) == ("acked", 12.5)
    assert counters.lines == 2


async def test_only_strict_mode_makes_confirms_wait(tmp_path: Path) -> None:
    modes = {}
    for mode in ("best_effort", "backpressure", "strict"):
        writer, _ = open_audit(replace(request(tmp_path), mode=mode), AuditCounters(), lambda: "", time.time)
        modes[mode] = writer.strict
    assert modes == {"best_effort": False, "backpressure": False, "strict": True}


async def test_a_hash_without_a_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="key"):
        open_audit(replace(request(tmp_path), hashed=["rk"]), AuditCounters(), lambda: "", time.time)


async def test_without_a_name_the_host_gives_it(tmp_path: Path) -> None:
    writer, journal = open_audit(replace(request(tmp_path), instance=None), AuditCounters(), lambda: "", time.time)
    await writer.start()
    journal.settle("c1", 1, 1, "acked")
    await writer.close(5.0)
    segment = only_segment(tmp_path)
    assert json.loads(gzip.decompress(segment.read_bytes()))["proxy"]
