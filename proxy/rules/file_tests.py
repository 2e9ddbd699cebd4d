"""Tests that rules files carry: what each publishes, what it expects, and whether the rules do so.

A test expects the names that the rules choose, whether or not they exist. The queues that regex routes see are those
that the rules name and those that the test adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from proxy.addressing.targets import AddressBook
from proxy.errors import located
from proxy.routing.router import Router
from proxy.rules.evaluation import (
    OUTCOMES,
    RoutingResult,
    decide,
    mentioned_queues,
    routing_result,
    translate_publish,
)
from proxy.rules.field_values import instant
from proxy.rules.message import DescribedMessage, read_message, text
from proxy.rules.ruleset import Rules
from proxy.yamlfile.document import Place
from proxy.yamlfile.fields import Fields


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a test expects; lists that it does not name are empty."""

    queues: frozenset[str]
    exchanges: frozenset[str]
    remotes: frozenset[str]
    outcome: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class RulesTest:
    """One test of a rules file.

    Args:
        name: as the operator wrote it.
        place: where.
        path: its dotted path.
        vhost: the file's virtual host.
        message: what is published.
        at: seconds since the epoch, None where the test does not say.
        queues: further queues that exist in this test.
        expected: what must come of it.
    """

    name: str
    place: Place
    path: str
    vhost: str
    message: DescribedMessage
    at: float | None
    queues: frozenset[bytes]
    expected: Expectation


@dataclass(frozen=True, slots=True)
class TestFailure:
    """One test that does not hold, with every difference."""

    test: RulesTest
    differences: tuple[str, ...]

    def __str__(self) -> str:
        """``file:line:column: tests[0]: name: differences``."""
        return f"{located(*self.test.place)}: {self.test.path}: {self.test.name}: {'; '.join(self.differences)}"


def read_test(fields: Fields, vhost: str) -> RulesTest | None:
    """Read one test of a rules file."""
    name = fields.text("name", "a sentence that says what must hold", required=True)
    publish = fields.section("publish")
    if publish is None and "publish" not in fields:
        fields.error("publish", "seen nothing, expected the message to publish")
    at_text = fields.text("at", "a time such as 2026-11-21T08:00:00Z")
    at = None if at_text is None else instant(at_text)
    if at_text is not None and at is None:
        fields.wrong("at", "a time with its zone such as 2026-11-21T08:00:00Z")
    queues = frozenset(item.text.encode() for _, item in fields.texts("queues", "the name of a queue"))
    expect = fields.section("expect")
    if expect is None and "expect" not in fields:
        fields.error("expect", "seen nothing, expected queues, exchanges, remotes, outcome or error")
    fields.finish()
    message = read_message(publish) if publish else None
    if publish:
        publish.finish()
    expected = _expectation(expect) if expect else None
    if name is None or message is None or expected is None:
        return None
    return RulesTest(name, fields.place, fields.path, vhost, message, at, queues, expected)


def _expectation(fields: Fields) -> Expectation:
    expected = Expectation(
        queues=_expected_names(fields, "queues"),
        exchanges=_expected_names(fields, "exchanges"),
        remotes=_expected_names(fields, "remotes"),
        outcome=fields.choice("outcome", OUTCOMES, "") or None,
        error=fields.text("error", "the text of the channel error"),
    )
    fields.finish()
    return expected


def _expected_names(fields: Fields, key: str) -> frozenset[str]:
    return frozenset(item.text for _, item in fields.texts(key, "a name"))


def check_tests(
    tests: Iterable[RulesTest], rules: Rules, routers: Mapping[str, Router], books: Mapping[str, AddressBook]
) -> list[TestFailure]:
    """Run tests against the rules.

    Args:
        tests: of all files.
        rules: what the files say together.
        routers: the same compiled, by virtual host.
        books: the address tables.

    Returns:
        The tests that do not hold, in file order.
    """
    known = {name: mentioned_queues(vhost, routers[name]) for name, vhost in rules.vhosts.items()}
    failures = []
    for test in tests:
        differences = _differences(test, rules, routers, books.get(test.vhost), known)
        if differences:
            failures.append(TestFailure(test, differences))
    return failures


def _differences(
    test: RulesTest,
    rules: Rules,
    routers: Mapping[str, Router],
    book: AddressBook | None,
    known: Mapping[str, frozenset[bytes]],
) -> tuple[str, ...]:
    vhost = rules.vhosts[test.vhost]
    message = test.message
    if all(each.name != message.exchange for each in vhost.exchanges):
        found = None if book is None else translate_publish(message, vhost, book)
        if isinstance(found, RoutingResult):
            return compare(found, test.expected)
        if found is None:
            return (f"publishes to {text(message.exchange)}, which no rules file names",)
        message, book = found, None
    router = routers[test.vhost]
    if test.at is None and router.interest(message.exchange).clock:
        return ("the rules look at the clock, so the test needs at:",)
    queues = known[test.vhost] | test.queues
    decision = decide(router, message, test.at or 0.0, queues)
    return compare(routing_result(decision, vhost, book, message.facts.routing_key), test.expected)


def compare(result: RoutingResult, expected: Expectation) -> tuple[str, ...]:
    """List what is other than expected, one text a difference."""
    differences = []
    for what in ("queues", "exchanges", "remotes"):
        wanted, got = getattr(expected, what), set(getattr(result, what))
        if wanted - got:
            differences.append(f"{what}: expected {_names(wanted - got)} as well")
        if got - wanted:
            differences.append(f"{what}: got {_names(got - wanted)}, which was not expected")
    if expected.outcome is not None and expected.outcome != result.outcome:
        differences.append(f"outcome: expected {expected.outcome}, got {result.outcome}")
    if expected.error is not None and expected.error != result.error:
        got_error = "no error" if result.error is None else f'"{result.error}"'
        differences.append(f'error: expected "{expected.error}", got {got_error}')
    if result.failed and expected.outcome is None:
        differences.append(f"a translation leads nowhere: {'; '.join(result.failed)}")
    if result.error is not None and expected.error is None and expected.outcome is None:
        differences.append(f'error: the message is refused with "{result.error}"')
    return tuple(differences)


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
