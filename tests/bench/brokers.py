"""Measures the message rate on each supported RabbitMQ: ``python -m tests.bench.brokers [RELEASE...]``.

For each release of Debian (see ``tests.other_rabbitmq``), publishes with confirms are sent in turn

- to a direct exchange on the broker, with 10 bindings, of which one matches,
- through a sidecar to an exchange with 10 destinations, with ``delivery: carrier`` and with ``delivery: queue``,
- through the sidecar to exchanges whose carriers have ten times as many stale tokens as tokens in use. These are tokens
  of secrets that the sidecar does not list, so that no publish carries them.

In addition, messages with tokens are sent to carriers of each type without the sidecar (``tests.bench.carriers``). The
tables contain medians of all rounds. CPU time is that of the broker, per message.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from pamqp import commands

from oxproxy.relay.tokens import Secrets, Tokens
from oxproxy.values import QUEUE
from tests.bench.carriers import IN_TURN, WARM_UP_SECONDS, bind_all, crossing, generator
from tests.bench.generator import Generator, Run
from tests.bench.publishes import Shape
from tests.other_rabbitmq import RELEASES, file_system, obstacle
from tests.private_broker import PrivateBroker
from tests.producer import Producer
from tests.sidecar import Sidecar

VHOST = "/"
#: Numbers of destinations of the exchanges with and without stale tokens.
DESTINATIONS = (10, 100, 1_000)
#: Numbers of bindings of the carriers to which messages are sent without the sidecar.
BINDINGS = (10, 1_000)
#: Number of stale tokens per token in use.
STALE = 10


def rules(queues: Sequence[str]) -> Iterator[str]:
    yield f"vhost: {VHOST}\nexchanges:\n"
    exchanges = [("carrier", "carrier", IN_TURN), ("queue", "queue", IN_TURN)]
    exchanges += [(f"{kind}.{count}", "carrier", count) for count in DESTINATIONS for kind in ("live", "stale")]
    for name, delivery, count in exchanges:
        yield f"  - name: {name}\n    delivery: {delivery}\n    bindings:\n"
        for queue in queues[:count]:
            yield f'      - {{queue: {queue}, arguments: {{"x-?hkv= kind": {queue}}}}}\n'


def bind_stale(control: Producer, exchange: str, queues: Sequence[str], *, one_word: bool) -> None:
    """Bind the tokens of ten secrets that the sidecar does not list."""
    secrets = [Tokens(VHOST, Secrets([b"secret %d" % number]).token_keys) for number in range(STALE)]
    bind_all(
        control,
        [
            (queue, exchange, tokens.candidates((QUEUE, queue.encode()), one_word=one_word)[0])
            for queue in queues
            for tokens in secrets
        ],
    )


def generators(broker: PrivateBroker, stack: ExitStack) -> tuple[dict[str, Generator], dict[int, str]]:
    """Return a generator for each exchange, and the types of the carriers by number of destinations."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    queues = [f"q.{number:05}" for number in range(max(DESTINATIONS))]
    with Producer(broker.port, VHOST).open() as control:
        for queue in queues:
            control.ask(commands.Queue.Declare(0, queue, durable=True, arguments={"x-max-length": 1}))
        control.ask(commands.Exchange.Declare(0, "plain", "direct"))
        keys = [queue.replace(".", "-") for queue in queues[:IN_TURN]]
        bind_all(control, [(queue, "plain", key.encode()) for queue, key in zip(queues, keys, strict=False)])
        (folder / "rules.yaml").write_text("".join(rules(queues)))
        sidecar = stack.enter_context(Sidecar(broker, [folder / "rules.yaml"], folder=folder))
        kinds = {}
        for count in DESTINATIONS:
            kinds[count] = broker.api("GET", f"exchanges/%2F/stale.{count}")["type"]
            bind_stale(control, f"stale.{count}", queues[:count], one_word=kinds[count] == "topic")
    chosen = tuple(queues[:IN_TURN])
    shapes = {"plain": Shape("plain", tuple(keys), chosen)}
    shapes |= {name: Shape(name, ("a.key",), chosen) for name in ("carrier", "queue")}
    for count in DESTINATIONS:
        spread = tuple(queues[:: count // IN_TURN][:IN_TURN])
        for name in (f"live.{count}", f"stale.{count}"):
            shapes[name] = Shape(name, ("a.key",), spread)
    made = {
        name: generator(stack, broker.port if name == "plain" else sidecar.port, VHOST, shape)
        for name, shape in shapes.items()
    }
    return made, kinds


def measure(broker: PrivateBroker, seconds: float, rounds: int) -> None:
    """Print one row of each table."""
    with ExitStack() as stack:
        publishing, kinds = generators(broker, stack)
        runs: dict[str, list[Run]] = {name: [] for name in publishing}
        for _ in range(rounds):
            for name, producer in publishing.items():
                runs[name].append(producer.run(seconds, WARM_UP_SECONDS, {"broker": broker.process_id}))
    rate = {name: [run.confirmed / run.seconds for run in made] for name, made in runs.items()}
    cpu = {
        name: statistics.median(run.cpu_seconds["broker"] / run.confirmed * 1e6 for run in made)
        for name, made in runs.items()
    }

    def ratio(name: str, base: str) -> str:
        return f"{statistics.median(one / other for one, other in zip(rate[name], rate[base], strict=True)):.2f}"

    cells = [f"{statistics.median(rate['plain']):,.0f} | {cpu['plain']:.0f}"]
    for name in ("carrier", "queue"):
        cells.append(f"{statistics.median(rate[name]):,.0f} | {ratio(name, 'plain')} | {cpu[name]:.0f}")
    print(f"rates: | {' | '.join(cells)} |")
    for count in DESTINATIONS:
        live, stale = f"live.{count}", f"stale.{count}"
        print(
            f"stale: | {count:,} | {kinds[count]} | {statistics.median(rate[live]):,.0f} |"
            f" {statistics.median(rate[stale]):,.0f} | {ratio(stale, live)} | {cpu[live]:.0f} / {cpu[stale]:.0f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", metavar="RELEASE", nargs="*", default=list(RELEASES))
    parser.add_argument("--seconds", type=float, default=0.8, help="of each sample")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("rates", "crossing"))
    options = parser.parse_args()
    if reason := obstacle():
        parser.exit(2, f"{reason}\n")
    print("rates: | direct exchange, msg/s | µs | carrier, msg/s | ratio | µs | queue, msg/s | ratio | µs |")
    print("stale: | destinations | carrier | msg/s | with stale tokens, msg/s | ratio | µs without / with |")
    for release in options.releases:
        with PrivateBroker(root=file_system(release)) as broker:
            print(f"RabbitMQ {'.'.join(map(str, broker.version))}", flush=True)
            if options.only != "crossing":
                measure(broker, options.seconds, options.rounds)
            if options.only != "rates":
                crossing(broker, VHOST, options.seconds, options.rounds, BINDINGS)


if __name__ == "__main__":
    main()
