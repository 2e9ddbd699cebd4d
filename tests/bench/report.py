"""Reports results: medians over the rounds, a table, and a JSON file with all values."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from oxproxy.native import BUILD
from tests.bench.cases import Round, Row


@dataclass(frozen=True, slots=True)
class Outcome:
    """A row with its value in each round; `failure` is the reason for missing values."""

    row: Row
    values: Sequence[float] = ()
    failure: str = ""

    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.values else None

    @property
    def verdict(self) -> str:
        if self.median is None:
            return "failed"
        return {True: "ok", False: "missed", None: ""}[self.row.reached(self.median)]


def outcome(row: Row, rounds: Iterable[Round], failures: dict[str, str]) -> Outcome:
    """Return a row's outcome for the rounds in which all of its cases have a sample and its base is not zero."""
    values = []
    for measured in rounds:
        try:
            values.append(row.value(measured))
        except (KeyError, ZeroDivisionError):
            continue
    reasons = [failures[case] for case in (*row.cases, *row.pings) if case in failures]
    return Outcome(row, values, reasons[0] if reasons else "")


def number(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    digits = 2 if unit in ("", "x", "s", "us CPU") else 0
    return f"{value:.{digits}f} {unit}".rstrip()


def target(row: Row) -> str:
    if row.target is None:
        return "-"
    return f"{'>=' if row.at_least else '<='} {number(row.target, row.unit)}"


def spread(values: Sequence[float], unit: str) -> str:
    if len(values) < 2:
        return ""
    return f"{number(min(values), unit)} .. {number(max(values), unit)}"


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Format a table with a ruler under the first line. Only the first column is left-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines = [lines[0], ["-" * width for width in widths], *lines[1:]]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def table(outcomes: Iterable[Outcome]) -> str:
    """Return the table of rows with their targets. Each reason for a failure appears once, below the table."""
    lines = [[f"case ({BUILD})", "median", "must reach", "", "lowest .. highest round"]]
    notes: dict[str, None] = {}
    for one in outcomes:
        unit = one.row.unit
        values = [number(one.median, unit), target(one.row), one.verdict, spread(one.values, unit)]
        lines.append([one.row.label, *values])
        if one.failure:
            notes[f"failed: {one.failure}"] = None
    return "\n".join([aligned(lines), *notes])


def rates(rounds: Sequence[Round]) -> str:
    """Return the values used for the ratios: the message rate, and the CPU time per message by process."""
    names = list(dict.fromkeys(name for measured in rounds for name in measured.samples))
    ways = list(dict.fromkeys(way for one in rounds for sample in one.samples.values() for way in sample.cpu_us))
    lines = [["messages per second; CPU us per message", "msg/s", *ways]]
    for name in names:
        samples = [measured.samples[name] for measured in rounds if name in measured.samples]
        per_second = statistics.median(sample.per_second for sample in samples)
        spent = [statistics.median(sample.cpu_us.get(way, 0.0) for sample in samples) for way in ways]
        lines.append([name, f"{per_second:,.0f}", *(f"{one:.2f}" if one >= 0.005 else "-" for one in spent)])
    return aligned(lines) if names else ""


def machine() -> dict[str, object]:
    """Return the properties of the machine that affect the results."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu_model": model,
        "memory_gib": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def write_json(path: Path, command: str, broker: str, outcomes: Iterable[Outcome], rounds: Sequence[Round]) -> None:
    """Write all results, with the date, the machine and the command."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "row": one.row.name,
            "label": one.row.label,
            "unit": one.row.unit,
            "median": one.median,
            "target": one.row.target,
            "at_least": one.row.at_least,
            "verdict": one.verdict,
            "rounds": list(one.values),
            "failure": one.failure,
        }
        for one in outcomes
    ]
    whole = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "machine": machine(),
        "broker": broker,
        "build": BUILD,
        "rows": rows,
        "rounds": [asdict(measured) for measured in rounds],
    }
    path.write_text(json.dumps(whole, indent=1) + "\n")
