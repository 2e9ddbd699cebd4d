"""Measures the cost of 100,000 bindings: loading, decisions, reloading, and reading them back from the broker.

Every binding in the rules files has two conditions, `x-?hkv= kind` and `x-?hkv>= amount`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import uvloop
from pamqp import commands
from pamqp.common import FieldTable

from oxproxy.app.reload import Reload
from oxproxy.broker.methods import DeclareQueue
from oxproxy.broker.reconcile.reconciler import PreparedRules
from oxproxy.broker.topology import Topology
from oxproxy.net.remote.endpoints import RemoteBroker
from oxproxy.net.tasks import Tasks
from oxproxy.relay.counters import Counters
from oxproxy.relay.vhost import OwnedExchange, VhostState
from oxproxy.routing.decision import Facts, QueueNames
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.router import Router
from oxproxy.rules.loader import load_rules
from oxproxy.values import Value
from tests.bench import arrangement
from tests.bench.arena import Arena
from tests.bench.cases import Row
from tests.bench.pauses import reloaded_and_still
from tests.bench.processes import ChildError, cpu_seconds
from tests.producer import Producer
from tests.routing.building import NOW, Plain, exchange, no_draw, to_queue
from tests.sidecar import PROGRAM

BINDINGS, FEW = 100_000, 10
CHECKS, RELOADS, STARTS = 2, 3, 2
DECISIONS, DECISION_ROUNDS = 10_000, 7
BINDS_AHEAD = 1_000

CHECK_ROWS = (
    Row("check", "load a rules file of 100,000 bindings (oxproxy check), CPU", "s", 8, at_least=False),
    Row("check", "the same, peak memory", "MiB", 250, at_least=False),
)

#: The part of a message that a binding's condition tests.
FAMILIES = ("header", "routing key", "property", "topic")
DECIDE_ROWS = (
    *tuple(
        row
        for family in FAMILIES
        for row in (
            Row(
                "decide", f"decision, 100,000 / 10 bindings by {family}, the same 10 messages", "", 1.1, at_least=False
            ),
            Row("decide", "the same, 10,000 messages in random order", "", None),
            Row("decide", "the additional cost", "us CPU", None),
        )
    ),
    Row("decide", "lookup in a dict, 100,000 / 10 keys, in random order", "", None),
    Row("decide", "the additional cost", "us CPU", None),
)

RELOAD_ROWS = (
    Row("reload-many", "longest confirm latency while 100,000 bindings reload", "ms", 20, at_least=False),
    Row("reload-many", "the same in an equal period without a reload", "ms", None, at_least=False),
    Row("reload-many", "CPU time for which that reload blocks the event loop", "ms", 20, at_least=False),
)
RESTORE_ROWS = (
    Row("restore", "start with 100,000 bindings that clients declared", "s", 15, at_least=False),
    Row("restore", "the same, CPU of the sidecar", "s", None),
)


def by_kind_and_amount(number: int) -> str:
    return f'"x-?hkv= kind": kind.{number:06}, "x-?hkv>= amount": {number % 1_000}'


def rules(folder: Path) -> Path:
    """Write one exchange with 100,000 bindings."""
    return arrangement.rules_file(
        folder / "scale.yaml", (arrangement.exchange_rules("bench.load", BINDINGS, by_kind_and_amount),)
    )


def measure_check(arena: Arena) -> list[list[float]]:
    path = rules(arena.folder)
    return [list(values) for values in zip(*(checked(path) for _ in range(CHECKS)), strict=True)]


def checked(path: Path) -> tuple[float, float]:
    """Return the CPU time in seconds and the peak memory in MiB of `oxproxy check`."""
    process = subprocess.Popen([PROGRAM, "check", str(path)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise ChildError(f"oxproxy check ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def declared_arguments(family: str, number: int) -> dict[str, Plain]:
    """Return the arguments of a binding that tests the given part of a message."""
    if family == "header":
        return {"x-?hkv= kind": f"kind.{number:06}", "x-?hkv>= amount": 10}
    if family == "property":
        return {"x-?pr= type": f"type.{number:06}"}
    return {"x-?rk=": f"key.{number:06}"} if family == "routing key" else {"x-?rkta": f"topic.{number:06}.#"}


def facts(family: str, number: int) -> Facts:
    """Return a message that matches one binding, regardless of the number of bindings."""
    if family == "header":
        return Facts(b"", ((b"kind", Value("S", b"kind.%06d" % number)), (b"amount", Value("I", 17))))
    if family == "property":
        return Facts(b"", (), {"type": b"type.%06d" % number})
    return Facts(b"key.%06d" % number if family == "routing key" else b"topic.%06d.a.b" % number)


def open_exchange(family: str, size: int) -> Exchange:
    return exchange(*(to_queue(f"q{number % FEW}", declared_arguments(family, number)) for number in range(size)))


def decision_us(router: Router, messages: list[Facts]) -> float:
    """Return the CPU time of a decision. The fastest round counts, since other processes may slow down a round."""
    best, queues = float("inf"), QueueNames()
    gc.collect()
    gc.freeze()
    for _ in range(DECISION_ROUNDS):
        begin = time.process_time()
        for message in messages:
            router.decide(b"xo", message, NOW, queues, no_draw)
        best = min(best, time.process_time() - begin)
    gc.unfreeze()
    return best / len(messages) * 1e6


def look_up_us(size: int) -> float:
    """Return the CPU time of looking up one key. Keys are looked up in random order, and the loop is not counted."""
    table = {b"kind.%06d" % number: [number] for number in range(size)}
    keys = [b"kind.%06d" % number for number in drawn(size)]
    best, nothing = float("inf"), float("inf")
    for _ in range(DECISION_ROUNDS):
        begin = time.process_time()
        for key in keys:
            table.get(key)
        between = time.process_time()
        for _key in keys:
            pass
        end = time.process_time()
        best, nothing = min(best, between - begin), min(nothing, end - between)
    return (best - nothing) / len(keys) * 1e6


def drawn(size: int) -> list[int]:
    draw = random.Random(size)
    return [draw.randrange(size) for _ in range(DECISIONS)]


def measure_decisions(_: Arena) -> list[list[float]]:
    """Return the values of `DECIDE_ROWS`.

    With the same ten messages, decisions access the same memory, regardless of the number of bindings. With messages in
    random order, the accessed memory is not in the CPU's caches. This also applies to lookups in a plain dict, which
    show the cost of memory accesses alone.
    """
    found: list[list[float]] = []
    for family in FAMILIES:
        spent: dict[int, tuple[float, float]] = {}
        for size in (FEW, BINDINGS):
            router = Router([open_exchange(family, size)])
            few = [facts(family, number * (size // FEW)) for number in range(FEW)] * (DECISIONS // FEW)
            spent[size] = decision_us(router, few), decision_us(router, [facts(family, at) for at in drawn(size)])
            del router
        found += [[many / little] for many, little in zip(spent[BINDINGS], spent[FEW], strict=True)]
        found.append([spent[BINDINGS][1] - spent[FEW][1]])
    many, few_keys = look_up_us(BINDINGS), look_up_us(FEW)
    return [*found, [many / few_keys], [many - few_keys]]


def measure_reload(arena: Arena) -> list[list[float]]:
    """Return the values of `RELOAD_ROWS`: for each reload, the longest confirm latency and event loop iteration.

    If sidecar, broker and producer share two cores, the longest latency includes delays by the scheduler. The longest
    iteration is not affected, because it is measured as CPU time of the process and its threads.
    """
    path = rules(arena.folder).rename(arena.folder / "reloaded-many.yaml")
    sidecar = arena.start_sidecar("sidecar that reloads many", path)
    waits = reloaded_and_still(sidecar, path, RELOADS)
    # A running sidecar would list the bindings that are declared next, which keeps a core of the broker busy.
    sidecar.stop()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        turns = runner.run(longest_turns_ms(path))
    return [*waits, turns]


class NoReconciler:
    def swap(self, *_: object) -> None:
        """Do nothing, since there are no relays."""


class NoBroker:
    """The parts of `Topology` and of its `VhostTopology` that a reload calls, without a broker."""

    reconciler = NoReconciler()

    def follows(self, vhost: str) -> bool:
        return bool(vhost)

    def managed(self, _vhost: str) -> NoBroker:
        return self

    async def prepare(
        self, exchanges: dict[bytes, OwnedExchange], router: Router, queues: Sequence[DeclareQueue], _book: object
    ) -> PreparedRules:
        """Declare nothing."""
        return PreparedRules(exchanges, router, tuple(queues))


async def longest_turns_ms(path: Path) -> list[float]:
    """Reload a file several times; return, for each reload, the longest CPU time between two event loop iterations."""
    loaded = load_rules([path])
    gc.freeze()
    state, topology = VhostState("/", Router(())), cast("Topology", NoBroker())
    tasks = Tasks()
    no_brokers, nothing = dict[str, dict[bytes, RemoteBroker]](), lambda _outdated: None
    reload = Reload(
        lambda: [path], loaded, lambda _: state, topology, Counters(), tasks, lambda _: no_brokers, lambda _: nothing
    )
    del loaded
    found = []
    for number in range(RELOADS):
        with path.open("a") as file:
            file.write(f"# once more, {number}\n")
        reloading = asyncio.ensure_future(reload.reload("bench"))
        longest, before = 0.0, time.process_time()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.0002)
            now = time.process_time()
            longest, before = max(longest, now - before), now
        if reloading.result().errors:
            raise ChildError(f"a reload failed: {reloading.result().errors}")
        found.append(longest * 1e3)
    return found


def measure_restore(arena: Arena) -> list[list[float]]:
    """Return the values of `RESTORE_ROWS`: time from the start of a sidecar until it is ready."""
    without_rules = arrangement.rules_file(
        arena.folder / "no-bindings.yaml", (arrangement.exchange_rules("bench.none", 1, by_kind_and_amount),)
    )
    sidecar = arena.start_sidecar("sidecar that is declared to", without_rules)
    declare_many(sidecar.port)
    sidecar.stop()  # for the same reason as in `measure_reload`
    seconds, cpu = [], []
    for number in range(STARTS):
        begin = time.monotonic()
        sidecar = arena.start_sidecar(f"sidecar that restores {number}", without_rules)
        seconds.append(time.monotonic() - begin)
        cpu.append(cpu_seconds(sidecar.process_id))
        sidecar.stop()
    return [seconds, cpu]


def declare_many(port: int) -> None:
    """Declare an exchange over AMQP and bind it 100,000 times."""
    with Producer(port).open() as producer:
        producer.ask(commands.Exchange.Declare(exchange="bench.restored", exchange_type="x-open", durable=True))
        for at in range(0, BINDINGS, BINDS_AHEAD):
            for number in range(at, at + BINDS_AHEAD):
                arguments: FieldTable = {"x-?hkv= kind": f"kind.{number:06}", "x-?hkv>= amount": number % 1_000}
                queue = arrangement.queue(number)
                producer.call(commands.Queue.Bind(queue=queue, exchange="bench.restored", arguments=arguments))
            for _ in range(BINDS_AHEAD):
                producer.expect("Queue.BindOk")
