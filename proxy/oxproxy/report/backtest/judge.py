"""Evaluates candidate rules for recorded publishes. This module runs in Spark tasks, on any machine.

DuckDB groups the publishes by exchange, facts, recorded result, and whatever else the rules of the exchange test: the
routing key, the range of sizes, the time. The rules are evaluated once per group, in the same way as for `explain`.
Times at which all clock conditions have the same results are not distinguished. The clock of a decision may be a little
later than the time of its record. Shortly before the end of a second, both seconds must have the same result.

A publish is not judged if the record lacks something on which the result may depend. Nothing is guessed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from string import Template
from typing import NamedTuple

import duckdb

from oxproxy.relay.records.facts_record import read_bytes, read_table
from oxproxy.report.backtest.partials import SQL
from oxproxy.report.files.temporary import temporary
from oxproxy.routing.bindings.arguments import X_MATCH, read_arguments
from oxproxy.routing.bindings.compiled import Draft
from oxproxy.routing.bindings.exchange_types import OPEN
from oxproxy.routing.bindings.operators import Operator
from oxproxy.routing.decision import Decision, Facts, Interest, QueueNames
from oxproxy.routing.exchange import join_interests
from oxproxy.routing.message import Message
from oxproxy.rules.evaluation import PASSED, Evaluation, evaluate
from oxproxy.rules.loader import LoadedRules, compile_rules
from oxproxy.rules.message import DescribedMessage
from oxproxy.rules.ruleset import VhostRules
from oxproxy.values import QUEUE, Table, text

#: Maximum number of examples per difference and task, and of differences with examples per task.
EXAMPLES, _WITH_EXAMPLES = 3, 2000
#: Results without a destination.
_UNROUTABLE = ("unrouted", "filtered", "rejected")
#: What a byte looks like that is not UTF-8; and what a hash looks like.
_ESCAPED, _HASH = re.compile(r"\\x[0-9a-f]{2}"), re.compile("[0-9a-f]{24}")
_NO_FACTS = "the record has no facts (audit.facts)"
_NO_QUEUES, _NOTHING = QueueNames(), Facts(b"")
#: Beginning of the keys of clock conditions.
_CLOCK_KEYS = b"x-?dt"


class Result(NamedTuple):
    """What happens to a message, as an audit record describes it. All names are sorted.

    Args:
        alternate: the alternate exchange that receives the message; None if there is none.
        failed: whether the translation of an address failed.
    """

    outcome: str
    queues: tuple[str, ...] = ()
    exchanges: tuple[str, ...] = ()
    remotes: tuple[str, ...] = ()
    violates: tuple[str, ...] = ()
    alternate: str | None = None
    failed: bool = False

    @property
    def destinations(self) -> set[tuple[str, str]]:
        """The kinds and names of the destinations."""
        found = {("queue", name) for name in self.queues} | {("exchange", name) for name in self.exchanges}
        found |= {("remote", name) for name in self.remotes}
        return found if self.alternate is None else found | {("exchange", self.alternate)}

    @property
    def is_unroutable(self) -> bool:
        return not self.destinations and (self.outcome in _UNROUTABLE or self.failed)


class Difference(NamedTuple):
    """Publishes to one exchange with different results."""

    vhost: str
    exchange: str
    recorded: Result
    candidate: Result


class Example(NamedTuple):
    """A publish with a different result. `facts` is the content of its record of facts, or None."""

    message_id: str | None
    routing_key: str
    size: int
    second: int
    facts: str | None


@dataclass(slots=True)
class Judged:
    """Numbers of publishes, by virtual host and exchange; and examples of differences."""

    equal: Counter[tuple[str, str]] = field(default_factory=Counter)
    differences: Counter[Difference] = field(default_factory=Counter)
    #: by virtual host, exchange and reason
    not_judged: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    examples: dict[Difference, list[Example]] = field(default_factory=dict)
    evaluations: int = 0

    def add(self, other: Judged) -> None:
        self.equal += other.equal
        self.differences += other.differences
        self.not_judged += other.not_judged
        self.evaluations += other.evaluations
        for difference, examples in other.examples.items():
            known = self.examples.setdefault(difference, [])
            known += examples[: EXAMPLES - len(known)]


class UnknownError(Exception):
    """The result depends on something that is not recorded. The text is the reason."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The facts of a publish. For `names`, None means all."""

    names: frozenset[bytes] | None = frozenset()
    headers: Table = ()
    property_names: frozenset[str] = frozenset()
    properties: Mapping[str, bytes | int] = field(default_factory=dict)
    declared: bool = False
    hashed: frozenset[str] = frozenset()
    #: why the facts can't be used; empty if they can
    fault: str = ""


