"""Runs all measurements in interleaved rounds, so that a change in the machine's speed affects all cases.

A failed case is reported and then omitted; the other cases continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from tests.bench import console, cycles, in_process, memory, pauses, relay, report, scale, scrapers
from tests.bench.arena import Arena
from tests.bench.cases import CASES, EXTRA_ROWS, ROWS, Round
from tests.bench.processes import ChildError
from tests.bench.report import Outcome
from tests.producer import Closed, Gone
from tests.sidecar import SidecarFailed


def unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


PING_BLOCKS, PINGS = 8, 50
"""Pings in a round. The cases alternate in short blocks, since the added latency is a small difference."""
SINGLES = (
    (memory.IDLE_ROWS, memory.measure_idle),
    (memory.HOSTILE_ROWS, memory.measure_hostile),
    (memory.LARGE_ROWS, memory.measure_large),
    (memory.LOAD_ROWS, memory.measure_load),
    (in_process.MISS_ROWS, in_process.measure_miss),
    (relay.CONDITION_ROWS, relay.measure_conditions),
    (pauses.PAUSE_ROWS, pauses.measure_pause),
    (cycles.CYCLE_ROWS, cycles.measure_cycles),
    (pauses.SCRAPE_ROWS, pauses.measure_scrape),
    (in_process.HELD_ROWS, in_process.measure_turns),
    (in_process.EVENT_ROWS, in_process.measure_events),
    (console.CONSOLE_ROWS, console.measure_console),
)
"""Measurements that are made once, outside the rounds: rows, and the function that returns their values."""
EXTRA_SINGLES = (
    (scale.CHECK_ROWS, scale.measure_check),
    (scale.DECIDE_ROWS, scale.measure_decisions),
    (scale.RELOAD_ROWS, scale.measure_reload),
    (scale.RESTORE_ROWS, scale.measure_restore),
    (scrapers.SCRAPER_ROWS, scrapers.measure_scrapers),
)
"""Single measurements that are made only on request, since they take minutes."""
STANDARD = unique(row.name for row in (*ROWS, *(rows[0] for rows, _ in SINGLES)))
EXTRA = unique(row.name for row in (*EXTRA_ROWS, *(rows[0] for rows, _ in EXTRA_SINGLES)))

Found = TypeVar("Found")


class Session:
    """One benchmark. Call `prepare`, then `pings` and `run` once for each round, then `singles`, then `outcomes`."""

    def __init__(self, arena: Arena, names: Sequence[str]) -> None:
        self._arena = arena
        self._rows = [row for row in (*ROWS, *EXTRA_ROWS) if row.name in names]
        self._names = names
        self._single_outcomes: list[Outcome] = []
        self.rounds: list[Round] = []
        self.failures: dict[str, str] = {}

    def prepare(self) -> None:
        """Start all processes before the first round, so that no start disturbs another case."""
        for name in unique(case for row in self._rows for case in (*row.cases, *row.pings)):
            case = CASES[name]
            self._guarded(name, partial(self._arena.consumer if case.prefetch else self._arena.producers, case))

    def pings(self) -> Round:
        """Begin a round with its pings. Those of all rounds come before any case runs at full speed.

        For some seconds after full speed, the broker and every process in front of it confirm single publishes more
        slowly.
        """
        measured = Round()
        self.rounds.append(measured)
        pings = unique(case for row in self._rows for case in row.pings)
        for name in pings * PING_BLOCKS:
            times = self._guarded(name, partial(self._arena.ping, CASES[name], PINGS))
            if times is not None:
                measured.confirm_seconds.setdefault(name, []).extend(times)
        return measured

    def run(self, measured: Round) -> None:
        """Run every case of a round once at full speed."""
        for name in unique(case for row in self._rows for case in row.cases):
            sample = self._guarded(name, partial(self._arena.run, CASES[name]))
            if sample is not None:
                measured.samples[name] = sample

    def singles(self) -> None:
        """Make the requested single measurements."""
        for rows, measure in (*SINGLES, *EXTRA_SINGLES):
            if rows[0].name in self._names:
                label = rows[0].label
                values = self._guarded(label, partial(measure, self._arena)) or [[]] * len(rows)
                failure = self.failures.get(label, "")
                self._single_outcomes += [Outcome(row, one, failure) for row, one in zip(rows, values, strict=True)]

    def outcomes(self) -> list[Outcome]:
        measured = [report.outcome(row, self.rounds, self.failures) for row in self._rows]
        return measured + self._single_outcomes

    def _guarded(self, name: str, work: Callable[[], Found]) -> Found | None:
        if name in self.failures:
            return None
        try:
            return work()
        except (ChildError, SidecarFailed, Closed, Gone, AssertionError, OSError) as error:
            self.failures[name] = f"{name}: {error}"
            return None
