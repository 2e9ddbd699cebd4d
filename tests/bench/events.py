"""Measures the cost of the console's events with clients, and of the samples without clients.

Runs in this process, without a broker. All tallies change between two samples. The result is the CPU time of a sample
and its event, divided by the number of publishes at 50,000 per second, a rate that one process may reach.
"""

from __future__ import annotations

import asyncio
import json
from time import process_time

from proxy.admin.live import QUIET_SECONDS
from proxy.admin.traffic import SAMPLE_SECONDS, TrafficSampler
from proxy.relay.counters import Counters, Tally
from tests.bench.arena import Arena
from tests.bench.cases import MICROSECONDS, Row

PER_SECOND = 50_000
SAMPLES = 50
FEW, MANY_BINDINGS = 10, 500


def _row(label: str, target: float) -> Row:
    return Row("events", f"CPU per publish of 50,000 in a second, {label}", "us CPU", target, at_least=False)


EVENT_ROWS = (
    _row("events of the console, 10 bindings", 0.1),
    _row("the same, 500 bindings that all match", 0.1),
    _row("nobody looks, 500 bindings", 0.01),
)


def counted(bindings: int) -> tuple[Counters, list[Tally]]:
    """Return counters with a tally for each binding."""
    names = [f"binding {number}" for number in range(bindings)]
    queues = [b"queue %d" % number for number in range(bindings)]
    counters = Counters(bindings)
    bound = [("/", b"bench", name) for name in names]
    labels = counters.traffic.labels([("/", b"bench")], bound, [("/", queue) for queue in queues])
    counters.traffic.name(labels)
    tallies = [
        counters.traffic.tally("/", b"bench", "routed", ((b"bench", name),), (queue,))
        for name, queue in zip(names, queues, strict=True)
    ]
    return counters, tallies


async def sample_seconds(bindings: int, followed: bool) -> list[float]:
    """Return the CPU seconds of each sample; if `followed` is set, including its event."""
    counters, tallies = counted(bindings)
    sampler = TrafficSampler(counters)
    await sampler.sample(followed)
    spent = []
    for _ in range(SAMPLES):
        for tally in tallies:
            tally.count.publishes += 1
        begin = process_time()
        await sampler.sample(followed)
        if followed:
            json.dumps(sampler.news())
        spent.append(process_time() - begin)
    return spent


def measure_events(_arena: Arena | None = None) -> list[list[float]]:
    rows = ((FEW, True, SAMPLE_SECONDS), (MANY_BINDINGS, True, SAMPLE_SECONDS), (MANY_BINDINGS, False, QUIET_SECONDS))
    return [
        [spent / seconds / PER_SECOND * MICROSECONDS for spent in asyncio.run(sample_seconds(bindings, followed))]
        for bindings, followed, seconds in rows
    ]
