"""Compares oxproxy with RabbitMQ itself, HAProxy, and a relay that only copies: ``python -m tests.bench.compare``.

Each message is routed to one of ten queues. oxproxy and RabbitMQ select the queue by a header, with the same bindings:
an open exchange in the sidecar, and a headers exchange on the broker. HAProxy in TCP mode and the relay
(``tests.bench.copying_relay``) only pass bytes to a direct exchange, so they are the minimum cost of a process between
producer and broker.

In each round, all subjects are measured in turn, and a ratio compares values of one round. Latencies are measured
before the cases at full speed, which make confirms slower for some seconds. The publish of 1 GiB and the idle
connections have their own brokers and processes, since memory that was used before would hide an increase.

If the limit on open files permits fewer than 10,000 connections, their memory is calculated from as many as it permits.

Exit status: 0 if everything was measured, 2 if HAProxy or RabbitMQ is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests import pieces
from tests.bench import arrangement, memory, report
from tests.bench.arena import Arena, Terms, haproxy_program
from tests.bench.cases import (
    CASES,
    HEADERS_EXCHANGE,
    HEADERS_THOUSAND_EXCHANGE,
    MICROSECONDS,
    THOUSAND_EXCHANGE,
    Case,
    Row,
    Way,
    kind,
    real,
    routing_key,
)
from tests.bench.cycles import cycle, per_second
from tests.bench.processes import ROOT, ChildError, LoadProcess, cpu_seconds
from tests.pieces import Piece
from tests.private_broker import BrokerMissing, PrivateBroker

OXPROXY, RABBITMQ, HAPROXY, RELAY = "oxproxy", "RabbitMQ", "HAProxy", "copying relay"
_DIFFERS = ("message_id", "header")
SUBJECTS: Mapping[str, Case] = {
    OXPROXY: real("compare-oxproxy", Way.RULES, _DIFFERS),
    RABBITMQ: real("compare-rabbitmq", Way.BROKER, _DIFFERS, HEADERS_EXCHANGE),
    HAPROXY: CASES["real-haproxy"],
    RELAY: CASES["real-copying"],
}
THOUSAND_SUBJECTS: Mapping[str, Case] = {
    OXPROXY: real("thousand-oxproxy", Way.RULES, _DIFFERS, THOUSAND_EXCHANGE),
    RABBITMQ: real("thousand-rabbitmq", Way.BROKER, _DIFFERS, HEADERS_THOUSAND_EXCHANGE),
}
CONNECTIONS, OTHER_FILES = 10_000, 400
"""Number of idle connections, each of which needs two open files in a relay, and number of other open files."""
LARGE_ROUNDS = 3
PRODUCERS, PER_SECOND, LATENCY_SECONDS = 20, 1_000.0, 4.0
"""Number of connections, publishes per second in total, and duration of each measurement of the latency."""


def row(label: str, unit: str, at_least: bool = False) -> Row:
    return Row("compare", label, unit, None, at_least)


RATE = row("publish rate, 10 bindings", "/s", at_least=True)
RATE_THOUSAND = row("publish rate, 1,000 bindings", "/s", at_least=True)
CPU = row("CPU per message at full speed, without the broker", "us CPU")
CPU_WITH_BROKER = row("CPU per message at full speed, with the broker", "us CPU")
CPU_SLOW = row("CPU per message at 1,000 messages per second, without the broker", "us CPU")
P50 = row("confirm latency at 1,000 messages per second, p50", "us")
P99 = row("confirm latency at 1,000 messages per second, p99", "us")
CYCLES = row("connect, publish one message with confirm, disconnect", "/s", at_least=True)
IDLE = row("memory for 10,000 idle connections, without the broker", "MiB")
IDLE_WITH_BROKER = row("memory for 10,000 idle connections, with the broker", "MiB")
LARGE = row("publish of 1 GiB, until the broker's reply", "s")
LARGE_MEMORY = row("memory for this publish, without the broker", "MiB")
ROWS = (
    RATE,
    RATE_THOUSAND,
    CPU,
    CPU_WITH_BROKER,
    CPU_SLOW,
    P50,
    P99,
    CYCLES,
    IDLE,
    IDLE_WITH_BROKER,
    LARGE,
    LARGE_MEMORY,
)


class Results:
    """The measured values by row and subject, in the order of the rounds."""

    def __init__(self) -> None:
        self._values: dict[Row, dict[str, list[float]]] = {row: {} for row in ROWS}

    def add(self, row: Row, subject: str, value: float) -> None:
        self._values[row].setdefault(subject, []).append(value)

    def rows(self) -> list[Piece]:
        """Return the rows with label, unit, whether higher values are better, and values by subject."""
        return [
            {"label": row.label, "unit": row.unit, "higher is better": row.at_least, "values": found}
            for row, found in self._values.items()
        ]


@contextlib.contextmanager
def new_arena(folder: Path, name: str) -> Iterator[Arena]:
    """Yield an arena with a new broker, on which the exchanges of all subjects are declared."""
    inner = folder / name
    inner.mkdir()
    with PrivateBroker() as broker, Arena(broker, inner, Terms()) as arena:
        arrangement.declare_headers_exchanges(broker)
        # The CPU time of the broker is only measured if this way is in use.
        arena.port(Way.BROKER)
        yield arena


def measure_latencies(arena: Arena, rounds: int, results: Results) -> None:
    load: dict[str, object] = {"seconds": LATENCY_SECONDS, "per_second": PER_SECOND}
    with contextlib.ExitStack() as stack:
        publishers = {}
        for subject, case in SUBJECTS.items():
            plan: dict[str, object] = {"port": arena.port(case.way), "exchange": case.shape.exchange, "kind": kind(1)}
            process = LoadProcess(f"latency-{case.name}", arena.folder, plan | {"producers": PRODUCERS}, "publishers")
            publishers[subject] = stack.enter_context(process)
            process.ask(load | {"seconds": 1.0})
        for _ in range(rounds):
            for subject, process in publishers.items():
                pid = arena.process_id(SUBJECTS[subject].way)
                cpu = cpu_seconds(pid)
                found = process.ask(load)
                cpu = cpu_seconds(pid) - cpu
                results.add(P50, subject, found["p50"] * 1_000)
                results.add(P99, subject, found["p99"] * 1_000)
                if subject != RABBITMQ:
                    results.add(CPU_SLOW, subject, cpu / found["publishes"] * MICROSECONDS)


def measure_rates(arena: Arena, rounds: int, results: Results) -> None:
    for case in (*SUBJECTS.values(), *THOUSAND_SUBJECTS.values()):
        arena.producers(case)
    for _ in range(rounds):
        for subject, case in SUBJECTS.items():
            sample = arena.run(case)
            results.add(RATE, subject, sample.per_second)
            results.add(CPU_WITH_BROKER, subject, sum(sample.cpu_us[way] for way in {case.way, Way.BROKER}))
            if subject != RABBITMQ:
                results.add(CPU, subject, sample.cpu_us[case.way])
        for subject, case in THOUSAND_SUBJECTS.items():
            results.add(RATE_THOUSAND, subject, arena.run(case).per_second)


def measure_cycles(arena: Arena, rounds: int, results: Results) -> None:
    headers = {"kind": kind(1)}
    for _ in range(rounds):
        for subject, case in SUBJECTS.items():
            port, exchange = arena.port(case.way), case.shape.exchange
            results.add(CYCLES, subject, per_second(partial(cycle, port, None, exchange, routing_key(1), headers)))


def measure_large(arena: Arena, results: Results) -> None:
    for number in range(LARGE_ROUNDS):
        for subject, case in SUBJECTS.items():
            found = memory.large_message(arena.port(case.way), arena.process_id(case.way), case.shape.exchange)
            results.add(LARGE, subject, found.seconds)
            # Later, a process uses the memory that it already has.
            if number == 0 and subject != RABBITMQ:
                results.add(LARGE_MEMORY, subject, found.kib / 1024)


def measure_idle(arena: Arena, subject: str, count: int, results: Results) -> None:
    way = SUBJECTS[subject].way
    pids = list(dict.fromkeys([arena.process_id(way), arena.broker.process_id]))
    found = [kib / count * CONNECTIONS / 1024 for kib in memory.connections_kib(arena.port(way), pids, count)]
    results.add(IDLE_WITH_BROKER, subject, sum(found))
    if subject != RABBITMQ:
        results.add(IDLE, subject, found[0])


def measure(rounds: int, connections: int) -> Piece:
    """Measure everything, and return the piece for the result file."""
    results, start, load = Results(), time.monotonic(), os.getloadavg()[0]

    def progress(text: str) -> None:
        print(f"{time.monotonic() - start:5.0f} s  {text}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="oxproxy-compare-") as name:
        folder = Path(name)
        with new_arena(folder, "rates") as arena:
            version = ".".join(map(str, arena.broker.version))
            progress("latencies")
            measure_latencies(arena, rounds, results)
            progress("rates")
            measure_rates(arena, rounds, results)
            progress("connections per second")
            measure_cycles(arena, rounds, results)
        with new_arena(folder, "large") as arena:
            progress("publish of 1 GiB")
            measure_large(arena, results)
        for subject in SUBJECTS:
            with new_arena(folder, f"idle-{SUBJECTS[subject].name}") as arena:
                progress(f"idle connections, {subject}")
                measure_idle(arena, subject, connections, results)
    progress("done")
    return pieces.origin() | {
        "broker": version,
        "haproxy": haproxy_version(),
        "cpu": report.machine()["cpu_model"],
        "load": round(load, 2),
        "rounds": rounds,
        "connections": connections,
        "seconds": round(time.monotonic() - start),
        "rows": results.rows(),
    }


def haproxy_version() -> str:
    done = subprocess.run([haproxy_program(), "-v"], capture_output=True, text=True, check=True)
    found = re.search(r"version ([\d.]+)", done.stdout)
    return found[1] if found else ""


def permitted_connections() -> int:
    """Raise the limit on open files, as far as permitted, for this process and its children.

    Returns:
        number of connections that a relay can have, at most `CONNECTIONS`.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS + OTHER_FILES
    files = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return (files - OTHER_FILES) // 2


