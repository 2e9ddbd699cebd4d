"""Measures how long publishes wait while rules are reloaded or metrics are read, with single publishes and confirms.

The result is the longest confirm. It includes other activity on the machine, since broker and producer use the same
cores. The longest confirm in a period of the same length directly afterwards shows the share of this activity.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench import arrangement
from tests.bench.arena import Arena
from tests.bench.cases import MANY, Row
from tests.bench.link import Link
from tests.bench.memory import expect_settled
from tests.bench.processes import ChildError
from tests.bench.publishes import content_header, frame, publish_method
from tests.private_broker import free_port

NAME = "sidecar that reloads"
RELOADS = 5
DEADLINE_SECONDS = 30.0
#: Reads the page, and prints the number of bindings on the page.
SCRAPE_CODE = """
import sys, urllib.request
with urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics", timeout=30) as page:
    print(page.read().count(b"\\noxproxy_binding_matches_total{"))
"""
BODY = b"0123456789" * 10

PAUSE = Row("reload", "longest confirm while 10,000 bindings reload", "ms", 20, at_least=False)
STILL = Row("reload", "the same in as long a time without a reload", "ms", None, at_least=False)
PAUSE_ROWS = (PAUSE, STILL)

SCRAPED_NAME = "sidecar that is scraped"
SCRAPES = 20
#: Permits a series for each of the 10,000 bindings.
SCRAPED_SETTINGS = f"metrics: {{bindings: {MANY}}}\n"

SCRAPE = Row("metrics", "longest confirm while /metrics is read, 10,000 bindings", "ms", 10, at_least=False)
UNREAD = Row("metrics", "the same in as long a time without", "ms", None, at_least=False)
SCRAPE_ROWS = (SCRAPE, UNREAD)


def measure_pause(arena: Arena) -> list[list[float]]:
    """Return the values of `PAUSE_ROWS`: the longest time from publish to confirm, for each reload."""
    rules = arrangement.many_rules(arena.folder).rename(arena.folder / "reloaded.yaml")
    port, pid = arena.start_sidecar(NAME, rules)
    log = arena.folder / f"{NAME.replace(' ', '-')}.log"
    with Link("127.0.0.1", port, confirms=True) as link:
        confirm_seconds(link)
        return compared(link, lambda: longest_ms(link, rules, pid, log), RELOADS)


def compared(link: Link, measure: Callable[[], float], times: int) -> list[list[float]]:
    """Return the results of `measure` and, for comparison, the longest confirm in ms in an equal time after each."""
    found: list[list[float]] = [[], []]
    for _ in range(times):
        begin = time.monotonic()
        found[0].append(measure())
        now = time.monotonic()
        end, longest = now + (now - begin), 0.0
        while time.monotonic() < end:
            longest = max(longest, confirm_seconds(link))
        found[1].append(longest * 1e3)
    return found


def longest_ms(link: Link, rules: Path, pid: int, log: Path) -> float:
    """Request a reload, and publish until it is done; return the longest confirm."""
    before = reloads(log)
    with rules.open("a") as file:
        file.write(f"# after {before} reloads\n")
    deadline = time.monotonic() + DEADLINE_SECONDS
    os.kill(pid, signal.SIGHUP)
    longest = 0.0
    while reloads(log) == before:
        if time.monotonic() > deadline:
            raise ChildError(f"no reload within {DEADLINE_SECONDS:g} s")
        longest = max(longest, *(confirm_seconds(link) for _ in range(10)))
    # The cleanup after a reload is included.
    longest = max(longest, *(confirm_seconds(link) for _ in range(100)))
    return longest * 1e3


def measure_scrape(arena: Arena) -> list[list[float]]:
    """Return the values of `SCRAPE_ROWS`: the longest time from publish to confirm, for each scrape."""
    admin_port = free_port()
    rules = arrangement.many_rules(arena.folder).rename(arena.folder / "scraped.yaml")
    port, _ = arena.start_sidecar(SCRAPED_NAME, rules, settings=SCRAPED_SETTINGS, admin_port=admin_port)
    with Link("127.0.0.1", port, confirms=True) as link:
        confirm_seconds(link)
        return compared(link, lambda: scraped_ms(link, admin_port), SCRAPES)


def scraped_ms(link: Link, admin_port: int) -> float:
    """Let another process read the metrics, and publish until it is done; return the longest confirm."""
    longest = 0.0
    # A separate process, since a thread in this process would delay the producer.
    with subprocess.Popen([sys.executable, "-c", SCRAPE_CODE, str(admin_port)], stdout=subprocess.PIPE) as scrape:
        while scrape.poll() is None:
            longest = max(longest, *(confirm_seconds(link) for _ in range(10)))
        series = int(scrape.stdout.read()) if scrape.stdout is not None else 0
    if series < MANY:
        raise ChildError(f"seen {series} series of bindings, expected {MANY}")
    return longest * 1e3


def confirm_seconds(link: Link) -> float:
    begin = time.perf_counter()
    method = publish_method("bench.load", arrangement.NOWHERE)
    link.socket.sendall(method + content_header(arrangement.NOWHERE, len(BODY)) + frame(3, BODY))
    expect_settled(link)
    return time.perf_counter() - begin


def reloads(log: Path) -> int:
    """Return the number of reloads in the log."""
    text = log.read_text(errors="replace")
    if "reload failed" in text:
        raise ChildError(f"a reload failed: {text[-600:]}")
    return text.count("event=reloaded")
