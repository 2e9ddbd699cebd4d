"""Measures the cost of a publish in the relay alone, without sockets: ``python -m tests.bench.relay``.

`measure_conditions` returns rows for the benchmark: what readable conditions, `share` and contracts cost in addition to
another exchange. Both exchanges are measured in turn in short parts, since the differences are small.

Each read of a producer connection contains 64 publishes, to an exchange with ten `x-?hkv=` bindings. The result is the
relay's CPU time for the producer's bytes, per publish; the broker's confirms are processed between the measured parts.
The last row is the same while another client binds a queue to another exchange, and unbinds it, after every four reads:
with 51,200 publishes a second, that is 100 binds and 100 unbinds a second. The output names the measured build.
With ``PURE_PYTHON=1``, the Python sources are measured.
"""

from __future__ import annotations

import gc
import statistics
import sys
from collections.abc import Iterator
from time import process_time

from pamqp import commands
from pamqp.common import FieldTable

from oxproxy.native import BUILD
from oxproxy.relay.plan.plan import ClientRules, Plans, Sources
from oxproxy.relay.records.audit_record import PublishLog
from oxproxy.relay.records.facts_record import FactsMode, FactsTable
from oxproxy.relay.records.privacy import Privacy
from oxproxy.relay.vhost import VhostState
from oxproxy.rules.loader import compile_rules
from tests import client
from tests.bench.arena import Arena
from tests.bench.cases import MICROSECONDS, Row
from tests.bench.publishes import DIFFERENT, FACTS, Ring, Shape
from tests.relay.wire import Wire, owned, state
from tests.routing.building import NOW, Plain, exchange, to_queue

PER_READ = 64
BINDINGS = 10
#: Number of reads per round, and number of rounds. The fastest round counts, since other processes may slow down a
#: round.
READS, ROUNDS = 200, 7
#: exchange that another client binds and unbinds, and the number of reads after which it does so
CHANGED, READS_PER_CHANGE = "changed", 4
#: Most that the binds and unbinds of another exchange may add to the CPU time of a publish.
CHANGED_TARGET = 0.05
KINDS = tuple(f"kind.{number:04}" for number in range(BINDINGS))
KEYS = tuple(f"order.{number:08}" for number in range(BINDINGS))

#: For each exchange, the conditions of its bindings in addition to the condition on the kind.
CONDITIONS: dict[str, dict[str, Plain]] = {"xo": {}, "topic": {"x-?rkta": "order.*"}, "amount": {"x-?hkv>= amount": 0}}
#: Exchanges of a rules file: the keys of the exchange, and the conditions of its bindings in the readable spelling.
READABLE: dict[str, tuple[str, str]] = {
    "readable": ("", ""),
    "message id": ("", "property message_id !=: none"),
    "share": ("", "property message_id share: [0, 100]"),
    "readable, amount": ("", "amount >=: 0"),
    "contract, amount": ("require: {kind is: string, amount is: number, amount >=: 0, amount <: 1e9}", "amount >=: 0"),
}
#: For each row, the fields that differ from message to message, and the exchange.
ROWS: dict[str, tuple[tuple[str, ...], str]] = {
    "nothing": ((), "xo"),
    "message_id": (("message_id",), "xo"),
    "a header that no rule mentions": (("header",), "xo"),
    "the routing key": (("key",), "xo"),
    "all three": (FACTS, "xo"),
    "the routing key, topic condition": (("key",), "topic"),
    "amount, condition amount >=": (("amount",), "amount"),
    "nothing, readable conditions": ((), "readable"),
    "message_id, condition share": (("message_id",), "share"),
    "nothing, contract of four conditions": ((), "contract, amount"),
    "amount, contract of four conditions": (("amount",), "contract, amount"),
}


def rules() -> VhostState:
    """Return a state with the exchanges of the rows."""
    made = [
        exchange(
            *(to_queue(f"q{number}", {"x-?hkv= kind": kind, **more}) for number, kind in enumerate(KINDS)), name=name
        )
        for name, more in CONDITIONS.items()
    ]
    made.append(exchange(name=CHANGED))
    made += compile_rules([("bench.yaml", rules_file().encode())]).routers["/"].exchanges.values()
    return state(*((one, owned(one)) for one in made))