def _known(content: str) -> _Known:
    names, headers, property_names, properties, declared, hashed = json.loads(content)
    try:
        return _Known(
            None if names is None else frozenset(name.encode() for name in names),
            read_table(headers),
            frozenset(property_names or ()),
            {
                name: value if isinstance(value, int) else read_bytes(value)
                for name, value in (properties or {}).items()
            },
            bool(declared),
            frozenset(hashed),
        )
    except ValueError:
        return _Known(fault="a header or property is hashed")


class Candidate:
    """The candidate rules."""

    def __init__(self, loaded: LoadedRules) -> None:
        self._loaded = loaded
        self._books = {name: book.with_empty_cache() for name, book in loaded.books.items()}
        self._evaluated = {
            (name, text(rule.name)): rule for name, vhost in loaded.rules.vhosts.items() for rule in vhost.exchanges
        }

    def interest(self, vhost: str, exchange: str) -> Interest:
        """Return all facts on which the result for messages to an exchange can depend."""
        router = self._loaded.routers.get(vhost)
        if router is None:
            return Interest()
        if (vhost, exchange) in self._evaluated:
            found = router.interest(exchange.encode())
        elif vhost in self._books:  # the address table may redirect messages to any exchange
            found = join_interests(router.interest(name) for name in router.exchanges)
        else:
            return Interest()
        return join_interests([found, Interest(routing_key=True)]) if vhost in self._books else found

    def clocks(self, vhost: str, seconds: Iterable[int]) -> Iterator[int]:
        """Yield for each second the first of the given seconds in which all clock conditions have the same results."""
        conditions = list(self._clock_conditions(vhost))
        first: dict[tuple[bool, ...], int] = {}
        for second in seconds:
            message = Message(_NOTHING, float(second), _NO_QUEUES, lambda _: 0)
            results = tuple(condition.predicate(condition.seen(message), message) for condition in conditions)
            yield first.setdefault(results, second)

    def _clock_conditions(self, vhost: str) -> Iterator[Operator]:
        for rule in self._loaded.rules.vhosts[vhost].exchanges:
            draft = Draft((QUEUE, b""), rule.local_time, extensions=True)
            tables: list[Table] = [(requirement.argument,) for requirement in rule.require]
            if rule.type == OPEN:
                tables += [binding.arguments for binding in rule.bindings]
            for arguments in tables:
                chosen = (entry for entry in arguments if entry[0] == X_MATCH or entry[0].startswith(_CLOCK_KEYS))
                read_arguments(tuple(chosen), draft)
            yield from draft.others

    def result(self, row: _Row, known: _Known | None) -> Result:
        """Return the result for a publish.

        Raises:
            UnknownError: something is not recorded.
        """
        if row.is_spent:
            raise UnknownError("a regex budget was spent")
        if row.is_evaluated and known is None:
            raise UnknownError(_NO_FACTS)
        if known is None:
            known = _Known()
        elif known.fault:
            raise UnknownError(known.fault)
        if known.declared:
            raise UnknownError("clients declared the exchange or bindings of it")
        if _ESCAPED.search(row.exchange):
            raise UnknownError("the name of the exchange may not be UTF-8")
        interest = self.interest(row.vhost, row.exchange)
        if interest.routing_key:
            _check_key(row, known)
        if not interest.clock or row.second is None:
            return self._evaluate(row, known, 0.0)
        seconds = (row.second,) if row.later is None else (row.second, row.later)
        results = {self._evaluate(row, known, float(second)) for second in seconds}
        if len(results) > 1:
            raise UnknownError("the clock may have changed between the decision and its record")
        return results.pop()

    def _evaluate(self, row: _Row, known: _Known, at: float) -> Result:
        properties = dict(known.properties)
        if row.message_id is not None:
            properties["message_id"] = row.message_id.encode()
        bounds = self.interest(row.vhost, row.exchange).body_sizes
        size = bounds[row.size_class - 1] if row.size_class else 0
        facts = Facts((row.rk or "").encode(), known.headers, properties, size)

        def decide(message: DescribedMessage) -> Decision:
            router = self._loaded.routers[row.vhost]
            _check_interest(router.interest(message.exchange), row, known)
            decision = router.decide(message.exchange, message.facts, at, _NO_QUEUES, lambda _: 0)
            if not decision.keep:
                raise UnknownError("a rule picks a queue at random")
            return decision

        vhost = self._loaded.rules.vhosts.get(row.vhost, VhostRules(row.vhost))
        message = DescribedMessage(row.exchange.encode(), facts)
        return self._recorded(row.vhost, evaluate(message, vhost, self._books.get(row.vhost), decide))

    def _recorded(self, vhost: str, evaluation: Evaluation) -> Result:
        """Return a result in the form of an audit record."""
        result, decision = evaluation.result, evaluation.decision
        if result.outcome == PASSED:
            return Result(PASSED, violates=tuple(sorted(set(result.violates))))
        alternate = None
        exchanges = result.exchanges
        if decision is not None and decision.alternate:
            named = self._evaluated[vhost, text(decision.exchange)].alternate
            alternate, exchanges = None if named is None else text(named), ()
        explained = decision is not None and bool(decision.filtered_by or decision.violations or decision.spent_budgets)
        return Result(
            result.outcome,
            tuple(sorted(set(result.queues))),
            tuple(sorted(set(exchanges))),
            tuple(sorted(set(result.remotes))),
            tuple(sorted(set(result.violates))),
            alternate,
            bool(result.failed) and not explained,
        )


