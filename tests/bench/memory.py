"""Measures the sidecar's memory: idle, for an additional connection (idle or hostile), and for a very large message.

The resident set of a new sidecar is read from outside the process.
"""

from __future__ import annotations

import contextlib
import struct
import subprocess
import time
from pathlib import Path

from pamqp import commands

from tests.bench import arrangement
from tests.bench.arena import OXPROXY, Arena
from tests.bench.cases import Row
from tests.bench.link import FRAME_MAX_BYTES, Link, LinkError
from tests.bench.processes import ChildError, memory_kib, reset_peak
from tests.bench.publishes import content_header, frame, publish_method, text_entry

WARM_CONNECTIONS = 20
CONNECTIONS = 200
HOSTILE_CONNECTIONS = 1_000
"""10,000 connections would need 20,000 descriptors on each side, which few machines permit. The memory per connection
does not depend on the number of connections."""
HOSTILE_HEADER_BYTES, HOSTILE_LARGE, HOSTILE_KEYS = 60_000, 4, 64
"""Publishes of each hostile connection: large headers, and keys and values that no other publish has."""
LARGE_BODY_BYTES = 1 << 30
LOAD_RUNS = 3
STEADY_SECONDS = 1.0
STEADY_DEADLINE_SECONDS = 10.0

IDLE = Row("memory", "memory of an idle sidecar", "MiB", 70, at_least=False)
CONNECTION = Row("memory", "memory of one more idle connection", "KiB", 64, at_least=False)
LARGE_PASS = Row("memory", "extra memory for a 1 GiB message, pass-through", "MiB", 16, at_least=False)
LARGE_OPEN = Row("memory", "extra memory for a 1 GiB message, open exchange", "MiB", 16, at_least=False)
LOAD = Row("load", "load a rules file of 10,000 bindings (oxproxy check)", "s", 3, at_least=False)
HOSTILE = Row(
    "hostile", "memory of one more connection that sends large, always different publishes", "KiB", 128, at_least=False
)
IDLE_ROWS = (IDLE, CONNECTION)
HOSTILE_ROWS = (HOSTILE,)
LARGE_PASS_ROWS = (LARGE_PASS,)
LARGE_OPEN_ROWS = (LARGE_OPEN,)
LOAD_ROWS = (LOAD,)


def measure_idle(arena: Arena) -> list[list[float]]:
    """Return the values of `IDLE_ROWS`: the memory of a new sidecar, and of an additional connection."""
    port, pid = arena.start_sidecar("idle sidecar", arrangement.small_rules(arena.folder, arena.broker))
    idle = steady_memory_kib(pid)
    with contextlib.ExitStack() as links:
        for _ in range(WARM_CONNECTIONS):
            links.enter_context(Link("127.0.0.1", port))
        before = steady_memory_kib(pid)
        for _ in range(CONNECTIONS):
            links.enter_context(Link("127.0.0.1", port))
        after = steady_memory_kib(pid)
    return [[idle / 1024], [(after - before) / CONNECTIONS]]


def measure_hostile(arena: Arena) -> list[list[float]]:
    """Return the value of `HOSTILE_ROWS`: the memory of a connection whose publishes defeat all caches."""
    port, pid = arena.start_sidecar(
        "sidecar with hostile producers", arrangement.small_rules(arena.folder, arena.broker)
    )
    with contextlib.ExitStack() as links:
        for number in range(WARM_CONNECTIONS):
            send_hostile(links.enter_context(Link("127.0.0.1", port, confirms=True)), number)
        before = steady_memory_kib(pid)
        for number in range(WARM_CONNECTIONS, WARM_CONNECTIONS + HOSTILE_CONNECTIONS):
            send_hostile(links.enter_context(Link("127.0.0.1", port, confirms=True)), number)
        after = steady_memory_kib(pid)
    return [[(after - before) / HOSTILE_CONNECTIONS]]