def rules_file() -> str:
    """Return a rules file with the readable exchanges of the rows."""
    lines = ["exchanges:"]
    for name, (keys, condition) in READABLE.items():
        lines += [f"  - name: {name}", *(f"    {key}" for key in keys.splitlines()), "    bindings:"]
        more = f", {condition}" if condition else ""
        lines += [f"      - {{queue: q{number}, when: {{kind: {kind}{more}}}}}" for number, kind in enumerate(KINDS)]
    return "\n".join(lines)


def wire(audited: bool, facts: bool = False) -> Wire:
    """Return a connection with a channel in confirm mode."""
    made = Wire(rules())
    if audited:
        table = FactsTable("bench", Privacy(), FactsMode.ALL_MENTIONED) if facts else None

        def append(_lines: bytes, _count: int) -> None:
            """Discard audit records. The audit log takes facts less often, once per batch of records."""
            if table is not None:
                table.take_used()

        journal = PublishLog("bench", Privacy(), str, append, lambda: NOW, ruled_only=False, facts=table)
        sources = Sources(lambda: NOW, lambda: 0.0, lambda below: 0)
        made.plans = Plans(made.state, made.counters, sources, ClientRules(), journal)
        made.connect()
        made.relay.connection.start_audit("bench")
    return made.open(confirm=True)


def reads(differs: tuple[str, ...], name: str) -> list[bytes]:
    """Return reads that contain whole publishes."""
    ring = Ring(Shape(name, KEYS, KINDS, differs=differs), different_count=DIFFERENT)
    size = ring.stride * PER_READ
    return [bytes(ring.data[at : at + size]) for at in range(0, len(ring.data) - size + 1, size)]


class Producer:
    """A producer that sends reads in turn and receives a confirm for each.

    Args:
        data: reads that contain whole publishes.
    """

    def __init__(self, data: list[bytes], audited: bool = False, facts: bool = False) -> None:
        self.connection = wire(audited, facts)
        self._data = data
        self._sent = 0

    def microseconds(self, reads: int) -> float:
        """Send the given number of reads; return the CPU time of a publish."""
        made, data, spent = self.connection, self._data, 0.0
        for number in range(self._sent, self._sent + reads):
            begin = process_time()
            made.relay.producer_sent(data[number % len(data)], 0.0)
            spent += process_time() - begin
            assert made.upstream()
            tag = (number + 1) * PER_READ
            made.answer(client.frame(1, 1, b"\x00\x3c\x00\x50" + tag.to_bytes(8, "big") + b"\1"))
        self._sent += reads
        return spent / (reads * PER_READ) * MICROSECONDS


def microseconds(data: list[bytes], audited: bool = False, facts: bool = False) -> float:
    """Return the CPU time of a publish."""
    producer = Producer(data, audited, facts)
    best = float("inf")
    for _ in range(ROUNDS):
        gc.collect()
        best = min(best, producer.microseconds(READS))
    return best


# -- rows of the benchmark ---------------------------------------------------------------------------------------------

#: Number of reads in each part of a paired measurement, number of parts in a round, and number of rounds.
PART_READS, PARTS, PAIRED_ROUNDS = 10, 20, 9
SAME, ADDED_REPEATING, ADDED_DIFFERING = 1.05, 0.3, 1.5
#: For each row, the fields that differ from message to message, the measured exchange, and the one to compare with.
PAIRS: tuple[tuple[Row, tuple[str, ...], str, str], ...] = (
    (
        Row("conditions", "CPU in the relay, 10 readable bindings / 10 with arguments", "x", SAME, at_least=False),
        (),
        "readable",
        "xo",
    ),
    (
        Row("conditions", "share of message_id, values repeat, above !=", "us CPU", ADDED_REPEATING, at_least=False),
        (),
        "share",
        "message id",
    ),
    (
        Row("conditions", "share of message_id, values never repeat", "us CPU", ADDED_DIFFERING, at_least=False),
        ("message_id",),
        "share",
        "message id",
    ),
    (
        Row("conditions", "contract of 4 conditions, values repeat", "us CPU", ADDED_REPEATING, at_least=False),
        (),
        "contract, amount",
        "readable, amount",
    ),
    (
        Row("conditions", "contract of 4 conditions, values never repeat", "us CPU", ADDED_DIFFERING, at_least=False),
        ("amount",),
        "contract, amount",
        "readable, amount",
    ),
)
CONDITION_ROWS = tuple(row for row, _, _, _ in PAIRS)