def _check_key(row: _Row, known: _Known) -> None:
    if "rk" in known.hashed:
        raise UnknownError("routing keys are hashed")
    key = row.rk or ""
    if _ESCAPED.search(key):
        raise UnknownError("the routing key may not be UTF-8")
    if not row.is_evaluated and _HASH.fullmatch(key):
        raise UnknownError("the routing key may be hashed")


def _check_interest(interest: Interest, row: _Row, known: _Known) -> None:
    """Check that everything that rules test is recorded."""
    if interest.headers is None:
        if known.names is not None:
            raise UnknownError("not all headers are recorded")
    elif known.names is not None:
        _check_names("header", sorted(text(name) for name in interest.headers - known.names))
    _check_names("property", sorted(interest.properties - known.property_names - {"message_id"}))
    if "message_id" in interest.properties and row.message_id is not None:
        if "message_id" in known.hashed or (not row.is_evaluated and _HASH.fullmatch(row.message_id)):
            raise UnknownError("message ids are hashed")
        if _ESCAPED.search(row.message_id):
            raise UnknownError("the message id may not be UTF-8")
    if interest.queues:
        raise UnknownError("the names of the existing queues are not recorded")


def _check_names(noun: str, missing: Sequence[str]) -> None:
    if len(missing) == 1:
        raise UnknownError(f"{noun} {missing[0]} is not recorded")
    if missing:
        plural = "headers" if noun == "header" else "properties"
        raise UnknownError(f"{plural} {', '.join(missing)} are not recorded")


class _Row(NamedTuple):
    """A group of publishes: one attribute for each column of the SQL statement `groups`."""

    vhost: str
    exchange: str
    rk: str | None
    size_class: int
    second: int | None
    later: int | None
    fact: int | None
    message_id: str | None
    outcome: str
    queues: list[str]
    exchanges: list[str]
    remotes: list[str]
    violates: list[str]
    alternate: str | None
    is_failed: bool
    is_spent: bool
    is_evaluated: bool
    n: int

    @property
    def recorded(self) -> Result:
        queues, exchanges, remotes = tuple(self.queues), tuple(self.exchanges), tuple(self.remotes)
        violates = tuple(self.violates)
        return Result(self.outcome, queues, exchanges, remotes, violates, self.alternate, self.is_failed)


@lru_cache(1)
def candidate_of(contents: tuple[tuple[str, bytes], ...]) -> Candidate:
    """Return the candidate rules in files, given as names and contents. A process compiles them once."""
    return Candidate(compile_rules(contents))


#: Columns by which the publishes of a group are found again.
_CHOSEN = (
    "vhost", "exchange", "rk", "size_class", "second", "fact", "message_id", "outcome", "queues", "exchanges",
    "remotes", "violates", "alternate",
)  # fmt: skip


