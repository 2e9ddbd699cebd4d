"""Defines the cases that are run, and the rows of the table, which are computed from the cases.

A case is a stream of publishes over one path to the broker. A row is a number computed from one round of cases, with
its target.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from oxproxy.native import BUILD
from tests.bench.publishes import FACTS, Shape

QUEUES = 10
QUEUES_AT_ONCE = 8
KEYS_IN_TURN = 1_000
ADDRESS_RULES = 1_000
MANY = 10_000
MICROSECONDS = 1e6


class Way(StrEnum):
    """The path from the producer to the broker."""

    BROKER = "broker"
    HAPROXY = "haproxy"
    SIDECAR = "sidecar"
    LOADED = "loaded sidecar"
    """A separate sidecar with the large rules file, so that its bindings do not slow down other cases."""
    AUDITED = "audited sidecar"
    """The sidecar with the same rules, and an audit log in its default mode."""
    RULES = "rules only"
    """A sidecar with rules but no address table."""
    RULES_AUDITED = "rules, audited"
    FLOODED = "flooded sidecar"
    """A sidecar while 1,000 clients request event streams; refused clients retry."""
    COPYING = "copying relay"
    """A relay that copies bytes without parsing them; its cost is the minimum for a relay in Python."""
    PAUSING = "relay with pauses"
    """The copying relay, which reads the broker's socket at most once every 3 ms."""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    way: Way
    shape: Shape
    producers: int = 0
    """Number of processes; 0: as given on the command line."""
    window: int = 0
    """Maximum number of unconfirmed publishes; 0: the generator's default."""
    polls: bool = False
    """Whether the producers read confirms once per millisecond, instead of as soon as they arrive."""
    prefetch: int = 0
    """Prefetch count of the measured consumer, for which publishes fill the queue beforehand. 0: no consumer."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The result of one case in one round; `cpu_us` is the CPU time per message in microseconds, by process."""

    per_second: float
    cpu_us: Mapping[str, float]


@dataclass(slots=True)
class Round:
    """The results of one round, by case: samples at full speed, and the seconds from each ping to its confirm."""

    samples: dict[str, Sample] = field(default_factory=dict)
    confirm_seconds: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table; `value` computes it from one round, and raises KeyError if one of its cases failed."""

    name: str
    label: str
    unit: str
    target: float | None
    at_least: bool = True
    cases: tuple[str, ...] = ()
    pings: tuple[str, ...] = ()
    value: Callable[[Round], float] = lambda _: float("nan")

    def reached(self, value: float) -> bool | None:
        """Return True if the value reaches the target; None if there is no target."""
        if self.target is None:
            return None
        return value >= self.target if self.at_least else value <= self.target


def routing_key(number: int) -> str:
    return f"key.{number:04}"


def kind(number: int) -> str:
    return f"kind.{number:04}"


def shape(exchange: str, keys: int = QUEUES, kinds: int = QUEUES, distinct: bool = False) -> Shape:
    return Shape(
        exchange=exchange,
        routing_keys=tuple(map(routing_key, range(keys))),
        kinds=tuple(map(kind, range(kinds))),
        distinct=distinct,
    )


REAL_WINDOW = 2_000
RULES_EXCHANGE, MIXED_EXCHANGE, TOPIC_EXCHANGE, AMOUNT_EXCHANGE = (
    "bench.real",
    "bench.mixed",
    "bench.topic",
    "bench.amount",
)
MIXED, MIXED_REGEXES = 1_000, (100, 400, 700)
THOUSAND, THOUSAND_EXCHANGE = 1_000, "bench.thousand"
HEADERS_EXCHANGE, HEADERS_THOUSAND_EXCHANGE = "bench.headers", "bench.headers-thousand"
"""Headers exchanges on the broker, with the bindings of RULES_EXCHANGE and of THOUSAND_EXCHANGE."""
CONSUMED = "bench.consumed"
"""Name of a queue, and of the routing key bound to it."""
FEW_AT_A_TIME = (100, 1)
"""Prefetch counts of consumers that can receive more messages only after acknowledging earlier messages."""
DIFFERING: dict[str, tuple[str, tuple[str, ...]]] = {
    "same": ("nothing differs", ()),
    "id": ("message_id differs", ("message_id",)),
    "header": ("a header that no rule mentions differs", ("header",)),
    "key": ("the routing key differs", ("key",)),
    "all": ("all three differ", FACTS),
}
"""Differences between successive messages in the cases with real traffic, by suffix of the case's name."""


