from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path

from proxy.audit.record import TimestampText
from proxy.audit.writer import AuditWriter
from proxy.relay.counters import AuditCounters
from tests.audit.test_writer import SECONDS, Disk, policy, records, until


async def test_a_gap_has_the_times_of_the_dropped_records_and_not_of_the_failure(tmp_path: Path) -> None:
    now = 1795247000.0
    disk, counters, text = Disk(), AuditCounters(), TimestampText()
    audit = AuditWriter(policy(tmp_path, flush_seconds=0.001), counters, lambda: now, disk.log)
    await audit.start()
    disk.open.clear()
    audit.append(f'{{"ts":"{text(now)}","n":1}}\n'.encode())
    await asyncio.sleep(0.05)
    disk.refusing.set()  # the disk hangs for a minute, and then reports an error
    now += 60.0
    disk.open.set()
    await until(lambda: counters.dropped == 1)
    disk.refusing.clear()
    await until(lambda: counters.lines == 1)
    await audit.close(SECONDS)
    [gap] = records(tmp_path)
    begin, end = (datetime.fromisoformat(gap[name]).timestamp() for name in ("from", "to"))
    assert (gap["dropped"], begin, end) == (1, now - 60.0, now - 60.0)