def ratios(values: Mapping[str, Sequence[float]], other: str) -> list[float]:
    """Return oxproxy's values divided by those of another subject, by round; none if the other has no values."""
    return [ours / theirs for ours, theirs in zip(values[OXPROXY], values.get(other, ()), strict=False) if theirs]


def table(rows: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Return the table as lines of cells, the first of which are the titles: medians, and ratios with their spread."""
    others = [subject for subject in SUBJECTS if subject != OXPROXY]
    lines = [["", *SUBJECTS, *(f"oxproxy / {other}" for other in others)]]
    for row in rows:
        values, unit = row["values"], row["unit"]
        medians = [report.number(statistics.median(values[one]), unit) if one in values else "-" for one in SUBJECTS]
        lines.append([row["label"], *medians, *(_spread(ratios(values, other)) for other in others)])
    return lines


def _spread(found: Sequence[float]) -> str:
    if not found:
        return "-"
    median = f"{statistics.median(found):.2f}"
    return f"{median} ({min(found):.2f} .. {max(found):.2f})" if len(found) > 1 else median


def behind(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return in which rows oxproxy is worse in every round, by the other subject."""
    result: dict[str, list[str]] = {}
    for row in rows:
        for other in SUBJECTS:
            found = ratios(row["values"], other) if other != OXPROXY else []
            if found and (max(found) < 1 if row["higher is better"] else min(found) > 1):
                result.setdefault(other, []).append(row["label"])
    return result


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="of latencies, rates and connections (default 5)")
    parser.add_argument("--result", metavar="FILE", type=Path, default=ROOT / "build" / "compare.json")
    options = parser.parse_args(given)
    # An exit on SIGTERM also ends the child processes, as a KeyboardInterrupt does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        piece = measure(options.rounds, permitted_connections())
    except (BrokerMissing, ChildError) as error:
        print(error, file=sys.stderr)
        return 2
    pieces.add(options.result, piece)
    print(report.aligned(table(piece["rows"])))
    for other, labels in behind(piece["rows"]).items():
        print(f"\nbehind {other} in every round: {'; '.join(labels)}")
    print(f"\n{options.result}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
