"""Measures the broker's cost of messages on each type of carrier, by the number of bindings.

``python -m tests.bench.carriers`` measures on a private broker:

- without the sidecar, the broker's CPU time per message with one or three tokens in ``BCC``, by carrier type and form
  of the tokens. `oxproxy.relay.tokens.FEW_DESTINATIONS` is the number of bindings at which two types cost the same.
- the publish rate through the sidecar with 2,000 unconfirmed publishes, relative to the rate without the sidecar to an
  ordinary exchange with the same number of bindings. The ordinary exchange is a topic exchange if RabbitMQ compares
  each message with all bindings of a direct exchange, otherwise a direct exchange.
- the rate at which messages with tokens can be published directly to the carrier, which is the maximum rate that the
  broker permits.

The measurements alternate in rounds, and the tables contain medians.
"""

from __future__ import annotations

import argparse
import os
import secrets
import ssl
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from pamqp import commands

from oxproxy.broker.versions import BrokerVersion
from oxproxy.values import Table
from tests import client
from tests.bench.cases import REAL_WINDOW
from tests.bench.confirms import ConfirmCounter
from tests.bench.generator import Generator
from tests.bench.processes import cpu_seconds
from tests.bench.publishes import Ring, Shape, bcc
from tests.private_broker import PrivateBroker
from tests.producer import Producer
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar

CROSSING = (10, 20, 50, 100, 200, 400, 1_000, 10_000)
DESTINATIONS = (10, 100, 1_000, 10_000)
#: Minimum publish rate through the sidecar, as a fraction of the rate without the sidecar.
TARGET = 0.80
#: Number of publishes that are sent before their confirms are read.
WINDOW = 400
WARM_UP_SECONDS = 0.3
#: Time limit for a sidecar to bind the tokens of all exchanges, in seconds.
READY_SECONDS = 150.0
#: Number of destinations to which messages are sent in turn.
IN_TURN = 10
FORMS = {"direct": ("direct", "{}.{}"), "one word": ("topic", "{}-{}"), "eight words": ("topic", "a.b.c.d.e.f.{}.{}")}


def names(form: str, count: int) -> list[bytes]:
    return [FORMS[form][1].format("x-o-p-e-n-x-r-q", f"{number:016x}").encode() for number in range(count)]


class Stream:
    """Sends publishes in turn, with confirms, over one connection.

    Args:
        port: port of the broker or the sidecar.
        publishes: the frames of each publish.
    """

    def __init__(self, port: int, vhost: str, publishes: Sequence[bytes], tls: ssl.SSLContext | None = None) -> None:
        self._producer = Producer(port, vhost, tls=tls).open(confirm=True)
        self._window = b"".join(publishes[number % len(publishes)] for number in range(WINDOW))
        self._counter = ConfirmCounter()

    def run(self, seconds: float) -> tuple[int, float]:
        """Publish for the given time; return the number of publishes and the actual time in seconds."""
        wire = self._producer.socket
        began_at = time.perf_counter()
        before = sent = self._counter.confirmed
        while time.perf_counter() < began_at + seconds:
            wire.sendall(self._window)
            sent += WINDOW
            while self._counter.confirmed < sent:
                self._counter.feed(wire.recv(1 << 16))
        return sent - before, time.perf_counter() - began_at


def frames(exchange: str, key: str, table: Table) -> bytes:
    return client.publish(1, exchange.encode(), key.encode(), table, b"x" * 100)


def crossing(
    broker: PrivateBroker, vhost: str, seconds: float, rounds: int, bindings: Sequence[int] = CROSSING
) -> None:
    """Print the broker's CPU time per message in microseconds, as "with one token / with three tokens".

    Args:
        bindings: numbers of bindings of the carriers, ascending.
    """
    pid = broker.process_id
    broker.create_queue(vhost, "all", True, **{"x-max-length": 1})
    print(f"| bindings | {' | '.join(FORMS)} |\n|---|{'---|' * len(FORMS)}")
    bound = dict.fromkeys(FORMS, 0)
    with Producer(broker.port, vhost).open() as control:
        for form, (kind, _) in FORMS.items():
            control.ask(commands.Exchange.Declare(0, form, kind))
        for count in bindings:
            streams: dict[tuple[str, int], Stream] = {}
            for form in FORMS:
                keys = names(form, count)
                bind_all(control, [("all", form, key) for key in keys[bound[form] :]])
                bound[form] = count
                for tokens in (1, 3):
                    publishes = [
                        frames(form, "a.key", bcc(keys[(at + step) % count] for step in range(tokens)))
                        for at in range(IN_TURN)
                    ]
                    streams[form, tokens] = Stream(broker.port, vhost, publishes)
            taken: dict[tuple[str, int], list[float]] = {}
            for _ in range(rounds):
                for which, stream in streams.items():
                    before = cpu_seconds(pid)
                    published, _ = stream.run(seconds)
                    taken.setdefault(which, []).append((cpu_seconds(pid) - before) / published * 1e6)
            cells = (
                f"{statistics.median(taken[form, 1]):.0f} / {statistics.median(taken[form, 3]):.0f}" for form in FORMS
            )
            print(f"| {count:,} | {' | '.join(cells)} |", flush=True)


