"""Generates docs/explanation/evidence.md from the result files in docs/evidence.

    python -m deploy.evidence                                     writes the page
    python -m deploy.evidence --tests build/matrix/tests-*.xml    adds results of tests (JUnit XML of pytest)
    python -m deploy.evidence --bench build/bench.json            replaces the results of the benchmark

``page.in.md`` contains the text of the page.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests import pieces
from tests.bench import compare
from tests.bench.report import number
from tests.pieces import ROOT, Piece

PAGE = ROOT / "docs/explanation/evidence.md"
TEMPLATE = Path(__file__).with_name("page.in.md")
RESULTS = ROOT / "docs/evidence"
_CLIENTS = "tests/broker/client_libraries"


def rows(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    table: list[Sequence[object]] = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in table)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|").replace("\n", " ")


def _period(those: Sequence[Piece]) -> str:
    dates = sorted({piece["date"][:10] for piece in those})
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"


def _versions(those: Sequence[Piece]) -> str:
    return ", ".join(dict.fromkeys(f"{piece['version']} ({piece['commit']})" for piece in those))


def faults(found: Sequence[Piece]) -> str:
    counted = ("messages", "acked", "returned", "absent", "copies", "redelivered", "lost with the queue")
    head = ["RabbitMQ", "when", "oxproxy", "pieces", "hours", "faults", "messages", "acked", "returned", "rolled back"]
    lines: list[Sequence[object]] = []
    violations: list[Sequence[object]] = []
    kinds = Counter[str]()
    names = ("lost", "duplicated", "misrouted", "changed", "unrecorded", "failed")
    for broker, those in pieces.by(found, "broker").items():
        counts, wrong, happened = (pieces.total(those, key) for key in ("counts", "violations", "faults"))
        hours = f"{sum(piece['seconds'] for piece in those) / 3600:.1f}"
        total = happened.total()
        lines.append(
            [broker, _period(those), _versions(those), len(those), hours, total, *(counts[name] for name in counted)]
        )
        violations.append([broker, *(wrong[name] for name in names)])
        kinds += happened
    summary = rows([*head, "copies", "redelivered", "lost with the queue"], lines)
    by_kind = rows(["fault", "number"], kinds.most_common())
    examples = [
        f"- {broker}: {text[:300]}"
        for piece in found
        for broker in [piece["broker"]]
        for text in piece.get("examples", ())[:2]
    ]
    listed = "\nViolations that were found:\n\n" + "\n".join(map(_quoted, examples)) + "\n" if examples else ""
    return f"{summary}\nViolations:\n\n{rows(['RabbitMQ', *names], violations)}{listed}\n{by_kind}"


def _quoted(text: str) -> str:
    start, _, rest = text.partition(": ")
    return f"{start}: `{' '.join(rest.split()).replace('`', '')}`"


def fuzz(found: Sequence[Piece]) -> str:
    lines = []
    for target, those in pieces.by(found, "target").items():
        for method, same in pieces.by(those, "method").items():
            inputs, seconds, defects = (sum(piece[key] for piece in same) for key in ("inputs", "seconds", "defects"))
            lines.append([target, method, _period(same), _versions(same), inputs, f"{seconds / 60:.0f}", defects])
    return rows(["target", "inputs from", "when", "oxproxy", "inputs", "minutes", "defects"], lines)


def _passed(counts: Mapping[str, int]) -> str:
    text = f"{counts['passed']:,}"
    return f"{text}, {counts['failed']} failed" if counts["failed"] else text


def matrix(found: Sequence[Piece]) -> str:
    latest = {piece["suite"]: piece for piece in found}.values()
    groups = list(
        dict.fromkeys(group for piece in latest for group in piece["tests"] if not group.startswith(_CLIENTS))
    )
    lines = [
        [
            piece["suite"],
            _period([piece]),
            _versions([piece]),
            *(_passed(piece["tests"].get(group, _ABSENT)) for group in groups),
        ]
        for piece in latest
    ]
    return rows(["broker", "when", "oxproxy", *(f"`{group}`" for group in groups)], lines)


_ABSENT: Mapping[str, int] = {"passed": 0, "failed": 0}


def libraries(found: Sequence[Piece]) -> str:
    latest = {piece["suite"]: piece for piece in found}
    names = sorted({group for piece in latest.values() for group in piece["tests"] if group.startswith(_CLIENTS)})
    lines = [
        [
            name.rpartition("/test_")[2].removesuffix(".py"),
            *(_passed(piece["tests"].get(name, _ABSENT)) for piece in latest.values()),
        ]
        for name in names
    ]
    return rows(["client", *latest], lines)


def model(cpu: str) -> str:
    """Return the name of a CPU without the words that its vendor adds."""
    return re.sub(r"\((R|TM)\)| Processor| CPU", "", cpu)


def comparison(found: Sequence[Piece]) -> str:
    piece = found[-1]
    where = (
        f"{_period([piece])}, oxproxy {_versions([piece])}, {piece['build']} build, RabbitMQ {piece['broker']}, "
        f"HAProxy {piece['haproxy']}, {piece['cpus']} CPUs ({model(piece['cpu'])}), Python {piece['python']}, "
        f"{piece['rounds']} rounds, load average before the run {piece['load']}.\n\n"
    )
    head, *lines = compare.table(piece["rows"])
    worse = compare.behind(piece["rows"])
    listed = "".join(f"- {other}: {'; '.join(labels)}\n" for other, labels in worse.items()) or "Nothing.\n"
    return f"{where}{rows(head, lines)}\nWorse in every round than:\n\n{listed}"


def bench(found: Sequence[Piece]) -> str:
    piece = found[-1]
    machine = piece["machine"]
    where = (
        f"{piece['date'][:10]}, {piece['broker']}, {piece['build']} build, {machine['cpus']} CPUs "
        f"({model(machine['cpu_model'])}), Python {machine['python']}.\n\n"
    )
    lines = [
        [
            row["label"],
            number(row["median"], row["unit"]),
            f"{number(row['low'], row['unit'])} .. {number(row['high'], row['unit'])}",
        ]
        for row in piece["rows"]
    ]
    return where + rows(["case", "median", "lowest .. highest round"], lines)


#: Tables of the page: the result file, and the function that formats its pieces.
_TABLES: Mapping[str, tuple[str, Callable[[Sequence[Piece]], str]]] = {
    "faults": ("faults", faults),
    "fuzz": ("fuzz", fuzz),
    "tests": ("tests", matrix),
    "clients": ("tests", libraries),
    "compare": ("compare", comparison),
    "bench": ("bench", bench),
}


def page(results: Path = RESULTS) -> str:
    """Return the page."""
    text = TEMPLATE.read_text()
    for name, (file, tables) in _TABLES.items():
        found = pieces.read(results / f"{file}.json")
        text = text.replace(f"{{{name}}}\n", tables(found) if found else "No result is recorded yet.\n")
    return text


def tests_of(path: Path) -> Piece:
    """Return the piece for a JUnit XML file of pytest: numbers of tests by directory, and by client library."""
    suite = ElementTree.parse(path).getroot().find("testsuite")
    assert suite is not None, f"{path}: no testsuite"
    counts: dict[str, dict[str, int]] = {}
    for case in suite.iter("testcase"):
        parts = case.attrib["classname"].split(".")
        group = "/".join(parts[:2])
        if "/".join(parts).startswith(_CLIENTS):
            group = "/".join(parts[:4]) + ".py"
        bad = case.find("failure") is not None or case.find("error") is not None
        result = "failed" if bad else "skipped" if case.find("skipped") is not None else "passed"
        counts.setdefault(group, {"passed": 0, "failed": 0, "skipped": 0})[result] += 1
    date = datetime.fromisoformat(suite.attrib["timestamp"]).astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ")
    seconds = round(float(suite.attrib["time"]))
    return pieces.origin() | {"date": date, "suite": suite.attrib["name"], "seconds": seconds, "tests": counts}


def bench_of(path: Path) -> Piece:
    """Return the piece for the results of the benchmark, without those of single rounds."""
    whole: dict[str, Any] = json.loads(path.read_text())
    kept = {key: whole[key] for key in ("date", "command", "machine", "broker", "build")}
    measured = [row for row in whole["rows"] if row["rounds"]]
    return kept | {
        "rows": [
            {key: row[key] for key in ("label", "unit", "median")}
            | {"low": min(row["rounds"]), "high": max(row["rounds"])}
            for row in measured
        ]
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.evidence", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tests", type=Path, nargs="+", default=(), metavar="FILE")
    parser.add_argument("--bench", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    for path in options.tests:
        pieces.add(RESULTS / "tests.json", tests_of(path))
    if options.bench:
        (RESULTS / "bench.json").unlink(missing_ok=True)
        pieces.add(RESULTS / "bench.json", bench_of(options.bench))
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
