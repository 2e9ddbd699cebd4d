"""Measures three costs in this process, without a broker.

- Events of the console: all tallies change between two samples. The result is the CPU time of a sample and its event,
  divided by the number of publishes at 50,000 per second, a rate that one process may reach.
- The metrics page: another process scrapes an admin server with a series for each of 10,000 bindings, and a task
  measures the CPU time that the process uses in each iteration of the event loop. Unlike the longest
  confirm latency in `pauses`, the result includes no activity of the broker or other processes.
- The first lookup of an address: each table has 1,000 rules, of which only the last one matches, which is the worst
  case for any order of evaluation. Each address is new, so caches do not help. The result includes the translation to
  another exchange on the same broker.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from time import perf_counter, process_time

import uvloop

from oxproxy.addressing.table import AddressRule, AddressTable
from oxproxy.addressing.targets import AddressBook, Target
from oxproxy.admin.access import Access
from oxproxy.admin.live import QUIET_SECONDS
from oxproxy.admin.server import AdminServer
from oxproxy.admin.traffic import SAMPLE_SECONDS, TrafficSampler
from oxproxy.app.reload import traffic_labels
from oxproxy.observe.exposition import Exposition
from oxproxy.relay.counters import Counters, Tally
from oxproxy.rules.loader import load_rules
from tests.bench import arrangement
from tests.bench.arena import Arena
from tests.bench.cases import ADDRESS_RULES, MANY, MICROSECONDS, Row
from tests.bench.pauses import SCRAPE_CODE, SCRAPES
from tests.bench.processes import ChildError

# -- events of the console ---------------------------------------------------------------------------------------------

PER_SECOND = 50_000
SAMPLES = 50
FEW, MANY_BINDINGS = 10, 500


def events_row(label: str, target: float) -> Row:
    return Row("events", f"CPU per publish at 50,000 per second, {label}", "us CPU", target, at_least=False)


EVENT_ROWS = (
    events_row("events of the console, 10 bindings", 0.1),
    events_row("the same, 500 bindings that all match", 0.1),
    events_row("no clients, 500 bindings", 0.01),
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


def measure_events(_: Arena) -> list[list[float]]:
    rows = ((FEW, True, SAMPLE_SECONDS), (MANY_BINDINGS, True, SAMPLE_SECONDS), (MANY_BINDINGS, False, QUIET_SECONDS))
    return [
        [spent / seconds / PER_SECOND * MICROSECONDS for spent in asyncio.run(sample_seconds(bindings, followed))]
        for bindings, followed, seconds in rows
    ]


# -- the metrics page --------------------------------------------------------------------------------------------------

HELD_ROWS = (Row("metrics", "CPU time for which that page blocks the event loop", "ms", 10, at_least=False),)


async def longest_turn_seconds(counters: Counters) -> tuple[float, int]:
    """Have the page read once; return the CPU time of the longest iteration, and the number of series on the page."""
    admin = AdminServer(Exposition(counters), list, dict, Access())
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
    """Return the values of `HELD_ROWS`: the longest iteration during each scrape, in milliseconds."""
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
                raise ChildError(f"got {series} series of bindings, expected {MANY}")
            found.append(seconds * 1e3)
    finally:
        gc.unfreeze()
    return [found]


# -- lookups of addresses ----------------------------------------------------------------------------------------------

LOOKUPS = 2_000
#: For each kind, the pattern of each rule, and the form of the addresses that match the last rule.
KINDS = {
    "a beginning": ("part.{rule}/*", "part.{rule}/{number}"),
    "an end": ("*.part{rule}", "{number}.part{rule}"),
    "a middle": ("/exchange/%/part.{rule}/*", "/exchange/e{number}/part.{rule}/key"),
    "two runs": ("*.part{rule}.*.done", "a{number}.part{rule}.b.c.done"),
    "one exchange": ("/exchange/e{rule}/*", "/exchange/e{rule}/{number}.error"),
}

MISS_ROWS = (
    Row("miss", "first lookup of an address, 1,000 rules, last matches, slowest kind", "us", 100, at_least=False),
)


def book(kind: str) -> AddressBook:
    pattern, _ = KINDS[kind]
    rules = [AddressRule(pattern.format(rule=rule).encode(), b"/exchange/to/$1") for rule in range(ADDRESS_RULES)]
    return AddressBook(AddressTable(rules))


def publishes(kind: str) -> list[tuple[bytes, bytes]]:
    """Return the exchanges and keys of publishes whose addresses are all of the given kind and all different."""
    found = []
    for number in range(LOOKUPS):
        address = KINDS[kind][1].format(rule=ADDRESS_RULES - 1, number=number)
        exchange, _, key = address.removeprefix("/exchange/").partition("/")
        found.append((exchange.encode(), key.encode()) if address.startswith("/") else (b"", address.encode()))
    return found


def microseconds(kind: str) -> float:
    """Return the mean time of a lookup that is not cached."""
    table, wanted = book(kind), publishes(kind)
    gc.collect()
    begin = perf_counter()
    found = [table.look_up(exchange, key) for exchange, key in wanted]
    took = perf_counter() - begin
    assert all(isinstance(one, Target) and one.rule == ADDRESS_RULES - 1 for one in found)
    return took / LOOKUPS * MICROSECONDS


def measure_miss(_: Arena) -> list[list[float]]:
    """Return the value of `MISS_ROWS`, for the slowest kind."""
    return [[max(map(microseconds, KINDS))]]
