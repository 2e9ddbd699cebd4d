"""Starts the relays and producers of a benchmark when they are first used.

A process that failed to start is not started again, so that the failure costs only one deadline and other cases run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from pamqp import commands

from tests.bench import arrangement
from tests.bench.cases import CONSUMED, MICROSECONDS, Case, Sample, Way
from tests.bench.processes import START_SECONDS, Child, ChildError, LoadProcess
from tests.private_broker import PrivateBroker, free_port
from tests.producer import Producer
from tests.sidecar import PROGRAM, Sidecar, SidecarFailed

FOLLOWERS = 1_000
PAUSE_SECONDS = 0.003
"""Pause of the relay after each read from the broker. It is long enough for many confirms to arrive."""
FILL_SECONDS = 0.05
"""Duration of filling a queue, per message of the consumer's prefetch count. A consumer with a prefetch count of 1 gets
fewer messages, since each of them takes a round trip."""
PING_WARM_UP = 5
"""Number of pings at the start of each block that are not counted, since they wake up three processes."""

Key = TypeVar("Key")
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Terms:
    """Duration of each case, and number of producers."""

    seconds: float = 1.5
    warm_up_seconds: float = 0.5
    producers: int = 1
    wrap: tuple[str, ...] = ()
    """A command that runs the sidecar, such as a profiler."""


class Arena:
    """A private broker, and the processes in front of it, until the context ends."""

    def __init__(self, broker: PrivateBroker, folder: Path, terms: Terms) -> None:
        self.broker = broker
        self.folder = folder
        self.terms = terms
        self._children = contextlib.ExitStack()
        self._ways: dict[Way, tuple[int, int] | ChildError] = {}
        self._producers: dict[str, list[LoadProcess] | ChildError] = {}

    def __enter__(self) -> Self:
        arrangement.declare(self.broker)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._children.close()

    def run(self, case: Case) -> Sample:
        """Run a case once at full speed; the sample contains the CPU time of every process."""
        return self._consume(case) if case.prefetch else self._publish(case)

    def _publish(self, case: Case) -> Sample:
        producers = self.producers(case)
        watch = self._watched() | {"producer": producers[0].pid}
        command: dict[str, object] = {
            "run": self.terms.seconds,
            "warm_up": self.terms.warm_up_seconds,
            "watch": watch,
        }
        for producer in producers:
            producer.tell(command)
        runs = [producer.answer() for producer in producers]
        per_second = sum(run["confirmed"] / run["seconds"] for run in runs)
        messages = per_second * runs[0]["seconds"]
        if not messages:
            return Sample(0.0, {})
        cpu = {name: spent / messages * MICROSECONDS for name, spent in runs[0]["cpu_seconds"].items()}
        return Sample(per_second, cpu)

    def _consume(self, case: Case) -> Sample:
        """Fill the queue directly on the broker, then let a consumer read all messages through the case's process."""
        consumer, filler = self.consumer(case), self.producers(replace(case, name=CONSUMED, way=Way.BROKER))[0]
        with Producer(self.broker.port).open() as control:
            control.ask(commands.Queue.Purge(queue=CONSUMED))
            seconds = min(self.terms.seconds, case.prefetch * FILL_SECONDS)
            filler.ask({"run": seconds, "warm_up": 0.0, "watch": {}})
            declared = control.ask(commands.Queue.Declare(queue=CONSUMED, passive=True)).arguments
        watch = self._watched() | {"producer": consumer.pid}
        run = consumer.ask({"consume": declared["message_count"], "watch": watch})
        cpu = {name: spent / run["confirmed"] * MICROSECONDS for name, spent in run["cpu_seconds"].items()}
        return Sample(run["confirmed"] / run["seconds"], cpu)

    def consumer(self, case: Case) -> LoadProcess:
        """Return the consumer of a case, which waits for commands."""
        plan: dict[str, object] = {"port": self.port(case.way), "queue": CONSUMED, "prefetch": case.prefetch}
        make = partial(LoadProcess, case.name, self.folder, plan, "consumer")
        return once(self._producers, f"{case.name} (consumer)", lambda: [self._children.enter_context(make())])[0]

    def ping(self, case: Case, count: int) -> list[float]:
        """Send `count` publishes one by one; return the seconds from each publish to its confirm."""
        times: list[float] = self.producers(case)[0].ask({"ping": count + PING_WARM_UP})
        return times[PING_WARM_UP:]

    def producers(self, case: Case) -> list[LoadProcess]:
        """Return the generators of a case, which are connected and wait for commands."""
        return once(self._producers, case.name, lambda: self._start_producers(case))

    def port(self, way: Way) -> int:
        return self._way(way)[0]

    def process_id(self, way: Way) -> int:
        return self._way(way)[1]

    def start_sidecar(self, name: str, rules: Path, settings: Mapping[str, object] | None = None) -> Sidecar:
        """Start a sidecar with a rules file, and return it once it is ready.

        Args:
            name: name of the sidecar's folder.
            settings: additional configuration.
        """
        folder = self.folder / name.replace(" ", "-")
        folder.mkdir()
        sidecar = Sidecar(self.broker, [rules], settings, folder, (*self.terms.wrap, str(PROGRAM)), START_SECONDS)
        try:
            return self._children.enter_context(sidecar)
        except SidecarFailed as error:
            raise ChildError(str(error)) from error

    def _way(self, way: Way) -> tuple[int, int]:
        return once(self._ways, way, lambda: self._start_way(way))

    def _start_way(self, way: Way) -> tuple[int, int]:
        match way:
            case Way.BROKER:
                return self.broker.port, self.broker.process_id
            case Way.HAPROXY:
                return self._start_haproxy()
            case Way.COPYING:
                return self._start_copying_relay(way, 0.0)
            case Way.PAUSING:
                return self._start_copying_relay(way, PAUSE_SECONDS)
        sidecar = self._start_sidecar_of(way)
        return sidecar.port, sidecar.process_id

    def _start_sidecar_of(self, way: Way) -> Sidecar:
        small, audit = partial(arrangement.small_rules, self.folder, self.broker), self.folder / f"audit-{way.name}"
        match way:
            case Way.RULES:
                return self.start_sidecar(way, arrangement.real_rules(self.folder))
            case Way.SIDECAR:
                sidecar = self.start_sidecar(way, small())
                arrangement.declare_as_client(sidecar.port)
                return sidecar
            case Way.AUDITED | Way.RULES_AUDITED:
                audit.mkdir()
                rules = arrangement.real_rules(self.folder) if way is Way.RULES_AUDITED else small()
                return self.start_sidecar(way, rules, {"audit": {"directory": str(audit)}})
            case Way.FLOODED:
                sidecar = self.start_sidecar(way, arrangement.real_rules(self.folder))
                command = [sys.executable, "-m", "tests.bench.followers", str(sidecar.admin_port), str(FOLLOWERS)]
                child = self._children.enter_context(Child("followers", command, self.folder))
                log = self.folder / "followers.log"
                child.wait_until(lambda: "all have asked" in log.read_text())
                return sidecar
        return self.start_sidecar(way, arrangement.large_rules(self.folder, self.broker))

    def _start_haproxy(self) -> tuple[int, int]:
        port = free_port()
        config = arrangement.haproxy_config(self.folder / "haproxy.cfg", self.broker, port)
        child = Child("haproxy", [haproxy_program(), "-db", "-f", str(config)], self.folder)
        self._children.enter_context(child)
        child.wait_until(lambda: listens(port))
        return port, child.pid

    def _start_copying_relay(self, name: str, rest_seconds: float) -> tuple[int, int]:
        port = free_port()
        words = [str(port), str(self.broker.port), str(rest_seconds)]
        command = [sys.executable, "-m", "tests.bench.copying_relay", *words]
        child = self._children.enter_context(Child(name.replace(" ", "-"), command, self.folder))
        child.wait_until(lambda: listens(port))
        return port, child.pid

    def _start_producers(self, case: Case) -> list[LoadProcess]:
        shape, port = asdict(case.shape), self.port(case.way)
        plan = {"port": port, "shape": shape, "window": case.window, "polls": case.polls}
        return [
            self._children.enter_context(LoadProcess(f"{case.name}-{number}", self.folder, plan))
            for number in range(case.producers or self.terms.producers)
        ]

    def _watched(self) -> dict[str, int]:
        return {way.value: found[1] for way, found in self._ways.items() if isinstance(found, tuple)}


def once(known: dict[Key, Found | ChildError], key: Key, start: Callable[[], Found]) -> Found:
    """Return the result of `start` for a key, or raise its ChildError again. `start` is called only once per key."""
    if key not in known:
        try:
            known[key] = start()
        except ChildError as error:
            known[key] = error
    found = known[key]
    if isinstance(found, ChildError):
        raise found
    return found


def haproxy_program() -> str:
    """Return the path of HAProxy, which Debian installs in a directory that only root's PATH contains."""
    program = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise ChildError("HAProxy is not installed")
    return program


def listens(port: int) -> bool:
    """Return True if a process accepts connections at this port on loopback."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
