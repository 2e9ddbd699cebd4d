"""Reads the tests in rules files, and compares the expected result of each test with the actual result.

Results consist of the names that the rules choose, regardless of whether queues and exchanges with these names exist.
Regex routes choose among the queues named by the rules or the test.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, TypeAlias

from oxproxy.addressing.targets import AddressBook
from oxproxy.errors import located
from oxproxy.routing.router import Router
from oxproxy.rules.evaluation import Evaluation, RoutingResult, decide, evaluate, mentioned_queues
from oxproxy.rules.field_values import instant
from oxproxy.rules.message import DescribedMessage, MessageModel, described_message
from oxproxy.rules.ruleset import Rules
from oxproxy.values import text
from oxproxy.yamlfile.document import Place
from oxproxy.yamlfile.models import LISTED, NOTHING, Expected, FileModel, Keys, Parsed, read_model


def publish_time(written: str) -> float:
    seconds = instant(written)
    if seconds is None or not _EARLIEST <= seconds <= _LATEST:
        raise ValueError(_TIME)
    return seconds


#: 0002-01-01 and 9999-12-30 (UTC). In some time zones, earlier and later times may be outside the range of `datetime`.
_EARLIEST, _LATEST = -62_104_060_800, 253_402_128_000
_TIME = "a time with its zone such as 2026-11-21T08:00:00Z"
#: An instant in seconds since the epoch.
Time: TypeAlias = Annotated[float, Parsed(_TIME, publish_time, float, {"type": "string", "description": _TIME})]
_Names: TypeAlias = Annotated[tuple[Annotated[str, Expected("a name")], ...], LISTED]


class ExpectationModel(FileModel):
    """Expected result of a test. Omitted lists are expected to be empty; an omitted outcome is not checked."""

    queues: _Names = ()
    """every queue that receives the message"""
    exchanges: _Names = ()
    """every exchange on the broker that receives the message"""
    remotes: _Names = ()
    """every other broker that receives the message"""
    violates: _Names = ()
    """every condition of a contract, and every observed filter, that the message violates"""
    outcome: Literal["routed", "unrouted", "filtered", "rejected", "translated", "passed"] = NOTHING
    error: Annotated[str, Expected("the text of the channel error")] = NOTHING


class FileTestModel(FileModel):
    """One test of a rules file."""

    name: Annotated[str, Expected("a sentence that states what must hold")]
    publish: MessageModel
    """the message to publish"""
    at: Time = NOTHING
    queues: Annotated[tuple[Annotated[str, Expected("the name of a queue")], ...], LISTED] = ()
    """queues that exist in this test, in addition to those that the rules mention"""
    expect: ExpectationModel
    """queues, exchanges, remotes, outcome or error"""


@dataclass(frozen=True, slots=True)
class RulesTest:
    """One test of a rules file.

    Args:
        at: seconds since the epoch; None if not specified.
        queues: queues that exist in this test in addition to those named by the rules.
    """

    name: str
    place: Place
    path: str
    vhost: str
    message: DescribedMessage
    at: float | None
    queues: frozenset[bytes]
    expected: ExpectationModel


@dataclass(frozen=True, slots=True)
class TestFailure:
    """A failed test, with all differences between the actual and the expected result."""

    test: RulesTest
    differences: tuple[str, ...]

    def __str__(self) -> str:
        """Return ``file:line:column: tests[0]: name: differences``."""
        return f"{located(*self.test.place)}: {self.test.path}: {self.test.name}: {'; '.join(self.differences)}"


def read_test(keys: Keys, vhost: str) -> RulesTest | None:
    model = read_model(FileTestModel, keys)
    if model is None:
        return None
    message = described_message(model.publish, keys.section("publish"))
    queues = frozenset(name.encode() for name in model.queues)
    return RulesTest(model.name, keys.place, keys.path, vhost, message, model.at, queues, model.expect)


def evaluate_tests(
    tests: Iterable[RulesTest], rules: Rules, routers: Mapping[str, Router], books: Mapping[str, AddressBook]
) -> Iterator[tuple[RulesTest, Evaluation]]:
    """Evaluate the rules for the messages of tests. A test without a time is evaluated at the epoch."""
    known = {name: mentioned_queues(vhost, routers[name]) for name, vhost in rules.vhosts.items()}
    for test in tests:
        router, queues = routers[test.vhost], known[test.vhost] | test.queues
        decision_of = partial(decide, router, at=test.at or 0.0, queues=queues)
        yield test, evaluate(test.message, rules.vhosts[test.vhost], books.get(test.vhost), decision_of)


def check_tests(
    tests: Iterable[RulesTest], rules: Rules, routers: Mapping[str, Router], books: Mapping[str, AddressBook]
) -> list[TestFailure]:
    """Run tests against the rules; return the failed tests, in file order."""
    failures = []
    for test, evaluation in evaluate_tests(tests, rules, routers, books):
        exchange = evaluation.message.exchange
        if evaluation.untouched:
            differences: tuple[str, ...] = (f"publishes to {text(exchange)}, which no rules file names",)
        elif evaluation.decision is not None and test.at is None and routers[test.vhost].interest(exchange).clock:
            differences = ("the rules depend on the clock, so the test needs the key `at`",)
        else:
            differences = compare(evaluation.result, test.expected)
        if differences:
            failures.append(TestFailure(test, differences))
    return failures


def compare(result: RoutingResult, expected: ExpectationModel) -> tuple[str, ...]:
    """Return one string for each difference between the actual and the expected result."""
    differences = []
    outcome: str | None = expected.outcome
    error: str | None = expected.error
    # A test that expects an error need not name the condition.
    rejected = result.error is not None and not expected.violates
    for key in ("queues", "exchanges", "remotes") if rejected else ("queues", "exchanges", "remotes", "violates"):
        wanted, got = set(getattr(expected, key)), set(getattr(result, key))
        if wanted - got:
            differences.append(f"{key}: expected {_names(wanted - got)} as well")
        if got - wanted:
            differences.append(f"{key}: got {_names(got - wanted)}, which was not expected")
    if outcome is not None and outcome != result.outcome:
        differences.append(f"outcome: expected {outcome}, got {result.outcome}")
    if error is not None and error != result.error:
        got_error = "no error" if result.error is None else f'"{result.error}"'
        differences.append(f'error: expected "{error}", got {got_error}')
    if result.failed and outcome is None:
        differences.append(f"a translation failed: {'; '.join(result.failed)}")
    if result.error is not None and error is None and outcome is None and not expected.violates:
        differences.append(f'error: the message is rejected with "{result.error}"')
    return tuple(differences)


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
