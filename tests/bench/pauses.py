"""How long do publishes wait while rules are replaced? One publish at a time, with its confirm, through reloads.

The longest confirm is told, with whatever else the machine did meanwhile in it: broker and producer share its cores.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.bench import arrangement
from tests.bench.arena import Arena
from tests.bench.cases import Row
from tests.bench.link import Link
from tests.bench.memory import expect_settled
from tests.bench.processes import ChildError
from tests.bench.publishes import content_header, frame, publish_method

NAME = "sidecar that reloads"
RELOADS = 5
DEADLINE_SECONDS = 30.0
BODY = b"0123456789" * 10

PAUSE = Row("reload", "longest confirm while 10,000 bindings reload", "ms", 20, at_least=False)
PAUSE_ROWS = (PAUSE,)


def measure_pause(arena: Arena) -> list[list[float]]:
    """The values of `PAUSE_ROWS`: of each reload the longest time from publish to confirm."""
    rules = arrangement.many_rules(arena.folder).rename(arena.folder / "reloaded.yaml")
    port, pid = arena.start_sidecar(NAME, rules)
    log = arena.folder / f"{NAME.replace(' ', '-')}.log"
    with Link("127.0.0.1", port, confirms=True) as link:
        confirm_seconds(link)
        return [[longest_ms(link, rules, pid, log) for _ in range(RELOADS)]]


def longest_ms(link: Link, rules: Path, pid: int, log: Path) -> float:
    """Have the rules reloaded, publish until they are."""
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
    # What is left to do behind a reload counts too.
    longest = max(longest, *(confirm_seconds(link) for _ in range(100)))
    return longest * 1e3


def confirm_seconds(link: Link) -> float:
    begin = time.perf_counter()
    method = publish_method("bench.load", arrangement.NOWHERE)
    link.socket.sendall(method + content_header(arrangement.NOWHERE, len(BODY)) + frame(3, BODY))
    expect_settled(link)
    return time.perf_counter() - begin


def reloads(log: Path) -> int:
    """How many reloads the log tells of."""
    text = log.read_text(errors="replace")
    if "reload failed" in text:
        raise ChildError(f"a reload failed: {text[-600:]}")
    return text.count("event=reloaded")
