"""Many producers with a constant rate, and the time from each publish to its confirm.

A process with one connection per producer. Publishes are sent at equal intervals, by one producer after the other. A
producer whose last publish is not confirmed yet is skipped, and counts with the time that it has waited. Each command
on standard input, a line of JSON, is answered with one line. The process ends at end of file.
"""

from __future__ import annotations

import contextlib
import json
import select
import sys
import time
from typing import NamedTuple

from tests import client
from tests.bench.confirms import ConfirmCounter
from tests.bench.publishes import plain_headers
from tests.producer import Producer

READ_BYTES = 1 << 16
SETTLE_SECONDS = 30.0
"""Timeout for the last confirms."""


class Latencies(NamedTuple):
    """Times from publish to confirm, in milliseconds, and the number of publishes that could not be sent in time."""

    publishes: int
    late: int
    p50: float
    p99: float
    longest: float


class Publishers:
    """Producers in confirm mode, each with at most one unconfirmed publish."""

    def __init__(self, producers: list[Producer], publish: bytes) -> None:
        self._producers = producers
        self._publish = publish
        self._counters = [ConfirmCounter() for _ in producers]
        #: time at which the unconfirmed publish of a producer was sent, by producer
        self._sent: dict[int, float] = {}
        self._seconds: list[float] = []
        self._by_descriptor = {producer.socket.fileno(): index for index, producer in enumerate(producers)}
        self._poll = select.epoll()
        for descriptor in self._by_descriptor:
            self._poll.register(descriptor, select.EPOLLIN)

    def run(self, seconds: float, per_second: float) -> Latencies:
        """Publish for some seconds, and wait for the last confirms."""
        self._seconds = []
        late = number = 0
        start = time.perf_counter()
        while (due := start + number / per_second) < start + seconds:
            while (now := time.perf_counter()) < due:
                self._receive(due - now)
            index = number % len(self._producers)
            number += 1
            if index in self._sent:
                late += 1
                continue
            self._sent[index] = time.perf_counter()
            self._producers[index].socket.sendall(self._publish)
        deadline = time.perf_counter() + SETTLE_SECONDS
        while self._sent:
            if time.perf_counter() > deadline:
                raise TimeoutError(f"{len(self._sent)} publishes are not confirmed")
            self._receive(1.0)
        times = sorted(self._seconds)
        p50, p99 = (times[int(len(times) * part)] * 1e3 for part in (0.5, 0.99))
        return Latencies(len(times), late, p50, p99, times[-1] * 1e3)

    def _receive(self, seconds: float) -> None:
        for descriptor, _ in self._poll.poll(seconds):
            index = self._by_descriptor[descriptor]
            data = self._producers[index].socket.recv(READ_BYTES)
            if not data:
                raise ConnectionError("the other side closed the socket")
            counter = self._counters[index]
            before = counter.confirmed
            counter.feed(data)
            if counter.confirmed > before:
                self._seconds.append(time.perf_counter() - self._sent.pop(index))


def main(argument: str) -> None:
    plan = json.loads(argument)
    headers = plain_headers(plan["kind"])
    publish = client.publish(1, plan["exchange"].encode(), b"key.0001", headers, b"0123456789" * 10)
    with contextlib.ExitStack() as stack:
        producers = [stack.enter_context(Producer(plan["port"])).open(confirm=True) for _ in range(plan["producers"])]
        publishers = Publishers(producers, publish)
        print("true", flush=True)
        for line in sys.stdin:
            command = json.loads(line)
            print(json.dumps(publishers.run(command["seconds"], command["per_second"])._asdict()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
