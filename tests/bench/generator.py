"""Measures a producer's rate: a process that publishes pre-built frames and counts the acks.

The process reads acks as soon as they arrive, as client libraries do: RabbitMQ sends most acks in separate segments,
each of which wakes the process. With `polls`, it sleeps between ticks and then reads all acks that have arrived, which
costs the producer less than any client library. After each read, it sends as many bytes as the window and the socket
accept. Each command is a line of JSON on standard input and is answered with one line. `run` publishes at full speed;
`ping` waits for the confirm of each message before it publishes the next one. The process ends at end of file.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from tests.bench.confirms import ConfirmCounter
from tests.bench.processes import cpu_seconds
from tests.bench.publishes import Ring, Shape
from tests.producer import Producer

WINDOW_MESSAGES = 10_000
TICK_SECONDS = 0.001
CHUNK_BYTES = 262_144
SETTLE_SECONDS = 30.0
"""Timeout for the last acks of a run."""


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run at full speed, without the warm-up."""

    confirmed: int
    seconds: float
    cpu_seconds: dict[str, float]


class Generator:
    """A producer on one connection, which sends a ring of publishes, with at most `window` of them unconfirmed.

    Args:
        polls: whether acks are read once per tick, instead of when they arrive.
    """

    def __init__(
        self, connection: socket.socket, ring: Ring, window: int = WINDOW_MESSAGES, polls: bool = False
    ) -> None:
        self._socket = connection
        self._ring = ring
        self._window = window
        self._polls = polls
        self._counter = ConfirmCounter()
        self._sent_bytes = 0
        self._position = 0

    @property
    def confirmed(self) -> int:
        return self._counter.confirmed

    def run(self, seconds: float, warm_up_seconds: float, watch: dict[str, int]) -> Run:
        """Publish at full speed, and measure the CPU time of the processes in `watch` after the warm-up."""
        self._socket.setblocking(False)
        self._until(time.perf_counter() + warm_up_seconds)
        before, confirmed, start = cpu_of(watch), self.confirmed, time.perf_counter()
        self._until(start + seconds)
        after, counted, end = cpu_of(watch), self.confirmed - confirmed, time.perf_counter()
        self._drain()
        return Run(counted, end - start, {name: after[name] - before[name] for name in watch})

    def ping(self, count: int) -> list[float]:
        """Publish messages one by one; return the seconds from each publish to its confirm."""
        self._socket.settimeout(SETTLE_SECONDS)
        stride = self._ring.stride
        times = []
        for _ in range(count):
            message = self._ring.data[self._position : self._position + stride]
            wanted = self.confirmed + 1
            start = time.perf_counter()
            self._socket.sendall(message)
            while self.confirmed < wanted:
                self._feed(self._socket.recv(65_536))
            times.append(time.perf_counter() - start)
            self._advance(stride)
        return times

    def _until(self, deadline: float) -> None:
        while time.perf_counter() < deadline:
            self._receive()
            # Filling the window after each read is enough, since the socket's buffers hold publishes for many reads.
            self._send((self.confirmed + self._window) * self._ring.stride - self._sent_bytes)
            if self._polls:
                time.sleep(TICK_SECONDS)
            else:
                select.select([self._socket], [], [], max(0.0, deadline - time.perf_counter()))

    def _drain(self) -> None:
        """Send the rest of a publish that has been partially sent, then wait for all confirms."""
        stride = self._ring.stride
        deadline = time.perf_counter() + SETTLE_SECONDS
        while self._sent_bytes > self.confirmed * stride:
            if time.perf_counter() > deadline:
                raise TimeoutError(f"{self._sent_bytes // stride - self.confirmed} publishes unconfirmed")
            self._send(-self._sent_bytes % stride)
            self._receive()
            time.sleep(TICK_SECONDS)

    def _send(self, allowed_bytes: int) -> None:
        with memoryview(self._ring.data) as view:
            while allowed_bytes > 0:
                end = self._position + min(allowed_bytes, CHUNK_BYTES)
                try:
                    sent = self._socket.send(view[self._position : end])
                except BlockingIOError:
                    return
                allowed_bytes -= sent
                self._advance(sent)

    def _advance(self, sent_bytes: int) -> None:
        self._sent_bytes += sent_bytes
        self._position += sent_bytes
        if self._position == len(self._ring.data):
            self._position = 0
            self._ring.next_turn()

    def _receive(self) -> None:
        while True:
            try:
                data = self._socket.recv(CHUNK_BYTES)
            except BlockingIOError:
                return
            self._feed(data)
            if len(data) < CHUNK_BYTES:
                return

    def _feed(self, data: bytes) -> None:
        if not data:
            raise ConnectionError("the other side closed the socket")
        self._counter.feed(data)


def cpu_of(watch: dict[str, int]) -> dict[str, float]:
    return {name: cpu_seconds(pid) for name, pid in watch.items()}


def answer(generator: Generator, command: dict[str, object]) -> object:
    match command:
        case {"run": float(seconds), "warm_up": float(warm_up), "watch": dict(watch)}:
            return asdict(generator.run(seconds, warm_up, watch))
        case {"ping": int(count)}:
            return generator.ping(count)
    raise ValueError(f"unknown command {command}")


def serve(generator: Generator, lines: Iterable[str]) -> None:
    """Answer each command with one line of JSON. The first line reports that the connection is open."""
    print(json.dumps("ready"), flush=True)
    for line in lines:
        print(json.dumps(answer(generator, json.loads(line))), flush=True)


def main(argument: str) -> None:
    plan = json.loads(argument)
    ring = Ring(Shape(**plan["shape"]))
    with Producer(plan["port"]).open(confirm=True) as producer:
        window = plan.get("window") or WINDOW_MESSAGES
        serve(Generator(producer.socket, ring, window, plan.get("polls", False)), sys.stdin)


if __name__ == "__main__":
    main(sys.argv[1])
