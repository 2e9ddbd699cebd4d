"""How long does the report take, and how much memory? `python -m tests.report.speed FOLDER [COPIES...]`.

A day of two million records is written into the folder, in the given numbers of copies, each of sidecars of its own.
For each number one process makes the report twice: cold, from its start, and with nothing new. Memory and processor
time are those of Java, of the tasks' Python and of this process.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from proxy.report.job import run
from proxy.report.request import Request
from proxy.report.session import session
from tests.report.generator import Day

RECORDS = 2_000_000


def copies(folder: Path, count: int) -> Path:
    """Write a day in so many copies, and give its folder."""
    first, made = folder / "day-1", folder / f"day-{count}"
    if not first.exists():
        Day(RECORDS, dirty=False).write(first)
    if made.exists():
        return made
    for path in sorted(first.rglob("*.gz")):
        text = gzip.decompress(path.read_bytes())
        for number in range(count):
            copy = made / path.relative_to(first).with_name(path.name.replace("edge-", f"edge{number}-"))
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(gzip.compress(text.replace(b"edge-", b"edge%d-" % number), 3))
    return made


def measure(folder: Path, output: Path, records: int) -> None:
    """Make the report and print what it cost."""
    shutil.rmtree(output, ignore_errors=True)
    begin = time.monotonic()
    request = Request(str(folder), str(output), master="local[2]")
    with session(request) as spark:
        for state in ("cold", "nothing new"):
            published = run(spark, request).figures.publishes
            took = time.monotonic() - begin
            assert published == records
            usage = [used(process) for process in family(os.getpid())]
            size = sum(path.stat().st_size for path in folder.rglob("*.gz"))
            peak, spent = (sum(part) for part in zip(*usage, strict=True))
            print(
                f"{records:>10} records, {size >> 20} MiB, {state}: {took:.0f} s, {records / took:,.0f} records/s, "
                f"{int(peak) >> 10} MiB, {spent:.0f} s of processor in all",
                flush=True,
            )
            begin = time.monotonic()


def family(process: int) -> Iterator[int]:
    """Yield a process and all that it has started, directly or not."""
    yield process
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from family(int(child))


def used(process: int) -> tuple[int, float]:
    """Greatest resident size in KiB, and seconds of processor, also of children that have ended."""
    status = Path(f"/proc/{process}/status").read_text()
    stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    peak = re.search(r"VmHWM:\s+(\d+)", status)
    return int(peak[1]) if peak else 0, sum(map(int, stat[11:15])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    place = Path(sys.argv[1])
    for wanted in map(int, sys.argv[2:] or ["1"]):
        measure(copies(place, wanted), place / "report", wanted * RECORDS)
