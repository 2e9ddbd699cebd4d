"""Measures clients' binds: ``python -m tests.bench.binds``, with ``RABBITMQ_ROOT`` for another version of RabbitMQ.

The same number of pipelined binds is sent to the broker itself and through a sidecar, in turn. Through a sidecar, each
bind stores one more row, and each destination of a batch one token row. On another broker, client bindings to ten
queues are created, and the time is measured until a sidecar that is started again is ready with them.
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

#: Number of binds that are sent at once, and the maximum number of binds without a reply.
GROUP, AHEAD = 100, 1_000
#: Most that binds through a sidecar may take, as a multiple of plain binds.
TARGETS = {"one queue": 1.3, "distinct queues": 2.2}
#: Numbers of client bindings, and the time after which a sidecar that is started with them should be ready.
READY_SECONDS = {10_000: 2, 100_000: 15}
#: Number of queues of these bindings, and of starts.
QUEUES, STARTS = 10, 3


def pipelined(
    app: Application, exchange: str, queues: Sequence[str], count: int, first: int = 0, *, plain: bool = False
) -> float:
    """Create the bindings from `first` up to `count`, pipelined; return the seconds.

    Bindings of an open exchange have no routing key. Each plain binding has its own, since RabbitMQ 4.3 stores all
    bindings with the same key and destination in one record, so that 10,000 of them take more than a minute.
    """
    frames = [
        app.binding(queues[n % len(queues)], exchange, {"x-?hkv= n": n}, f"key.{n}" if plain else "")
        for n in range(first, count)
    ]
    began = time.perf_counter()
    for at in range(0, len(frames) + AHEAD, GROUP):
        for _ in frames[max(0, at - AHEAD) : max(0, at - AHEAD + GROUP)]:
            app.expect("Queue.BindOk")
        app.send(*frames[at : at + GROUP])
    return time.perf_counter() - began


def measure_binds(broker: PrivateBroker, count: int, rounds: int) -> None:
    kind = "topic" if broker.version < (3, 13) else "direct"
    with Sidecar(broker) as sidecar, Application(sidecar.port, "/") as app, Application(broker.port, "/") as plain:
        for name, size in (("one queue", 1), ("distinct queues", count)):
            queues = [f"{name}.{n}" for n in range(size)]
            app.queues(*queues)
            ratios = []
            for number in range(rounds):
                direct, through = f"plain.{number}.{size}", f"open.{number}.{size}"
                plain.exchange(direct, kind=kind, durable=True)
                app.exchange(through, durable=True)
                seconds = pipelined(plain, direct, queues, count, plain=True), pipelined(app, through, queues, count)
                ratios.append(seconds[1] / seconds[0])
                print(f"{name}: {count:,} binds plain {seconds[0]:.2f} s, through the sidecar {seconds[1]:.2f} s")
                plain.delete(direct)
                app.delete(through)
            print(f"{name}: {statistics.median(ratios):.2f} times plain binds (target {TARGETS[name]})", flush=True)


def measure_start(broker: PrivateBroker) -> None:
    queues = [f"q.{number}" for number in range(QUEUES)]
    bound = 0
    for count, target_seconds in READY_SECONDS.items():
        with Sidecar(broker) as sidecar, Application(sidecar.port, "/") as app:
            app.queues(*queues)
            app.exchange("open", durable=True)
            pipelined(app, "open", queues, count, first=bound)
            bound = count
        seconds = []
        for _ in range(STARTS):
            began = time.perf_counter()
            with Sidecar(broker) as again:
                seconds.append(time.perf_counter() - began)
                assert declared(again, "/") == {"open": count}
                with Producer(again.port, "/").open(confirm=True) as producer:
                    assert not producer.send_settled("open", "k", {"n": count - 1}, mandatory=True).returned
        print(
            f"ready with {count:,} bindings {statistics.median(seconds):.1f} s after the start "
            f"(target {target_seconds} s)",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="number of binds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("binds", "start"))
    arguments = parser.parse_args()
    if arguments.only != "start":
        with PrivateBroker() as broker:
            print(f"RabbitMQ {'.'.join(map(str, broker.version))}", flush=True)
            measure_binds(broker, arguments.count, arguments.rounds)
    if arguments.only != "binds":
        with PrivateBroker() as broker:
            print(f"RabbitMQ {'.'.join(map(str, broker.version))}", flush=True)
            measure_start(broker)


if __name__ == "__main__":
    main()
