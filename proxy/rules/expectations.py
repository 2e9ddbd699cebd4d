"""Do the tests that rules files carry hold? What each publishes, what it expects, what the rules make of it.

Existence is not looked at: a test expects the names that the rules choose. Queues that regex routes see are those
that the rules mention, and those that the test adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from proxy.routing.bindings import QUEUE
from proxy.routing.decision import Decision, Outcome, QueueNames
from proxy.routing.router import Router
from proxy.routing.trace import Trace
from proxy.rules.clock import instant
from proxy.rules.faults import Place
from proxy.rules.fields import Fields
from proxy.rules.message import Message, read_message
from proxy.rules.model import Rules, VhostRules

PASSED = "passed"
#: What can become of a message; `translated` is for address tables.
OUTCOMES = (*(outcome.value for outcome in Outcome), PASSED)


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
    message: Message
    at: float | None
    queues: frozenset[bytes]
    expected: Expectation


@dataclass(frozen=True, slots=True)
class Failure:
    """One test that does not hold, with every difference."""

    test: RulesTest
    differences: tuple[str, ...]

    def __str__(self) -> str:
        """``file:line: tests[0]: name: differences``."""
        place = f"{self.test.place.source}:{self.test.place.line}"
        return f"{place}: {self.test.path}: {self.test.name}: {'; '.join(self.differences)}"


@dataclass(frozen=True, slots=True)
class Result:
    """Where a message goes, in the words of a test.

    `exchanges` includes the alternate exchange where it applies.
    """

    queues: tuple[str, ...]
    exchanges: tuple[str, ...]
    remotes: tuple[str, ...]
    outcome: str
    error: str | None


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


def check_tests(tests: Iterable[RulesTest], rules: Rules, routers: Mapping[str, Router]) -> list[Failure]:
    """Run tests against the rules.

    Args:
        tests: of all files.
        rules: what the files say together.
        routers: the same compiled, by virtual host.

    Returns:
        The tests that do not hold, in file order.
    """
    known = {name: mentioned_queues(vhost, routers[name]) for name, vhost in rules.vhosts.items()}
    failures = []
    for test in tests:
        differences = _differences(test, rules, routers, known)
        if differences:
            failures.append(Failure(test, differences))
    return failures


def mentioned_queues(vhost: VhostRules, router: Router) -> frozenset[bytes]:
    """Queues that the rules of a virtual host name: what regex routes see where no broker is asked."""
    found = {queue.name for queue in vhost.queues}
    for exchange in router.exchanges.values():
        found |= {name for kind, name in exchange.destinations if kind == QUEUE}
    return frozenset(found)


def decide(
    router: Router, message: Message, at: float, queues: Iterable[bytes], trace: Trace | None = None
) -> Decision:
    """Ask the rules; a random pick takes the first name in byte order, so that answers can be compared."""
    names = QueueNames(tuple(sorted(queues)))
    return router.decide(message.exchange, message.facts, at, names, lambda _: 0, trace)


def result_of(decision: Decision, vhost: VhostRules) -> Result:
    """Say where a message goes, with the alternate exchange and ``unmatched: pass`` in it."""
    rule = next(each for each in vhost.exchanges if each.name == decision.exchange)
    exchanges = set(decision.exchanges)
    outcome = decision.outcome.value
    if decision.outcome is Outcome.UNROUTED and rule.unmatched_pass:
        outcome = PASSED
    elif decision.alternate and rule.alternate is not None:
        exchanges.add(rule.alternate)
    return Result(
        tuple(_shown(name) for name in decision.queues),
        tuple(_shown(name) for name in sorted(exchanges)),
        (),
        outcome,
        _shown(decision.error) if decision.outcome is Outcome.REJECTED else None,
    )


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _differences(
    test: RulesTest, rules: Rules, routers: Mapping[str, Router], known: Mapping[str, frozenset[bytes]]
) -> tuple[str, ...]:
    vhost = rules.vhosts[test.vhost]
    name = test.message.exchange
    if all(each.name != name for each in vhost.exchanges):
        return (f"publishes to {_shown(name)}, which no rules file names",)
    router = routers[test.vhost]
    if test.at is None and router.interest(name).clock:
        return ("the rules look at the clock, so the test needs at:",)
    queues = known[test.vhost] | test.queues
    decision = decide(router, test.message, test.at or 0.0, queues)
    return compare(result_of(decision, vhost), test.expected)


def compare(result: Result, expected: Expectation) -> tuple[str, ...]:
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
    if result.error is not None and expected.error is None and expected.outcome is None:
        differences.append(f'error: the message is refused with "{result.error}"')
    return tuple(differences)


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