class _Task:
    """Judges the publishes in some tables."""

    def __init__(self, duck: duckdb.DuckDBPyConnection, candidate: Candidate) -> None:
        self._duck = duck
        self._candidate = candidate
        self._judged = Judged()
        self._chosen: list[tuple[Difference, _Row]] = []
        self._results: dict[tuple[object, ...], Result | str] = {}

    def run(self, publishes: Sequence[str], facts: Sequence[str], excluded: str) -> Judged:
        self._duck.execute(Template(SQL["rows"]).substitute(files=list(publishes), chosen=excluded))
        self._duck.execute(SQL["needs"])
        for vhost, exchange in self._duck.execute(SQL["addresses"]).fetchall():
            interest = self._candidate.interest(vhost, exchange)
            values = (
                interest.routing_key,
                list(interest.body_sizes),
                interest.clock,
                "message_id" in interest.properties,
            )
            self._duck.execute("INSERT INTO needs VALUES (?, ?, ?, ?, ?, ?)", [vhost, exchange, *values])
        self._duck.execute(SQL["clocks"])
        for vhost, seconds in self._duck.execute(SQL["seconds"]).fetchall():
            columns = [vhost, seconds, list(self._candidate.clocks(vhost, seconds))]
            self._duck.execute("INSERT INTO clocks SELECT ?, unnest(?::BIGINT[]), unnest(?::BIGINT[])", columns)
        self._duck.execute(SQL["keys"])
        contents = dict(self._duck.execute(f"SELECT fact, content FROM read_parquet({list(facts)})").fetchall())
        known = {fact: _known(content) for fact, content in contents.items()}
        found = self._duck.execute(SQL["groups"])
        while rows := found.fetchmany(50_000):
            for values in rows:
                row = _Row._make(values)
                self._judge(row, None if row.fact is None else known.get(row.fact))
        self._find_examples(contents)
        return self._judged

    def _judge(self, row: _Row, known: _Known | None) -> None:
        # Groups that differ only in their recorded results have the same result.
        key = (*row[:8], row.is_spent, row.is_evaluated)
        result = self._results.get(key)
        if result is None:
            self._judged.evaluations += 1
            try:
                result = self._candidate.result(row, known)
            except UnknownError as error:
                result = str(error)
            if len(self._results) > 200_000:
                self._results.clear()
            self._results[key] = result
        if isinstance(result, str):
            self._judged.not_judged[row.vhost, row.exchange, result] += row.n
        elif result == row.recorded:
            self._judged.equal[row.vhost, row.exchange] += row.n
        else:
            difference = Difference(row.vhost, row.exchange, row.recorded, result)
            self._judged.differences[difference] += row.n
            chosen = self._judged.examples.setdefault(difference, [])
            if len(chosen) < EXAMPLES and len(self._chosen) < _WITH_EXAMPLES:
                chosen.append(Example(None, "", 0, 0, None))  # replaced when the publish has been found
                self._chosen.append((difference, row))

    def _find_examples(self, contents: Mapping[int, str]) -> None:
        self._judged.examples = {}
        if not self._chosen:
            return
        columns = [[getattr(row, name) for _, row in self._chosen] for name in _CHOSEN]
        types = ["VARCHAR", "VARCHAR", "VARCHAR", "BIGINT", "BIGINT", "UBIGINT", "VARCHAR", "VARCHAR"]
        types += ["VARCHAR[]"] * 4 + ["VARCHAR"]
        selected = ", ".join(f"unnest(?::{kind}[]) AS {name}" for name, kind in zip(_CHOSEN, types, strict=True))
        numbers = list(range(len(self._chosen)))
        self._duck.execute(
            f"CREATE TEMP TABLE chosen AS SELECT unnest(?::INTEGER[]) AS number, {selected}", [numbers, *columns]
        )
        for number, *values in self._duck.execute(Template(SQL["examples"]).substitute(examples=EXAMPLES)).fetchall():
            difference, row = self._chosen[number]
            rk, size, second, message_id = values
            examples = self._judged.examples.setdefault(difference, [])
            if len(examples) < EXAMPLES:
                facts = None if row.fact is None else contents.get(row.fact)
                examples.append(Example(message_id, rk, size, second, facts))


@dataclass(frozen=True, slots=True)
class Share:
    """The part of the tables that one task judges.

    Args:
        directories: the directories of the tables.
        excluded: numbers of the segments of a directory that are copies of other segments.
    """

    directories: tuple[str, ...]
    excluded: Mapping[str, tuple[int, ...]]


def judge_files(share: Share, contents: tuple[tuple[str, bytes], ...]) -> Judged:
    """Judge the publishes in tables on this machine."""
    with temporary() as work:
        publishes, facts, excluded = [], [], ["true"]
        for number, folder in enumerate(share.directories):
            link = work / str(number)  # DuckDB would treat characters in other names as patterns
            link.symlink_to(folder)
            publishes.append(f"{link}/publishes.parquet")
            facts.append(f"{link}/facts.parquet")
            if copies := share.excluded.get(folder):
                excluded.append(f"NOT (filename = '{publishes[-1]}' AND segment IN ({', '.join(map(str, copies))}))")
        with duckdb.connect(config={"temp_directory": str(work / "spill")}) as duck:
            duck.execute(SQL["setup"])
            return _Task(duck, candidate_of(contents)).run(publishes, facts, " AND ".join(excluded))


def judge_contents(
    rows: Iterable[tuple[int, Iterable[tuple[str, str, bytes]]]],
    excluded: Mapping[str, tuple[int, ...]],
    contents: tuple[tuple[str, bytes], ...],
) -> Iterable[Judged]:
    """Judge the publishes in tables, given as directory, name and content."""
    for _, files in rows:
        with temporary() as work:
            directories: dict[str, Path] = {}
            for folder, name, content in files:
                local = directories.setdefault(folder, work / str(len(directories)))
                local.mkdir(exist_ok=True)
                (local / name).write_bytes(content)
            here = {str(directories[folder]): copies for folder, copies in excluded.items() if folder in directories}
            yield judge_files(Share(tuple(map(str, directories.values())), here), contents)
