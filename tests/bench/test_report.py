from __future__ import annotations

from typing import cast

from tests.bench.arena import Arena
from tests.bench.cases import Case, Round, Sample, cpu, latency, ratio
from tests.bench.processes import ChildError, LoadProcess
from tests.bench.report import outcome, table
from tests.bench.session import Session

RATIO = ratio("pass", "pass / direct", "pass", "direct", 0.9)


def measured(**per_second: float) -> Round:
    return Round({name: Sample(value, {}) for name, value in per_second.items()})


def test_a_ratio_is_taken_in_each_round_and_the_median_over_the_rounds() -> None:
    rounds = [
        measured(**{"direct": 100, "pass": 90}),
        measured(**{"direct": 50, "pass": 50}),
        measured(**{"direct": 10, "pass": 5}),
    ]

    found = outcome(RATIO, rounds, {})

    assert list(found.values) == [0.9, 1.0, 0.5]
    assert (found.median, found.verdict) == (0.9, "ok")


def test_a_case_that_confirmed_nothing_counts_as_nothing_and_not_as_a_failure() -> None:
    found = outcome(RATIO, [measured(**{"direct": 100, "pass": 0})], {})

    assert (found.median, found.verdict) == (0.0, "missed")


def test_what_has_to_be_low_is_missed_above_its_target() -> None:
    row = cpu("cpu", "CPU", "pass", 3)
    spent = Round({"pass": Sample(1, {"sidecar": 4.0}), "haproxy": Sample(1, {"haproxy": 1.0})})

    found = outcome(row, [spent], {})

    assert (found.median, found.verdict) == (4.0, "missed")


def test_an_added_latency_is_the_difference_of_medians_in_microseconds() -> None:
    row = latency("latency", "added", "open", 150)
    pings = Round(confirm_seconds={"direct": [0.001, 0.002, 0.009], "open": [0.0021, 0.001, 0.0021]})

    found = outcome(row, [pings], {})

    assert found.median is not None
    assert round(found.median) == 100


def test_a_failed_case_shows_its_reason_once_below_the_table() -> None:
    found = outcome(RATIO, [measured(direct=1)], {"pass": "pass: sidecar ended with 2"})

    lines = table([found, found]).splitlines()

    assert found.verdict == "failed"
    assert [line for line in lines if "sidecar" in line] == ["failed: pass: sidecar ended with 2"]


class HalfBrokenArena:
    """An arena in which only the case `direct` works."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def producers(self, case: Case) -> list[LoadProcess]:
        self.asked.append(case.name)
        if case.name != "direct":
            raise ChildError("no sidecar")
        return []

    def run(self, case: Case) -> Sample:
        self.producers(case)
        return Sample(1.0, {})


def test_a_case_that_failed_is_left_out_and_the_others_go_on() -> None:
    arena = HalfBrokenArena()
    session = Session(cast(Arena, arena), ["pass"])

    session.prepare()
    session.run(session.pings())

    assert arena.asked == ["direct", "pass", "direct"]
    assert [one.failure for one in session.outcomes()] == ["pass: no sidecar"]
