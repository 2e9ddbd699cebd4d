"""The checker of the campaign finds each kind of violation, and nothing else."""

from __future__ import annotations

import pytest

from tests.campaign.matching import Audit, Outcome, Route, Stream, Tally, verdict

PAIR = Route("orders", headers={"to": "pair"}, queues=frozenset(("a", "b")), recorded=frozenset(("a", "b")))
NONE = Route("orders", headers={"to": "none"}, recorded=frozenset(), mandatory=True)


class Run:
    """Three messages to two queues, all acked and received once, and one that was returned."""

    def __init__(self) -> None:
        self.stream = Stream(1, "test", (PAIR, NONE))
        self.tallies = {"a": Tally(), "b": Tally(), "c": Tally()}
        for route in (0, 0, 0, 1):
            message = self.stream.add(route)
            self.stream.send(message)
            self.stream.attempts[message] = 1
            self.stream.outcome[message] = Outcome.RETURNED if route else Outcome.ACKED
            for queue in self.stream.routes[route].queues:
                self.tallies[queue].add(self.stream.body(message))
        self.recorded = [(f"1-{number}", ["a", "b"] if number < 3 else []) for number in range(4)]

    def violations(self, excused: dict[str, float] | None = None) -> list[tuple[str, str]]:
        audit = Audit([self.stream])
        for record in self.recorded:
            audit.add(*record)
        found = verdict([self.stream], self.tallies, audit, excused).violations
        return [(kind, text.rpartition(": ")[2]) for kind, text in found]


def test_no_violation_if_each_message_is_in_its_queues_once() -> None:
    assert Run().violations() == []


def test_a_lost_message() -> None:
    run = Run()
    run.tallies["b"].copies[1][1] -= 1
    assert run.violations() == [("lost", "no copy in queue b")]


def test_a_message_that_is_lost_at_the_end() -> None:
    run = Run()
    del run.tallies["b"].copies[1][2:]
    assert run.violations() == [("lost", "no copy in queue b")]


def test_a_message_that_was_returned_although_it_has_queues() -> None:
    run = Run()
    run.stream.outcome[0] = Outcome.RETURNED
    assert run.violations() == [("lost", "returned as unroutable")]


def test_a_doubled_message() -> None:
    run = Run()
    run.tallies["a"].add(run.stream.body(0))
    assert run.violations() == [("duplicated", "2 copies in queue a")]


def test_a_second_copy_is_permitted_after_a_second_attempt_and_a_third_is_not() -> None:
    run = Run()
    run.stream.attempts[0] = 2
    run.tallies["a"].add(run.stream.body(0))
    assert run.violations() == []
    run.tallies["a"].add(run.stream.body(0))
    assert run.violations() == [("duplicated", "3 copies in queue a")]


def test_a_message_that_arrived_although_it_was_rolled_back() -> None:
    run = Run()
    run.stream.outcome[0] = Outcome.ABSENT
    assert run.violations() == [("duplicated", "1 copies in queue a"), ("duplicated", "1 copies in queue b")]


@pytest.mark.parametrize("message", [0, 3])
def test_a_misrouted_message(message: int) -> None:
    run = Run()
    run.tallies["c"].add(run.stream.body(message))
    assert run.violations() == [("misrouted", "1 copies in queue c")]


def test_a_message_that_should_have_been_returned() -> None:
    run = Run()
    run.stream.outcome[3] = Outcome.ACKED
    assert run.violations() == [("misrouted", "acked without a return")]


def test_a_message_with_an_unknown_outcome_may_be_missing() -> None:
    run = Run()
    run.stream.outcome[1] = Outcome.UNKNOWN
    run.tallies["b"].copies[1][1] -= 1
    assert run.violations() == []


def test_messages_may_be_lost_with_their_queue_until_it_is_declared_again() -> None:
    run = Run()
    run.tallies["b"].copies.clear()
    run.stream.sent[2] = 100.0
    run.stream.sent[0] = run.stream.sent[1] = 50.0
    assert run.violations({"b": 100.0}) == [("lost", "no copy in queue b")]  # the last one


@pytest.mark.parametrize("body", [b"1 0 y", b"no number", b"1 96 short", b"7 1 ", b"1 4 "])
def test_a_changed_message(body: bytes) -> None:
    run = Run()
    run.tallies["a"].add(body)
    [(kind, _)] = run.violations()
    assert kind == "changed"


def test_audit_records() -> None:
    run = Run()
    del run.recorded[0]
    assert run.violations() == [("unrecorded", "no audit record")]
    run = Run()
    run.recorded.append(run.recorded[0])
    assert run.violations() == [("unrecorded", "2 audit records, 1 sends")]
    run = Run()
    run.recorded[0] = ("1-0", ["a"])
    assert run.violations() == [("unrecorded", "recorded for ['a']")]
    run = Run()
    run.recorded.append(("1-7", []))
    assert run.violations() == [("unrecorded", "a record of 1-7, which was not sent")]