def real(name: str, way: Way, differs: tuple[str, ...], exchange: str = RULES_EXCHANGE, polls: bool = False) -> Case:
    """Return a case with publishes as sent by applications: one producer, up to 2,000 unconfirmed publishes."""
    # Without a sidecar, the exchange is an ordinary exchange with ten bound keys.
    keys = [routing_key(number) if exchange == "bench.direct" else f"order.{number:08}" for number in range(QUEUES)]
    shape = Shape(exchange, tuple(keys), tuple(map(kind, range(QUEUES))), differs=differs)
    return Case(name, way, shape, producers=1, window=REAL_WINDOW, polls=polls)


def consuming(name: str, way: Way, prefetch: int = 2_000) -> Case:
    shape = Shape("bench.direct", (CONSUMED,), tuple(map(kind, range(QUEUES))), differs=("message_id", "header"))
    return Case(name, way, shape, producers=1, prefetch=prefetch)


CASES = {
    case.name: case
    for case in (
        Case("direct", Way.BROKER, shape("bench.direct")),
        Case("direct-distinct", Way.BROKER, shape("bench.direct", distinct=True)),
        Case("haproxy", Way.HAPROXY, shape("bench.direct")),
        Case("pass", Way.SIDECAR, shape("bench.direct")),
        Case("open", Way.SIDECAR, shape("bench.hkv-10")),
        Case("open-audited", Way.AUDITED, shape("bench.hkv-10")),
        Case("open-distinct", Way.SIDECAR, shape("bench.hkv-10", distinct=True)),
        Case("declared", Way.SIDECAR, shape("bench.declared")),
        Case("eight", Way.SIDECAR, shape("bench.eight")),
        Case("direct-eight", Way.BROKER, shape("bench.direct-eight")),
        Case("hkv-many", Way.LOADED, shape("bench.hkv-many")),
        Case("rk-10", Way.SIDECAR, shape("bench.rk-10")),
        Case("rk-many", Way.LOADED, shape("bench.rk-many")),
        Case("rkre-10", Way.SIDECAR, shape("bench.rkre-10", keys=KEYS_IN_TURN)),
        Case("rkre-many", Way.LOADED, shape("bench.rkre-many", keys=KEYS_IN_TURN)),
        Case("local", Way.SIDECAR, shape("bench.local")),
        Case("remote", Way.SIDECAR, shape("bench.remote")),
        Case("table-10", Way.SIDECAR, shape("bench.table")),
        Case("table-many", Way.LOADED, shape("bench.table")),
        Case("hkv-turn", Way.LOADED, shape("bench.hkv-many", kinds=MANY)),
        Case("rk-turn", Way.LOADED, shape("bench.rk-many", keys=MANY)),
        real("real-direct", Way.BROKER, ("message_id", "header"), "bench.direct"),
        real("real-haproxy", Way.HAPROXY, ("message_id", "header"), "bench.direct"),
        real("real-copying", Way.COPYING, ("message_id", "header"), "bench.direct"),
        real("real-pausing", Way.PAUSING, ("message_id", "header"), "bench.direct"),
        *(real(f"real-{end}", Way.RULES, differs) for end, (_, differs) in DIFFERING.items()),
        *(real(f"audited-{end}", Way.RULES_AUDITED, differs) for end, (_, differs) in DIFFERING.items()),
        real("polled-direct", Way.BROKER, ("message_id", "header"), "bench.direct", polls=True),
        real("polled-pausing", Way.PAUSING, ("message_id", "header"), "bench.direct", polls=True),
        real("polled-all", Way.RULES, FACTS, polls=True),
        real("flooded", Way.FLOODED, FACTS),
        real("mixed", Way.RULES, (*FACTS, "amount"), MIXED_EXCHANGE),
        real("topic", Way.RULES, ("key",), TOPIC_EXCHANGE),
        real("amount", Way.RULES, ("amount",), AMOUNT_EXCHANGE),
        consuming("consume-direct", Way.BROKER),
        consuming("consume", Way.RULES),
        consuming("consume-table", Way.SIDECAR),
        *(
            consuming(f"consume{end}-{prefetch}", way, prefetch)
            for end, way in (("-direct", Way.BROKER), ("", Way.RULES))
            for prefetch in FEW_AT_A_TIME
        ),
    )
}


