"""Measures a consumer's rate: a process that reads and acknowledges the deliveries from a queue filled beforehand.

All deliveries have the same length, so they are counted by their bytes only, which takes far less CPU time than the
measured process.
Each command is a line of JSON on standard input, and gets one line as the reply. The process ends at end of file.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict

from pamqp import commands

from tests import client
from tests.bench.generator import CHUNK_BYTES, Run, cpu_of
from tests.producer import Gone, Producer

ACKS = 4
"""Number of acknowledgements per prefetch window."""
#: Maximum time without a delivery.
SILENCE_SECONDS = 30.0


def consume(port: int, queue: str, prefetch: int, count: int, watch: dict[str, int]) -> Run:
    """Read `count` deliveries. Elapsed time and CPU time are measured from the first delivery."""
    with Producer(port).open() as consumer:
        consumer.ask(commands.Basic.Qos(prefetch_count=prefetch))
        consumer.socket.settimeout(SILENCE_SECONDS)
        consumer.ask(commands.Basic.Consume(queue=queue, consumer_tag="bench"))
        before, start = cpu_of(watch), time.perf_counter()
        data = consumer.unread()
        while (stride := delivery_bytes(data)) == 0:
            data += consumer.socket.recv(CHUNK_BYTES)
        arrived, acknowledged, every = len(data), 0, max(prefetch // ACKS, 1)
        while True:
            complete = arrived // stride
            if complete >= acknowledged + every or complete == count:
                acknowledged = complete
                consumer.send(client.method(1, commands.Basic.Ack(acknowledged, multiple=True)))
            if arrived >= count * stride:
                break
            read = len(consumer.socket.recv(CHUNK_BYTES))
            if read == 0:
                raise Gone
            arrived += read
        after, end = cpu_of(watch), time.perf_counter()
        if arrived != count * stride:
            raise ValueError(f"received {arrived} bytes instead of {count} deliveries of {stride} bytes")
        consumer.ask(commands.Channel.Close(0, "", 0, 0))
    return Run(count, end - start, {name: after[name] - before[name] for name in watch})


def delivery_bytes(data: bytes) -> int:
    """Return the length of the first delivery (method, header and one body frame); 0 until it is complete."""
    at = 0
    for _ in range(3):
        if len(data) < at + 8:
            return 0
        at += int.from_bytes(data[at + 3 : at + 7], "big") + 8
    return at if len(data) >= at else 0


def main(argument: str) -> None:
    plan = json.loads(argument)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        run = consume(plan["port"], plan["queue"], plan["prefetch"], command["consume"], command["watch"])
        print(json.dumps(asdict(run)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
