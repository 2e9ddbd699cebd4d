"""Measures clients' binds: ``python -m tests.bench.binds``, with ``RABBITMQ_ROOT`` for another version of RabbitMQ.

The same number of pipelined binds is sent to the broker itself and through a sidecar, in turn. Through a sidecar, each
bind stores one more row, and each destination of a batch one token row. The sidecar is then started again, and the time
until it is ready with these bindings is measured.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from tests.broker.delivery.applications import Application, declared
from tests.private_broker import PrivateBroker
from tests.producer import Producer
from tests.sidecar import Sidecar

#: Binds that are sent without a reply.
AHEAD = 1_000
#: Most that binds through a sidecar may take, as a multiple of plain binds.
TARGETS = {"one queue": 1.3, "distinct queues": 2.2}


def pipelined(app: Application, exchange: str, queues: Sequence[str], count: int) -> float:
    """Bind pipelined; return the seconds."""
    frames = [app.binding(queues[n % len(queues)], exchange, {"x-?hkv= n": n}) for n in range(count)]
    began = time.perf_counter()
    for at in range(0, count, AHEAD):
        app.send(*frames[at : at + AHEAD])
        for _ in frames[at : at + AHEAD]:
            app.expect("Queue.BindOk")
    return time.perf_counter() - began


def measure(broker: PrivateBroker, count: int, rounds: int) -> None:
    with Sidecar(broker) as sidecar, Application(sidecar.port, "/") as app, Application(broker.port, "/") as plain:
        for name, size in (("one queue", 1), ("distinct queues", count)):
            queues = [f"{name}.{n}" for n in range(size)]
            app.queues(*queues)
            ratios = []
            for number in range(rounds):
                direct, through = f"plain.{number}.{size}", f"open.{number}.{size}"
                kind = "topic" if broker.version < (3, 13) else "direct"
                plain.exchange(direct, kind=kind, durable=True)
                app.exchange(through, durable=True)
                seconds = pipelined(plain, direct, queues, count), pipelined(app, through, queues, count)
                ratios.append(seconds[1] / seconds[0])
                print(f"{name}: {count} binds plain {seconds[0]:.2f} s, through the sidecar {seconds[1]:.2f} s")
                if number < rounds - 1:
                    plain.delete(direct)
                    app.delete(through)
            print(f"{name}: {statistics.median(ratios):.2f} times plain binds (target {TARGETS[name]})", flush=True)
    began = time.perf_counter()
    with Sidecar(broker) as again:
        took_seconds = time.perf_counter() - began
        print(f"ready with {sum(declared(again, '/').values())} bindings after {took_seconds:.1f} s")
        with Producer(again.port, "/").open(confirm=True) as producer:
            assert not producer.send_settled(through, "k", {"n": 1}, mandatory=True).returned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="number of binds")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with PrivateBroker() as broker:
        print(f"RabbitMQ {'.'.join(map(str, broker.version))}", flush=True)
        measure(broker, arguments.count, arguments.rounds)


if __name__ == "__main__":
    main()