def ratio(name: str, label: str, case: str, base: str, target: float | None) -> Row:
    """Return a row: the confirm rate of `case` divided by that of `base`."""

    def value(measured: Round) -> float:
        return measured.samples[case].per_second / measured.samples[base].per_second

    return Row(name, label, "", target, cases=(base, case), value=value)


def cpu(name: str, label: str, case: str, target: float | None) -> Row:
    """Return a row: the sidecar's CPU time per message divided by HAProxy's."""

    def value(measured: Round) -> float:
        ours = measured.samples[case].cpu_us[Way.SIDECAR]
        return ours / measured.samples["haproxy"].cpu_us[Way.HAPROXY]

    return Row(name, label, "x", target, at_least=False, cases=("haproxy", case), value=value)


def latency(name: str, label: str, case: str, target: float | None) -> Row:
    """Return a row: how much longer a confirm takes than without the sidecar (median, single publishes)."""

    def value(measured: Round) -> float:
        through, direct = (statistics.median(measured.confirm_seconds[one]) for one in (case, "direct"))
        return (through - direct) * MICROSECONDS

    return Row(name, label, "us", target, at_least=False, pings=("direct", case), value=value)


def spent(name: str, label: str, case: str, target: float | None) -> Row:
    """Return a row: the CPU time per message of the process between producer and broker."""
    way = CASES[case].way

    def value(measured: Round) -> float:
        return measured.samples[case].cpu_us[way]

    return Row(name, f"CPU per message, {label}", "us CPU", target, at_least=False, cases=(case,), value=value)


def above(label: str, case: str, target: float) -> Row:
    """Return a row: the CPU time per message in excess of that of the relay with pauses."""
    way = CASES[case].way

    def value(measured: Round) -> float:
        return measured.samples[case].cpu_us[way] - measured.samples["real-pausing"].cpu_us[Way.PAUSING]

    label = f"CPU above the relay with pauses, {label}"
    return Row("real", label, "us CPU", target, at_least=False, cases=("real-pausing", case), value=value)


MOST_ABOVE, MOST_AUDIT = (1.2 if BUILD == "compiled" else 4.5), 1.5
"""Targets in microseconds: cost of a publish in excess of copying, and additional cost of an audit record."""