def paired(measured: Producer, base: Producer) -> Iterator[tuple[float, float]]:
    """Yield the CPU times of a publish with both producers for each round: the median of the parts."""
    for _ in range(PAIRED_ROUNDS):
        gc.collect()
        parts = [(measured.microseconds(PART_READS), base.microseconds(PART_READS)) for _ in range(PARTS)]
        yield statistics.median(one for one, _ in parts), statistics.median(other for _, other in parts)


def measure_conditions(_: Arena) -> list[list[float]]:
    """Return the values of `CONDITION_ROWS`: a ratio, and differences in microseconds."""
    found = []
    for row, differs, exchange_name, base_name in PAIRS:
        times = paired(Producer(reads(differs, exchange_name)), Producer(reads(differs, base_name)))
        found.append([one / other if row.unit == "x" else one - other for one, other in times])
    return found


# -- the whole table ---------------------------------------------------------------------------------------------------


class Binder:
    """Another client, which binds a queue to `CHANGED` and unbinds it in turn."""

    def __init__(self, made: Wire) -> None:
        self._wire = Wire(made.state)
        self._wire.plans = made.plans
        self._wire.connect()
        self._wire.open()
        self._is_bound = False
        arguments: FieldTable = {"x-?hkv= kind": KINDS[0]}
        self._frames = [
            client.method(1, command(queue="q0", exchange=CHANGED, arguments=arguments))
            for command in (commands.Queue.Bind, commands.Queue.Unbind)
        ]

    def change(self) -> None:
        """Bind or unbind, and answer for the broker each row that is sent to it."""
        ok = commands.Queue.UnbindOk() if self._is_bound else commands.Queue.BindOk()
        rows = client.split(self._wire.produce(self._frames[self._is_bound]))
        self._wire.answer(*[client.method(1, ok) for _ in rows])
        self._is_bound = not self._is_bound
        assert len(self._wire.state.exchanges[CHANGED.encode()].clients) == self._is_bound


def with_changes(data: list[bytes]) -> tuple[float, float]:
    """Return the CPU time of a publish, without and with changes of another exchange; the medians of paired rounds."""
    made = wire(audited=False)
    binder = Binder(made)
    found: tuple[list[float], list[float]] = ([], [])
    tag = 0
    for _ in range(ROUNDS):
        for changes in (False, True):
            gc.collect()
            spent = 0.0
            for read in range(READS):
                if changes and not read % READS_PER_CHANGE:
                    binder.change()
                begin = process_time()
                made.relay.producer_sent(data[read % len(data)], 0.0)
                spent += process_time() - begin
                assert made.upstream()
                tag += PER_READ
                made.answer(client.frame(1, 1, b"\x00\x3c\x00\x50" + tag.to_bytes(8, "big") + b"\1"))
            found[changes].append(spent / (READS * PER_READ) * 1e6)
    return statistics.median(found[False]), statistics.median(found[True])


def main() -> int:
    print(f"CPU us per publish in the relay, {PER_READ} publishes per read, {BINDINGS} bindings, {BUILD}\n")
    print(f"{'what differs from message to message':40}{'plain':>8}{'audited':>10}{'facts':>10}{'not ours':>10}")
    for name, (differs, to) in ROWS.items():
        data = reads(differs, to)
        passed = microseconds(reads(differs, "other"))
        plain, audited, facts = microseconds(data), microseconds(data, True), microseconds(data, True, True)
        print(f"{name:40}{plain:8.2f}{audited:10.2f}{facts:10.2f}{passed:10.2f}", flush=True)
    without, changed = with_changes(reads((), "xo"))
    more = changed / without - 1
    print(
        f"\n100 binds and 100 unbinds a second on another exchange: {changed:.2f} us, {more:+.1%} "
        f"(target: at most {CHANGED_TARGET:+.0%})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