def bind_all(control: Producer, rows: Sequence[tuple[str, str, bytes]]) -> None:
    for at in range(0, len(rows), 500):
        part = rows[at : at + 500]
        binds = (client.queue_bind(1, queue.encode(), exchange.encode(), key) for queue, exchange, key in part)
        control.send(b"".join(binds))
        for _ in part:
            control.expect("Queue.BindOk")


def routed(broker: Broker, vhost: str, kind: str, seconds: float, rounds: int, destinations: Sequence[int]) -> bool:
    """Print publish rates through the sidecar and without it; return whether the target is reached."""
    reached = True
    print(f"| destinations | through the sidecar | straight, {kind} exchange | ratio | carrier, straight | ratio |")
    print("|---|---|---|---|---|---|")
    with ExitStack() as stack:
        control = stack.enter_context(Producer(broker.port, vhost).open())
        queues = [f"q.{number:05}" for number in range(max(destinations))]
        for at in range(0, len(queues), 500):
            declares = (
                commands.Queue.Declare(0, queue, arguments={"x-max-length": 1}) for queue in queues[at : at + 500]
            )
            control.send(b"".join(client.method(1, declare) for declare in declares))
            for _ in queues[at : at + 500]:
                control.expect("Queue.DeclareOk")
        for count in destinations:
            control.ask(commands.Exchange.Declare(0, f"plain.{count}", kind))
            bind_all(control, [(queue, f"plain.{count}", queue.replace(".", "-").encode()) for queue in queues[:count]])
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "rules.yaml").write_text("".join(rules(vhost, queues, destinations)))
        began_at = time.perf_counter()
        sidecar = stack.enter_context(
            Sidecar(broker, [folder / "rules.yaml"], folder=folder, ready_seconds=READY_SECONDS)
        )
        took = time.perf_counter() - began_at
        for count in destinations:
            step = count // IN_TURN
            chosen = tuple(queues[number * step] for number in range(IN_TURN))
            keys = tuple(queue.replace(".", "-") for queue in chosen)
            token_of = tokens(broker, vhost, f"routed.{count}")
            routed_shape = Shape(f"routed.{count}", ("a.key",), chosen)
            with_tokens = replace(routed_shape, tokens=tuple(token_of[queue] for queue in chosen))
            generators = (
                generator(stack, broker.port, vhost, Shape(f"plain.{count}", keys, chosen)),
                generator(stack, sidecar.port, vhost, routed_shape),
                generator(stack, broker.port, vhost, with_tokens),
            )
            rates: list[list[float]] = []
            for _ in range(rounds):
                runs = [publishing.run(seconds, WARM_UP_SECONDS, {}) for publishing in generators]
                rates.append([run.confirmed / run.seconds for run in runs])
            straight, through, carrier = (statistics.median(column) for column in zip(*rates, strict=True))
            ratio, limit = (statistics.median(rate[at] / rate[0] for rate in rates) for at in (1, 2))
            print(
                f"| {count:,} | {through:,.0f} | {straight:,.0f} | {ratio:.2f} | {carrier:,.0f} | {limit:.2f} |",
                flush=True,
            )
            reached &= ratio >= TARGET
        cpu = cpu_seconds(sidecar.process_id)
        print(f"\nready after {took:.1f} s with {sum(destinations):,} tokens to bind; CPU in all {cpu:.1f} s")
    return reached


def tokens(broker: Broker, vhost: str, exchange: str) -> dict[str, str]:
    """Return the destination token of each queue bound to a carrier."""
    bindings = broker.api("GET", f"exchanges/{vhost}/{exchange}/bindings/source")
    return {binding["destination"]: binding["routing_key"] for binding in bindings}


def generator(stack: ExitStack, port: int, vhost: str, shape: Shape) -> Generator:
    producer = stack.enter_context(Producer(port, vhost).open(confirm=True))
    return Generator(producer.socket, Ring(shape), REAL_WINDOW)


def rules(vhost: str, queues: Sequence[str], destinations: Sequence[int]) -> Iterator[str]:
    yield f"vhost: {vhost}\nexchanges:\n"
    for count in destinations:
        yield f"  - name: routed.{count}\n    bindings:\n"
        for queue in queues[:count]:
            yield f'      - {{queue: {queue}, arguments: {{"x-?hkv= kind": {queue}}}}}\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.8, help="of each sample")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--destinations", type=int, nargs="*", default=DESTINATIONS, help="through the sidecar")
    parser.add_argument("--only", choices=("crossing", "routed"))
    options = parser.parse_args()
    with PrivateBroker() as broker:
        vhost = f"bench-{secrets.token_hex(4)}"
        broker.create_vhost(vhost)
        version = BrokerVersion("RabbitMQ", ".".join(map(str, broker.version)))
        print(f"{version}, {os.cpu_count()} CPUs\n")
        if options.only != "routed":
            crossing(broker, vhost, options.seconds, options.rounds)
            print()
        if options.only == "crossing":
            return 0
        kind = "topic" if version.scans_bindings else "direct"
        return 0 if routed(broker, vhost, kind, options.seconds, options.rounds, options.destinations) else 1


if __name__ == "__main__":
    raise SystemExit(main())
