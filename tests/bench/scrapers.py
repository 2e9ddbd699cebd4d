"""Measures confirm latencies of 1,000 producers while clients read /metrics and /livez at full speed.

The clients are two processes of wrk (https://github.com/wg/wrk), one per page, with several connections each.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

from tests.bench import arrangement
from tests.bench.arena import Arena
from tests.bench.cases import RULES_EXCHANGE, Row, kind
from tests.bench.processes import STOP_SECONDS, Child, ChildError, LoadProcess

PRODUCERS, PER_SECOND = 1_000, 2_000.0
"""Number of producers, and their total number of publishes per second."""
SECONDS = 60.0
WARM_UP_SECONDS = 2.0
CONNECTIONS = 16
"""Connections of each wrk; both together are below the limit of the admin address."""
PAGES = ("/metrics", "/livez")


def row(label: str, unit: str, target: float | None = None) -> Row:
    return Row("wrk", label, unit, target, at_least=unit != "ms")


SCRAPER_ROWS = (
    row("p50 of confirms of 1,000 producers while wrk reads /metrics and /livez", "ms"),
    row("the same without wrk", "ms"),
    row("p99 while wrk reads", "ms"),
    row("the same without wrk", "ms"),
    row("longest confirm latency while wrk reads", "ms"),
    row("the same without wrk", "ms"),
    row("publishes confirmed while wrk reads, of 2,000 per second", "/s"),
    row("pages that wrk reads", "/s"),
)


def measure_scrapers(arena: Arena) -> list[list[float]]:
    """Return the values of `SCRAPER_ROWS`."""
    program = shutil.which("wrk")
    if program is None:
        raise ChildError("wrk is not installed")
    sidecar = arena.start_sidecar("sidecar that wrk reads", arrangement.real_rules(arena.folder))
    plan: dict[str, object] = {"port": sidecar.port, "producers": PRODUCERS, "exchange": RULES_EXCHANGE}
    load: dict[str, object] = {"seconds": SECONDS, "per_second": PER_SECOND}
    with LoadProcess("many-producers", arena.folder, plan | {"kind": kind(1)}, "publishers") as producers:
        producers.ask(load | {"seconds": WARM_UP_SECONDS})
        without = producers.ask(load)
        with contextlib.ExitStack() as stack:
            readers = [stack.enter_context(reader(program, sidecar.admin, page, arena.folder)) for page in PAGES]
            during = producers.ask(load)
            pages = sum(pages_per_second(child) for child in readers)
    return [
        *([found[key]] for key in ("p50", "p99", "longest") for found in (during, without)),
        [during["publishes"] / SECONDS],
        [pages],
    ]


def reader(program: str, admin: str, page: str, folder: Path) -> Child:
    """Start wrk, which ends by itself shortly after the producers."""
    duration = f"{SECONDS:.0f}s"
    # Requests beyond the limits of the admin address wait for seconds, so wrk must not give up after two seconds.
    command = [program, "-t1", f"-c{CONNECTIONS}", f"-d{duration}", f"--timeout={SECONDS:.0f}s", admin + page]
    return Child(f"wrk{page.replace('/', '-')}", command, folder)


def pages_per_second(child: Child) -> float:
    """Wait for the end of wrk; return the rate of its requests, all of which must have succeeded."""
    child.process.wait(STOP_SECONDS)
    output = child.tail()
    found = re.search(r"Requests/sec:\s+([\d.]+)", output)
    if found is None or "Non-2xx" in output or "Socket errors" in output:
        raise ChildError(f"{child.name}: {output}")
    return float(found[1])
