"""Measures how long the sidecar blocks its event loop while the metrics page is read.

Runs in this process, without a broker: another process scrapes an admin server with a series for each of 10,000
bindings, and a task measures the CPU time that the process uses in each turn of the event loop. Unlike the longest
confirm in `pauses`, the result includes no activity of the broker or other processes.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from time import process_time

import uvloop

from proxy.admin.server import AdminServer
from proxy.app.reload import traffic_labels
from proxy.observe.exposition import Exposition
from proxy.relay.counters import Counters
from proxy.rules.loader import load_rules
from tests.bench import arrangement
from tests.bench.arena import Arena
from tests.bench.cases import MANY, Row
from tests.bench.pauses import SCRAPE_CODE, SCRAPES
from tests.bench.processes import ChildError

HELD = Row("metrics", "CPU time for which that page holds the event loop", "ms", 10, at_least=False)
HELD_ROWS = (HELD,)


async def longest_turn_seconds(counters: Counters) -> tuple[float, int]:
    """Let the page be read once; return the longest turn, and the number of bindings' series on the page."""
    admin = AdminServer(Exposition(counters), list, dict)
    try:
        _, port = await admin.start("127.0.0.1", 0)
        code = (sys.executable, "-c", SCRAPE_CODE, str(port))
        reader = await asyncio.create_subprocess_exec(*code, stdout=asyncio.subprocess.PIPE)
        reading = asyncio.ensure_future(reader.communicate())
        longest, before = 0.0, process_time()
        while not reading.done():
            await asyncio.sleep(0)
            now = process_time()
            longest, before = max(longest, now - before), now
        return longest, int(reading.result()[0])
    finally:
        await admin.stop()


def measure_turns(arena: Arena) -> list[list[float]]:
    """Return the values of `HELD_ROWS`: the longest turn during each scrape, in milliseconds."""
    loaded = load_rules([arrangement.many_rules(arena.folder).rename(arena.folder / "turns.yaml")])
    counters = Counters(MANY)
    counters.traffic.name(traffic_labels(counters, loaded))
    gc.collect()
    gc.freeze()  # as the sidecar does when it is ready
    found = []
    try:
        for _ in range(SCRAPES):
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                seconds, series = runner.run(longest_turn_seconds(counters))
            if series < MANY:
                raise ChildError(f"seen {series} series of bindings, expected {MANY}")
            found.append(seconds * 1e3)
    finally:
        gc.unfreeze()
    return [found]