def send_hostile(link: Link, number: int) -> None:
    """Publish messages that all differ, and wait until all are confirmed."""
    fill = "x" * (HOSTILE_HEADER_BYTES // HOSTILE_LARGE)
    sizes = [HOSTILE_LARGE] * HOSTILE_LARGE + [0] * HOSTILE_KEYS
    for turn, fillers in enumerate(sizes):
        entries = text_entry("kind", f"kind.{number}.{turn}") + text_entry("trace", f"{number}-{turn}")
        entries += b"".join(text_entry(f"filler-{index}", fill) for index in range(fillers))
        payload = struct.pack(">HHQHL", 60, 0, 0, 0x2000, len(entries)) + entries
        link.socket.sendall(publish_method("bench.hkv-10", f"key.{number}.{turn}") + frame(2, payload))
    confirmed = 0
    while confirmed < len(sizes):
        seen = link.next_frame()
        if not isinstance(seen, commands.Basic.Ack):
            raise LinkError(f"expected an ack, saw {seen!r}")
        confirmed = seen.delivery_tag if seen.multiple else confirmed + 1


def measure_large_pass(arena: Arena) -> list[list[float]]:
    """Return the value of `LARGE_PASS_ROWS`: the increase in a new sidecar's memory during a large publish."""
    return measure_large(arena, "sidecar for a large pass-through", arrangement.NOWHERE)


def measure_large_open(arena: Arena) -> list[list[float]]:
    """Return the value of `LARGE_OPEN_ROWS`: the same for a publish whose content header the sidecar changes."""
    return measure_large(arena, "sidecar for a large open publish", "bench.hkv-10")


def measure_large(arena: Arena, name: str, exchange: str) -> list[list[float]]:
    port, pid = arena.start_sidecar(name, arrangement.small_rules(arena.folder, arena.broker))
    return [[large_message_kib(port, pid, exchange) / 1024]]


def steady_memory_kib(pid: int) -> int:
    """Return the resident set once it has not grown for a second, since the last steps of the start need memory."""
    deadline = time.monotonic() + STEADY_DEADLINE_SECONDS
    seen = memory_kib(pid)
    since = time.monotonic()
    while time.monotonic() < min(since + STEADY_SECONDS, deadline):
        time.sleep(0.1)
        now = memory_kib(pid)
        if now > seen:
            since = time.monotonic()
        seen = now
    return seen


def large_message_kib(port: int, pid: int, exchange: str) -> int:
    """Return by how much the sidecar's memory increases at most while it relays one very large message.

    RabbitMQ receives such a message completely before it refuses the message as larger than its limit (at most 512 MiB,
    regardless of the configuration). A refusal therefore proves, like an ack, that all bytes have been relayed.
    """
    with Link("127.0.0.1", port, confirms=True) as link:
        send_large(link, exchange, body_size_bytes=FRAME_MAX_BYTES)
        expect_settled(link)
        reset_peak(pid)
        before = memory_kib(pid)
        send_large(link, exchange, LARGE_BODY_BYTES)
        expect_settled(link)
        return memory_kib(pid, "VmHWM") - before


def send_large(link: Link, exchange: str, body_size_bytes: int) -> None:
    """Send one publish that reaches no queue. The body consists of one frame that is sent repeatedly."""
    method = publish_method(exchange, arrangement.NOWHERE)
    link.socket.sendall(method + content_header(arrangement.NOWHERE, body_size_bytes))
    largest = FRAME_MAX_BYTES - 8
    whole = frame(3, bytes(largest))
    for _ in range(body_size_bytes // largest):
        link.socket.sendall(whole)
    if rest := body_size_bytes % largest:
        link.socket.sendall(frame(3, bytes(rest)))


def expect_settled(link: Link) -> None:
    seen = link.next_frame()
    refused = isinstance(seen, commands.Channel.Close) and seen.reply_code == 406
    if not refused and not isinstance(seen, commands.Basic.Ack):
        raise LinkError(f"expected an ack or a refusal for its size, saw {seen!r}")


def measure_load(arena: Arena) -> list[list[float]]:
    """Return the values of `LOAD_ROWS`: the elapsed time of `oxproxy check`, including the interpreter's start."""
    path = arrangement.many_rules(arena.folder)
    return [[check_seconds(path) for _ in range(LOAD_RUNS)]]


def check_seconds(path: Path) -> float:
    start = time.perf_counter()
    try:
        done = subprocess.run([OXPROXY, "check", str(path)], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ChildError(f"{OXPROXY} is not installed") from error
    if done.returncode:
        raise ChildError(f"oxproxy check ended with {done.returncode}: {done.stderr.strip()[-600:]}")
    return time.perf_counter() - start