def real_rows() -> Iterator[Row]:
    """Yield rows for publishes as sent by applications: the fraction of the direct rate, and the CPU time."""
    base = "real-direct"
    for case, label in (
        ("real-haproxy", "HAProxy in TCP mode"),
        ("real-copying", "a relay that only copies"),
        ("real-pausing", "the same, pausing 3 ms between reads from the broker"),
    ):
        yield ratio("real", f"{label} / direct", case, base, None)
        yield spent("real", label, case, None)
    for begin, also, most in (("real", "", MOST_ABOVE), ("audited", ", with audit log", MOST_ABOVE + MOST_AUDIT)):
        for end, (label, _) in DIFFERING.items():
            yield ratio("real", f"10 bindings, {label}{also} / direct", f"{begin}-{end}", base, 1.00)
            yield above(f"{label}{also}", f"{begin}-{end}", most)
    for case, label in (("polled-pausing", "the relay with pauses"), ("polled-all", "10 bindings, all three differ")):
        yield ratio("real", f"{label}, confirms read once per ms / direct", case, "polled-direct", None)
    for case, label, most in (
        ("mixed", "1,000 mixed bindings, 3 regular expressions, all differ", 15.0),
        ("topic", "topic condition order.*, keys differ", 6.0),
        ("amount", "condition amount >=, values differ", 6.0),
    ):
        yield ratio("real", f"{label} / direct", case, base, None)
        yield spent("real", label, case, most)
    for case, label in (("consume", "consuming"), ("consume-table", "consuming, with an address table")):
        yield ratio("consume", f"{label} / direct", case, "consume-direct", None)
        yield spent("consume", label, case, 1.5 if BUILD == "compiled" else None)
    for prefetch in FEW_AT_A_TIME:
        label = f"consuming, prefetch {prefetch}"
        yield ratio("consume", f"{label} / direct", f"consume-{prefetch}", f"consume-direct-{prefetch}", None)
        yield spent("consume", label, f"consume-{prefetch}", None)


ROWS = (
    ratio("pass", "pass-through publish / direct to the broker", "pass", "direct", 0.90),
    ratio("open", "open exchange, 10 bindings, headers that repeat / direct", "open", "direct", 0.85),
    ratio(
        "distinct",
        "the same, message_id and timestamp always different / direct",
        "open-distinct",
        "direct-distinct",
        0.75,
    ),
    ratio("declared", "the same exchange, declared by a client / by the rules file", "declared", "open", 0.97),
    ratio("eight", "8 queues for each message, carrier delivery / 1 queue", "eight", "open", None),
    ratio("eight", "the same without the sidecar", "direct-eight", "direct", None),
    ratio("hkv", "10,000 x-?hkv= bindings, one matches / with 10", "hkv-many", "open", 0.90),
    ratio("rk", "10,000 x-?rk= bindings, one matches / with 10", "rk-many", "rk-10", 0.90),
    ratio("rkre", "1,000 x-?rkre bindings, 1,000 keys in turn / with 10", "rkre-many", "rkre-10", 0.60),
    ratio("local", "address table, another local exchange / direct", "local", "direct", 0.80),
    ratio("remote", "address table, everything to one other broker / direct to it", "remote", "direct", 0.70),
    ratio("table", "1,000 address rules, the last one matches / 10", "table-many", "table-10", 0.90),
    ratio("audit", "open exchange with audit log / without", "open-audited", "open", 0.93),
    latency("latency", "added latency, open exchange, p50", "open", 60),
    latency("latency", "added latency, pass-through, p50", "pass", 60),
    latency("latency", "added latency, HAProxy in TCP mode, p50", "haproxy", None),
    latency("latency", "added latency, a relay that only copies, p50", "real-copying", None),
    cpu("cpu", "CPU per message, pass-through / HAProxy", "pass", 3),
    cpu("cpu", "CPU per message, open exchange / HAProxy", "open", 5),
    *real_rows(),
)
"""Rows that are measured in rounds. The rows of other modules are measured separately."""

EXTRA_ROWS = (
    ratio("turn", "10,000 x-?hkv= bindings, 10,000 values in turn / direct", "hkv-turn", "direct", None),
    ratio("turn", "10,000 x-?rk= bindings, 10,000 keys in turn / direct", "rk-turn", "direct", None),
    ratio("haproxy", "HAProxy in TCP mode / direct", "haproxy", "direct", None),
)
"""Rows that are measured only on request. They have no target, but show where time is spent."""
