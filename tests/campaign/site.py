"""The arrangement of the campaign: a broker, two sidecars with strict audit logs, publishers and consumers.

The network between each sidecar and the broker is a process of its own (``network``), and each sidecar has an audit
disk that can be filled (``tests.faults.faulty_disk``).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pamqp import commands

from tests.broker.delivery.site import vhost_status
from tests.campaign import records
from tests.campaign.consumers import Consumer, empty
from tests.campaign.matching import Audit, Route, Stream, Tally, Verdict, verdict
from tests.campaign.network import Network
from tests.campaign.publishers import (
    ConfirmPublisher,
    DeclaringPublisher,
    Publisher,
    SlowPublisher,
    TransactionPublisher,
)
from tests.faults.faulty_disk import FaultyDisk
from tests.producer import Producer, until
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar

#: Seconds within which everything must work again after a fault.
RECOVERY_SECONDS = 90.0

#: Interval of the inventory in seconds, within which a sidecar must know what another one declared.
REFRESH_SECONDS = 1

RULES = """\
vhost: {vhost}
queues: [live.a, live.b, kept.a, kept.b, kept.c, fragile, parts.a]
exchanges:
  - name: orders
    bindings:
      - {{queue: live.a, arguments: {{"x-?hkv= to": live}}}}
      - {{queue: live.b, arguments: {{"x-?hkv= to": pair}}}}
      - {{queue: kept.a, arguments: {{"x-?hkv= to": pair}}}}
      - {{queue: kept.b, arguments: {{"x-?hkv>= amount": 1000}}}}
      - {{queue: kept.c, arguments: {{"x-?rkre": "^order[.][0-9]+$"}}}}
      - {{queue: fragile, arguments: {{"x-?hkv= to": fragile}}}}
      - {{queue: kept.a, arguments: {{"x-?hkv= to": fragile}}}}
{more}  - name: parts
    delivery: queue
    bindings:
      - {{queue: parts.a, arguments: {{"x-?hkv= to": parts}}}}
      - {{exchange: fan, arguments: {{"x-?hkv= to": parts}}}}
