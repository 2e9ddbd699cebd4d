"""Measures how long publishes wait while rules are reloaded or metrics are read, with single publishes and confirms.

The result is the longest confirm latency. It includes delays caused by other activity on the machine, since broker and
producer use the same cores. For comparison, the longest latency is also measured in an equally long period afterwards.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests import client
from tests.bench import arrangement
from tests.bench.arena import Arena
from tests.bench.cases import MANY, Row
from tests.bench.processes import ChildError
from tests.bench.publishes import plain_headers
from tests.producer import Producer
from tests.sidecar import Sidecar

RELOADS = 5
DEADLINE_SECONDS = 30.0
#: Reads the page, and prints the number of bindings on the page.
SCRAPE_CODE = """
import sys, urllib.request
with urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics", timeout=30) as page:
    print(page.read().count(b"\\noxproxy_binding_matches_total{"))
"""
#: A publish that reaches no queue.
PUBLISH = client.publish(
    1,
    b"bench.load",
    arrangement.NOWHERE.encode(),
    plain_headers(arrangement.NOWHERE),
    b"0123456789" * 10,
    {"content_type": b"application/json", "delivery_mode": 1},
)
PAUSE_ROWS = (
    Row("reload", "longest confirm latency while 10,000 bindings reload", "ms", 20, at_least=False),
    Row("reload", "the same in an equal period without a reload", "ms", None, at_least=False),
)

SCRAPES = 20
#: Permits a series for each of the 10,000 bindings.
SCRAPED_SETTINGS = {"metrics": {"bindings": MANY}}
SCRAPE_ROWS = (
    Row("metrics", "longest confirm latency while /metrics is read, 10,000 bindings", "ms", 10, at_least=False),
    Row("metrics", "the same in an equal period without reads", "ms", None, at_least=False),
)


def measure_pause(arena: Arena) -> list[list[float]]:
    """Return the values of `PAUSE_ROWS`: the longest time from publish to confirm, for each reload."""
    rules = arrangement.many_rules(arena.folder).rename(arena.folder / "reloaded.yaml")
    return reloaded_and_still(arena.start_sidecar("sidecar that reloads", rules), rules, RELOADS)


def reloaded_and_still(sidecar: Sidecar, rules: Path, times: int) -> list[list[float]]:
    with Producer(sidecar.port).open(confirm=True) as producer:
        confirm_seconds(producer)
        return compared(producer, lambda: longest_ms(producer, rules, sidecar), times)


def compared(producer: Producer, measure: Callable[[], float], times: int) -> list[list[float]]:
    """Return the results of `measure`, and the longest latency in ms in an equal period after each call, to compare."""
    found: list[list[float]] = [[], []]
    for _ in range(times):
        begin = time.monotonic()
        found[0].append(measure())
        now = time.monotonic()
        end, longest = now + (now - begin), 0.0
        while time.monotonic() < end:
            longest = max(longest, confirm_seconds(producer))
        found[1].append(longest * 1e3)
    return found


def longest_ms(producer: Producer, rules: Path, sidecar: Sidecar) -> float:
    """Request a reload, and publish until it is done; return the longest confirm latency."""
    before = reloads(sidecar.log)
    with rules.open("a") as file:
        file.write(f"# after {before} reloads\n")
    deadline = time.monotonic() + DEADLINE_SECONDS
    os.kill(sidecar.process_id, signal.SIGHUP)
    longest = 0.0
    while reloads(sidecar.log) == before:
        if time.monotonic() > deadline:
            raise ChildError(f"no reload within {DEADLINE_SECONDS:g} s")
        longest = max(longest, *(confirm_seconds(producer) for _ in range(10)))
    # The cleanup after a reload is included.
    longest = max(longest, *(confirm_seconds(producer) for _ in range(100)))
    return longest * 1e3


def measure_scrape(arena: Arena) -> list[list[float]]:
    """Return the values of `SCRAPE_ROWS`: the longest time from publish to confirm, for each scrape."""
    rules = arrangement.many_rules(arena.folder).rename(arena.folder / "scraped.yaml")
    sidecar = arena.start_sidecar("sidecar that is scraped", rules, SCRAPED_SETTINGS)
    with Producer(sidecar.port).open(confirm=True) as producer:
        confirm_seconds(producer)
        return compared(producer, lambda: scraped_ms(producer, sidecar.admin_port), SCRAPES)


def scraped_ms(producer: Producer, admin_port: int) -> float:
    """Publish while another process reads the metrics; return the longest confirm latency."""
    longest = 0.0
    # The metrics are read in a separate process, since a thread in this process would delay the producer.
    with subprocess.Popen([sys.executable, "-c", SCRAPE_CODE, str(admin_port)], stdout=subprocess.PIPE) as scrape:
        while scrape.poll() is None:
            longest = max(longest, *(confirm_seconds(producer) for _ in range(10)))
        series = int(scrape.stdout.read()) if scrape.stdout is not None else 0
    if series < MANY:
        raise ChildError(f"got {series} series of bindings, expected {MANY}")
    return longest * 1e3


def confirm_seconds(producer: Producer) -> float:
    begin = time.perf_counter()
    producer.send(PUBLISH)
    producer.expect("Basic.Ack")
    return time.perf_counter() - begin


def reloads(log: Path) -> int:
    """Return the number of reloads in the log."""
    text = log.read_text(errors="replace")
    if "reload failed" in text:
        raise ChildError(f"a reload failed: {text[-600:]}")
    return text.count("event=reloaded")
