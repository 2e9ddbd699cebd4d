"""Measures the sidecar's memory: idle, for an additional connection (idle or hostile), and for a very large message.

The resident set of a new sidecar is read from outside the process.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pamqp import commands

from oxproxy.amqp.tables import encode_table
from tests import client
from tests.bench import arrangement
from tests.bench.arena import Arena
from tests.bench.cases import Row
from tests.bench.processes import ChildError, memory_kib, reset_peak
from tests.bench.publishes import plain_headers
from tests.producer import Closed, Producer
from tests.sidecar import PROGRAM

WARM_CONNECTIONS = 20
CONNECTIONS = 200
HOSTILE_CONNECTIONS = 1_000
"""10,000 connections would need 20,000 descriptors on each side, which few machines permit. The memory per connection
does not depend on the number of connections."""
HOSTILE_HEADER_BYTES, HOSTILE_LARGE, HOSTILE_KEYS = 60_000, 4, 64
"""The publishes of each hostile connection have large headers, and keys and values that occur in no other publish."""
LARGE_BODY_BYTES = 1 << 30
LOAD_RUNS = 3
STEADY_SECONDS = 1.0
STEADY_DEADLINE_SECONDS = 10.0

IDLE_ROWS = (
    Row("memory", "memory of an idle sidecar", "MiB", 70, at_least=False),
    Row("memory", "memory of one more idle connection", "KiB", 64, at_least=False),
)
HOSTILE_ROWS = (
    Row(
        "hostile",
        "memory of one more connection that sends large, always different publishes",
        "KiB",
        128,
        at_least=False,
    ),
)
LARGE_ROWS = (
    Row("memory", "extra memory for a 1 GiB message, pass-through", "MiB", 16, at_least=False),
    Row("memory", "extra memory for a 1 GiB message, open exchange", "MiB", 16, at_least=False),
)
LOAD_ROWS = (Row("load", "load a rules file of 10,000 bindings (oxproxy check)", "s", 3, at_least=False),)


def measure_idle(arena: Arena) -> list[list[float]]:
    """Return the values of `IDLE_ROWS`: the memory of a new sidecar, and of an additional connection."""
    sidecar = arena.start_sidecar("idle sidecar", arrangement.small_rules(arena.folder, arena.broker))
    idle = steady_memory_kib(sidecar.process_id)
    [more] = connections_kib(sidecar.port, [sidecar.process_id], CONNECTIONS)
    return [[idle / 1024], [more / CONNECTIONS]]


def connections_kib(port: int, pids: Sequence[int], count: int) -> list[int]:
    """Return the increase in the memory of each process for ``count`` idle connections with one channel each."""
    with contextlib.ExitStack() as producers:
        for _ in range(WARM_CONNECTIONS):
            producers.enter_context(Producer(port).open())
        before = [steady_memory_kib(pid) for pid in pids]
        for _ in range(count):
            producers.enter_context(Producer(port).open())
        return [steady_memory_kib(pid) - kib for pid, kib in zip(pids, before, strict=True)]


def measure_hostile(arena: Arena) -> list[list[float]]:
    """Return the value of `HOSTILE_ROWS`: the memory of a connection whose publishes defeat all caches."""
    rules = arrangement.small_rules(arena.folder, arena.broker)
    sidecar = arena.start_sidecar("sidecar with hostile producers", rules)
    with contextlib.ExitStack() as producers:
        for number in range(WARM_CONNECTIONS):
            send_hostile(producers.enter_context(Producer(sidecar.port).open(confirm=True)), number)
        before = steady_memory_kib(sidecar.process_id)
        for number in range(WARM_CONNECTIONS, WARM_CONNECTIONS + HOSTILE_CONNECTIONS):
            send_hostile(producers.enter_context(Producer(sidecar.port).open(confirm=True)), number)
        after = steady_memory_kib(sidecar.process_id)
    return [[(after - before) / HOSTILE_CONNECTIONS]]


def send_hostile(producer: Producer, number: int) -> None:
    """Publish messages that all differ, and wait until all are confirmed."""
    fill = "x" * (HOSTILE_HEADER_BYTES // HOSTILE_LARGE)
    sizes = [HOSTILE_LARGE] * HOSTILE_LARGE + [0] * HOSTILE_KEYS
    for turn, fillers in enumerate(sizes):
        table = {"kind": f"kind.{number}.{turn}", "trace": f"{number}-{turn}"}
        table |= {f"filler-{index}": fill for index in range(fillers)}
        producer.publish("bench.hkv-10", f"key.{number}.{turn}", table, b"")
    producer.settle_all(len(sizes))


def measure_large(arena: Arena) -> list[list[float]]:
    """Return the values of `LARGE_ROWS`: the increase in a new sidecar's memory during a large publish.

    The sidecar does not change the first publish, and changes the content header of the second one.
    """
    values = []
    for name, exchange in (("pass-through", arrangement.NOWHERE), ("open publish", "bench.hkv-10")):
        rules = arrangement.small_rules(arena.folder, arena.broker)
        sidecar = arena.start_sidecar(f"sidecar for a large {name}", rules)
        values.append([large_message(sidecar.port, sidecar.process_id, exchange).kib / 1024])
    return values


def steady_memory_kib(pid: int) -> int:
    """Return the resident set once it has not grown for a second, since a starting process still allocates."""
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


class Large(NamedTuple):
    """Maximum increase in a process's memory during a very large publish, and the seconds until the broker's reply."""

    kib: int
    seconds: float


def large_message(port: int, pid: int, exchange: str) -> Large:
    """Publish one very large message through a process.

    RabbitMQ receives such a message completely before it refuses the message as larger than its limit (at most 512 MiB,
    regardless of the configuration). A refusal therefore proves, like an ack, that all bytes have been relayed.
    """
    with Producer(port).open(confirm=True) as producer:
        send_large(producer, exchange, body_size_bytes=producer.frame_max)
        await_settled(producer)
        reset_peak(pid)
        before, start = memory_kib(pid), time.perf_counter()
        send_large(producer, exchange, LARGE_BODY_BYTES)
        await_settled(producer)
        seconds = time.perf_counter() - start
        return Large(memory_kib(pid, "VmHWM") - before, seconds)


def send_large(producer: Producer, exchange: str, body_size_bytes: int) -> None:
    """Send one publish that reaches no queue. The body consists of one frame that is sent repeatedly."""
    table = encode_table(plain_headers(arrangement.NOWHERE))
    producer.call(commands.Basic.Publish(exchange=exchange, routing_key=arrangement.NOWHERE))
    producer.send(client.content_header(1, body_size_bytes, table, {"delivery_mode": 1}))
    largest = producer.frame_max - 8
    whole = client.frame(3, 1, bytes(largest))
    for _ in range(body_size_bytes // largest):
        producer.send(whole)
    if rest := body_size_bytes % largest:
        producer.send(client.frame(3, 1, bytes(rest)))


def await_settled(producer: Producer) -> None:
    """Wait for the ack of a message, or for its refusal because of its size."""
    try:
        producer.expect("Basic.Ack")
    except Closed as closed:
        if closed.code != 406:
            raise


def measure_load(arena: Arena) -> list[list[float]]:
    """Return the values of `LOAD_ROWS`: the elapsed time of `oxproxy check`, including the interpreter's start."""
    path = arrangement.many_rules(arena.folder)
    return [[check_seconds(path) for _ in range(LOAD_RUNS)]]


def check_seconds(path: Path) -> float:
    start = time.perf_counter()
    try:
        done = subprocess.run([PROGRAM, "check", str(path)], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ChildError(f"{PROGRAM} is not installed") from error
    if done.returncode:
        raise ChildError(f"oxproxy check ended with {done.returncode}: {done.stderr.strip()[-600:]}")
    return time.perf_counter() - start