"""
#: A binding that selects no message of the campaign. Reloads add and remove it.
UNUSED = '      - {{queue: kept.c, arguments: {{"x-?hkv= to": "unused {number}"}}}}\n'

#: The queue that a fault deletes and declares again.
FRAGILE = "fragile"
#: Queues that are consumed through the sidecars during the faults.
LIVE = ("live.a", "live.b")
#: Queues that are emptied directly on the broker, when no message is on its way.
KEPT = ("kept.a", "kept.b", "kept.c", FRAGILE, "parts.a", "parts.b", "direct", "declared.0", "declared.1")


def _to(*queues: str, key: str = "", exchanges: Sequence[str] = (), recorded: bool = True, **headers: object) -> Route:
    names = frozenset(queue for queue in queues if queue != "parts.b")
    return Route("orders", key, headers, frozenset(queues), names.union(exchanges) if recorded else None)


ORDERS = (
    _to("live.a", to="live"),
    _to("live.b", "kept.a", to="pair"),
    _to("kept.b", amount=2000),
    _to("kept.c", key="order.12", amount=12),
    _to("kept.b", "kept.c", key="order.7", amount=1000),
    _to(to="none", amount="2000"),
)
#: While the queue does not exist, the record does not contain it.
FRAGILE_ORDERS = (_to(FRAGILE, "kept.a", recorded=False, to="fragile"), _to("kept.a", "live.b", to="pair"))
PARTS = tuple(
    replace(_to("parts.a", "parts.b", exchanges=["fan"], to="parts"), exchange="parts", mandatory=mandatory)
    for mandatory in (False, True)
)
DIRECT = (Route("", "direct", queues=frozenset(("direct",))),)


def mandatory(routes: Sequence[Route]) -> tuple[Route, ...]:
    return tuple(replace(route, mandatory=True) for route in routes)


def declared(number: int) -> tuple[Route, Route]:
    """The routes of a ``DeclaringPublisher``."""
    exchange = queue = f"declared.{number}"
    headers = {"to": queue}
    bound = Route(exchange, headers=headers, queues=frozenset((queue,)), recorded=frozenset((queue,)), mandatory=True)
    return bound, replace(bound, queues=frozenset(), recorded=frozenset())


class Site:
    """Everything that runs.

    Args:
        broker: the broker; faults of the broker require a ``PrivateBroker``.
        vhost: an empty virtual host.
        folder: an empty directory.
        seed: seed of the random choices.
    """

    def __init__(self, broker: Broker, vhost: str, folder: Path, seed: int) -> None:
        self.broker = broker
        self.vhost = vhost
        self.folder = folder
        self.rules = folder / "rules.yaml"
        self.disks: list[FaultyDisk] = []
        self.networks: list[Network] = []
        self.sidecars: list[Sidecar] = []
        self.publishers: list[Publisher] = []
        self.consumers: list[Consumer] = []
        self.tallies = {queue: Tally() for queue in (*LIVE, *KEPT)}
        #: queues that were deleted, with the time from which their messages must arrive again
        self.excused: dict[str, float] = {}
        self.failures: list[str] = []
        self.changes = 0
        self._seed = seed
        self._stack = contextlib.ExitStack()

    @property
    def ports(self) -> list[int]:
        return [sidecar.port for sidecar in self.sidecars]

    # -- start and end -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        with Producer(self.broker.port, self.vhost).open() as direct:
            for queue in ("parts.b", "direct"):
                direct.declare(queue, durable=True)
            direct.ask(commands.Exchange.Declare(exchange="fan", exchange_type="fanout", durable=True))
            direct.ask(commands.Queue.Bind(queue="parts.b", exchange="fan"))
        self.write_rules()
        for number in range(2):
            self._start_sidecar(number)
        self._start_clients()

    def write_rules(self, unused: int = 0, error: str = "") -> None:
        """Write the rules file with a number of unused bindings; ``error`` makes it invalid."""
        more = "".join(UNUSED.format(number=number) for number in range(unused))
        text = RULES.format(vhost=self.vhost, more=more) + error
        fresh = self.rules.with_suffix(".next")
        fresh.write_text(text)
        fresh.rename(self.rules)

    def _start_sidecar(self, number: int) -> None:
        folder = self.folder / f"sidecar-{number}"
        (folder / "disk").mkdir(parents=True)
        disk = FaultyDisk(folder / "disk")
        network = self._stack.enter_context(Network(self.broker.port))
        settings: Mapping[str, object] = {
            "upstream": {"address": f"127.0.0.1:{network.port}"},
            "inventory": {"refresh": f"{REFRESH_SECONDS}s"},
            "audit": {"directory": str(folder / "audit"), "mode": "strict", "instance": f"sidecar-{number}"},
        }
        sidecar = Sidecar(self.broker, [self.rules], settings, folder, (str(disk.program),))
        self._stack.enter_context(sidecar)
        self.disks.append(disk)
        self.networks.append(network)
        self.sidecars.append(sidecar)

    def _start_clients(self) -> None:
        draw = random.Random(self._seed)
        kinds: list[tuple[type[Publisher], str, Sequence[Route]]] = [
            (ConfirmPublisher, "confirm", ORDERS),
            (ConfirmPublisher, "confirm, mandatory", mandatory(ORDERS)),
            (ConfirmPublisher, "confirm, fragile queue", FRAGILE_ORDERS),
            (ConfirmPublisher, "confirm, split", PARTS),
            (TransactionPublisher, "transaction", ORDERS),
            (TransactionPublisher, "transaction, mandatory, split", (*mandatory(ORDERS), *PARTS)),
        ]
        for kind, name, routes in kinds:
            self._add(kind(self._stream(name, routes), self.ports, self.vhost, draw.randrange(1 << 30)))
        for number in range(2):
            stream = self._stream(f"declaring {number}", declared(number))
            name = f"declared.{number}"
            seed = draw.randrange(1 << 30)
            self._add(DeclaringPublisher(stream, self.ports, self.vhost, seed, name, name, self._changed))
        # For comparison: if this one loses messages too, the broker lost them.
        direct = Stream(len(self.publishers), "direct", DIRECT, is_direct=True)
        self._add(SlowPublisher(direct, [self.broker.port], self.vhost, 0))
        for queue in LIVE:
            self.consumers.append(Consumer(queue, self.tallies[queue], self.ports, self.vhost))
        for thread in (*self.publishers, *self.consumers):
            thread.start()

    def _stream(self, name: str, routes: Sequence[Route]) -> Stream:
        return Stream(len(self.publishers), name, routes)

    def _add(self, publisher: Publisher) -> None:
        self.publishers.append(publisher)

    def _changed(self) -> None:
        self.changes += 1

    def __enter__(self) -> Site:
        try:
            self.start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._stack.close()

    # -- parts of faults -----------------------------------------------------------------------------------------------

    def restart(self, number: int, signal_number: signal.Signals) -> None:
        """End a sidecar with a signal, and start it again."""
        sidecar = self.sidecars[number]
        os.kill(sidecar.process_id, signal_number)
        processes = sidecar._processes
        assert processes is not None
        until(lambda: not processes.running, RECOVERY_SECONDS)
        self.read_log(number)
        sidecar.stop()
        sidecar.start()

    def read_log(self, number: int) -> None:
        """Note internal errors of a sidecar."""
        log = self.sidecars[number].log
        text = log.read_text(errors="replace")
        if "Traceback" in text:
            at = text.index("Traceback")
            self.failures.append(f"sidecar {number} logged {text[at : at + 3000]}")

    def knows(self, queue: str) -> bool:
        """Whether both sidecars know that a queue exists."""
        return all(f"queue {queue}" not in vhost_status(sidecar, self.vhost)["missing"] for sidecar in self.sidecars)

    def await_recovery(self) -> None:
        """Wait until each publisher has settled another message."""
        before = [publisher.settled for publisher in self.publishers]
        deadline = time.monotonic() + RECOVERY_SECONDS
        for publisher, settled in zip(self.publishers, before, strict=True):
            while publisher.settled == settled:
                if time.monotonic() > deadline:
                    status = [json.loads(sidecar.get("/status")) for sidecar in self.sidecars]
                    self.failures.append(f"{publisher.name} did not recover in {RECOVERY_SECONDS:g} s: {status}")
                    return
                time.sleep(0.02)

    # -- counting ------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Pause publishers and consumers, wait until all outcomes are known, and empty all queues."""
        deadline = time.monotonic() + RECOVERY_SECONDS
        for publisher in self.publishers:
            publisher.pause()
        for publisher in self.publishers:
            if not publisher.await_idle(deadline):
                self.failures.append(f"{publisher.name} has {len(publisher.open)} messages without an outcome")
        for consumer in self.consumers:
            consumer.pause()
        for consumer in self.consumers:
            if not consumer.await_idle(deadline):
                self.failures.append(f"{consumer.name} could not end")
        with Producer(self.broker.port, self.vhost).open() as direct:
            # The broker may still be processing what it read from a connection that was lost.
            while self._empty(direct):
                time.sleep(0.3)

    def _empty(self, direct: Producer) -> int:
        """Take and count all messages on the broker, and return their number."""
        taken = sum(empty(consumer.queue, consumer.count, direct) for consumer in self.consumers)
        return taken + sum(empty(queue, self._counting(queue), direct) for queue in KEPT)

    def _counting(self, queue: str) -> Callable[[bytes, bool], object]:
        return lambda body, _: self.tallies[queue].add(body)

    def resume(self) -> None:
        for publisher in self.publishers:
            publisher.resume()
        for consumer in self.consumers:
            consumer.resume()

    def end(self) -> None:
        """End publishers, consumers and sidecars, so that the audit segments are complete."""
        for publisher in self.publishers:
            publisher.end()
        for consumer in self.consumers:
            consumer.end()
        for sidecar in self.sidecars:
            sidecar.stop()

    def judge(self) -> Verdict:
        """Match all messages, after the queues have been emptied."""
        self.end()
        streams = [publisher.stream for publisher in self.publishers]
        audit = Audit(streams)
        for number in range(len(self.sidecars)):
            records.read(self.folder / f"sidecar-{number}" / "audit", audit)
            self.read_log(number)
        result = verdict(streams, self.tallies, audit, self.excused)
        for publisher in self.publishers:
            self.failures += publisher.failures
        for consumer in self.consumers:
            self.failures += consumer.failures
        for failure in self.failures:
            result.add("failed", failure)
        result.counts["direct messages"] = result.direct["messages"]
        result.counts["audit records"] = audit.records
        result.counts["redelivered"] = sum(consumer.redelivered for consumer in self.consumers)
        result.counts["connections"] = sum(publisher.connections for publisher in self.publishers)
        result.counts["client binds"] = self.changes
        return result


@contextlib.contextmanager
def site(broker: Broker, vhost: str, folder: Path, seed: int) -> Iterator[Site]:
    """Run a site in an empty virtual host."""
    with Site(broker, vhost, folder, seed) as running:
        yield running
