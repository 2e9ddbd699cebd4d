"""Measures how many lines per second the audit writer accepts continuously: `python -m tests.audit.speed DIRECTORY`.

The lines, of about 330 bytes each, come from a generated day. They are written in `backpressure` mode, so that none is
dropped.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import sys
import time
from pathlib import Path

import structlog

from oxproxy.audit.policy import AuditMode, AuditPolicy
from oxproxy.audit.writer import AuditWriter
from oxproxy.relay.counters import AuditCounters
from tests.report.generator import Day

LINES = 3_000_000
TURN = 1000


def made(folder: Path) -> list[bytes]:
    """Return lines in the form in which a sidecar writes them."""
    Day(100_000, dirty=False).write(folder)
    return [
        line for path in sorted(folder.rglob("*.gz")) for line in gzip.decompress(path.read_bytes()).splitlines(True)
    ]


async def measure(folder: Path) -> None:
    """Write all lines, close the writer, and print both times."""
    writer = AuditWriter(AuditPolicy(directory=folder, instance="speed", mode=AuditMode.BACKPRESSURE), AuditCounters())
    drained = asyncio.Event()
    writer.on_full = lambda full: None if full else drained.set()
    await writer.start()
    lines = made(folder / "made")
    begin = time.monotonic()
    for turn in range(LINES // TURN):
        for line in lines[turn % (len(lines) // TURN) * TURN :][:TURN]:
            writer.append(line)
        while writer.full:
            drained.clear()
            await drained.wait()
        await asyncio.sleep(0)
    written = time.monotonic() - begin
    await writer.close(600)
    closed = time.monotonic() - begin
    print(f"{LINES / written:,.0f} lines/s to the file, {LINES / closed:,.0f} lines/s until compressed and shown")


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    asyncio.run(measure(Path(sys.argv[1])))
