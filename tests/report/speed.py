"""Measures time, memory and CPU of reports: ``python -m tests.report.speed DIRECTORY [COPIES...]``.

A day of two million records is written to the directory in the given numbers of copies, each from different sidecars; 0
means a day of seven records. For each number, ``oxproxy report`` runs on two cores: from scratch, after an additional
hour from the same number of sidecars, and without new segments. Memory and CPU time include Java, the tasks' Python
processes, and the driver; shared memory counts for each process.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.report.generator import Day
from tests.sidecar import PROGRAM

RECORDS, FEW_RECORDS = 2_000_000, 7
#: The additional hour.
NEW_HOUR = "hour=07"
SAMPLE_SECONDS = 0.1
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


def copies(folder: Path, count: int) -> Path:
    """Write this number of copies of a day, and return their directory."""
    first, made = folder / "day-1", folder / f"day-{count}"
    if made.exists():
        return made
    if count == 0:
        Day(FEW_RECORDS, dirty=False).write(made)
        return made
    if not first.exists():
        Day(RECORDS, dirty=False).write(first)
    if count > 1:
        for number in range(count):
            copy(sorted(first.rglob("*.gz")), first, made, f"edge{number}-")
    return made


def copy(segments: Iterable[Path], source: Path, target: Path, sidecar: str) -> int:
    """Copy segments under the names of other sidecars, and return the number of publishes."""
    publishes = 0
    for path in segments:
        text = gzip.decompress(path.read_bytes())
        placed = target / path.relative_to(source).with_name(path.name.replace("edge-", sidecar))
        placed.parent.mkdir(parents=True, exist_ok=True)
        placed.write_bytes(gzip.compress(text.replace(b"edge-", sidecar.encode()), 3))
        publishes += text.count(b'"kind":"publish"')
    return publishes


def measure(folder: Path, output: Path, count: int) -> None:
    """Create the reports and print their cost."""
    shutil.rmtree(output, ignore_errors=True)
    records = count * RECORDS or FEW_RECORDS
    first = copies(folder.parent, min(count, 1))
    hour = sorted(first.rglob(f"{NEW_HOUR}/*.gz"))
    try:
        for state in ("from scratch", "a new hour", "nothing new"):
            if state == "a new hour":
                records += sum(copy(hour, first, folder, f"late{number}-") for number in range(count))
            seconds, peak, spent, output_text = reported(folder, output)
            assert output_text.startswith(f"{records:,} publishes"), output_text
            cost = f"{seconds:.1f} s, at most {peak >> 20} MiB, {spent:.1f} s of CPU"
            print(f"{records:>10} records, {state}: {cost}", flush=True)
    finally:
        for path in folder.rglob("audit-late*"):
            path.unlink()


def reported(folder: Path, output: Path) -> tuple[float, int, float, str]:
    """Create a report. Return the elapsed seconds, the peak size in bytes, the CPU seconds, and the output."""
    command = [str(PROGRAM), "report", "--input", str(folder), "--output", str(output), "--master", "local[2]"]
    begin, peak, spent = time.monotonic(), 0, dict[int, float]()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            size = 0
            for pid in family(process.pid):
                with contextlib.suppress(OSError):  # the process has ended
                    resident, spent[pid] = used(pid)
                    size += resident
            peak = max(peak, size)
            time.sleep(SAMPLE_SECONDS)
        took = time.monotonic() - begin
        return took, peak, sum(spent.values()), process.stdout.read() if process.stdout else ""


def family(process: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    yield process
    with contextlib.suppress(OSError):
        for task in list(Path(f"/proc/{process}/task").iterdir()):
            for child in (task / "children").read_text().split():
                yield from family(int(child))


def used(process: int) -> tuple[int, float]:
    """Return the resident size in bytes and the CPU seconds of a process."""
    stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(stat[21]) * _PAGE, (int(stat[11]) + int(stat[12])) / _TICKS


if __name__ == "__main__":
    place = Path(sys.argv[1])
    for wanted in map(int, sys.argv[2:] or ["1"]):
        measure(copies(place, wanted), place / "report", wanted)
