"""How long does the report take, and how much memory? `python -m tests.report.speed FOLDER [COPIES...]`.

A day of two million records is written into the folder, in the given numbers of copies, each of sidecars of its own.
For each number one process makes the report twice: cold, from its start, and warm. Memory is the greatest resident
size of the Java virtual machine, whose heap may be a quarter of the machine.
"""

from __future__ import annotations

import gzip
import re
import sys
import time
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


def measure(folder: Path, output: Path, records: int, times: int) -> None:
    """Make the report and print what it cost."""
    begin = time.monotonic()
    request = Request(str(folder), str(output), master="local[2]")
    with session(request) as spark:
        virtual_machine = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
        for state in ("cold", "warm")[:times]:
            published = run(spark, request).figures.publishes
            took = time.monotonic() - begin
            status = Path(f"/proc/{virtual_machine}/status").read_text()
            stat = Path(f"/proc/{virtual_machine}/stat").read_text().rpartition(")")[2].split()
            peak = re.search(r"VmHWM:\s+(\d+)", status)
            assert published == records
            assert peak is not None
            size = sum(path.stat().st_size for path in folder.rglob("*.gz"))
            print(
                f"{records:>10} records, {size >> 20} MiB, {state}: {took:.0f} s, {records / took:,.0f} records/s, "
                f"{int(peak[1]) >> 10} MiB, {(int(stat[11]) + int(stat[12])) / 100:.0f} s of processor in all",
                flush=True,
            )
            begin = time.monotonic()


if __name__ == "__main__":
    place = Path(sys.argv[1])
    for wanted in map(int, sys.argv[2:] or ["1"]):
        measure(copies(place, wanted), place / "report", wanted * RECORDS, 2 if wanted == 1 else 1)
