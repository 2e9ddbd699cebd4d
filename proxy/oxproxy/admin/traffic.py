"""Samples publish rates for the last 15 minutes, and totals and rates by exchange, binding and destination.

Totals by outcome are always sampled, but at long intervals if `live` has no clients. Reading the totals of each binding
and destination takes longer, so this is done only if there are clients, and in a thread, as for the metrics page (see
`oxproxy.observe.exposition`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from oxproxy.observe.metrics import Row, binding_matches, destination_publishes, publishes
from oxproxy.relay.counters import OUTCOMES, Counters, Histogram

#: Interval between samples while there are clients, minimum interval for a rate, and length of the history, in seconds.
SAMPLE_SECONDS, LEAST_SECONDS, HISTORY_SECONDS = 2.0, 1.0, 900.0
#: Length of the period for which the confirm latency is shown, in seconds.
LATENCY_SECONDS = 60.0
#: Columns of the history, in addition to the time.
SERIES = (*OUTCOMES, "nacked", "returned")

#: The lists of rates: key in the response, names of labels, and source of the totals.
_LISTS: tuple[tuple[str, tuple[str, ...], Callable[[Counters], Iterable[Row]]], ...] = (
    ("exchanges", ("vhost", "exchange", "outcome"), publishes),
    ("bindings", ("vhost", "exchange", "binding"), binding_matches),
    ("destinations", ("vhost", "destination"), destination_publishes),
)
#: Total and rate per second (None if not known yet), by list and labels.
_Numbers: TypeAlias = dict[tuple[str, tuple[str, ...]], tuple[float, float | None]]


class _Sample(NamedTuple):
    """Totals at one moment.

    Args:
        timer: monotonic seconds.
        totals: in the order of SERIES.
        confirms: observed confirms, by bucket.
    """

    timer: float
    totals: tuple[int, ...]
    confirms: tuple[int, ...]


class TrafficSampler:
    """Samples the counters of the process. `wall` returns seconds since the epoch, `timer` monotonic seconds."""

    def __init__(
        self,
        counters: Counters,
        wall: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counters = counters
        self._wall = wall
        self._timer = timer
        self._samples: deque[_Sample] = deque()
        #: for each interval, its end and the rates in the order of SERIES
        self._history: deque[tuple[float, ...]] = deque()
        self._numbers: _Numbers = {}
        self._numbers_at: float | None = None
        self._changed: list[tuple[str, tuple[str, ...]]] = []
        #: whether the rates of bindings and destinations are known
        self.rated = False
        self._one_at_a_time = asyncio.Lock()

    async def sample(self, detailed: bool) -> None:
        """Record totals; with `detailed`, also the totals of each binding and destination."""
        async with self._one_at_a_time:
            for _ in self._counters.traffic.folding():
                await asyncio.sleep(0)
            self._note()
            if detailed:
                await asyncio.to_thread(self._read)
            else:
                self._numbers_at, self.rated = None, False

    async def snapshot(self) -> dict[str, object]:
        """Return all data, for a new client."""
        if self._numbers_at is None or self._timer() - self._numbers_at > 2 * SAMPLE_SECONDS:
            async with self._one_at_a_time:
                for _ in self._counters.traffic.folding():
                    await asyncio.sleep(0)
                await asyncio.to_thread(self._read)
        history = {"series": SERIES, "points": list(self._history)}
        return {**self._now(), **self._listed(self._numbers), "complete": True, "history": history}

    def news(self) -> dict[str, object]:
        """Return the changes between the last two detailed samples."""
        point = self._history[-1] if self._history else None
        return {**self._now(), **self._listed(self._changed), "complete": False, "point": point}

    def _note(self) -> None:
        now, wall = self._timer(), self._wall()
        outcomes = dict.fromkeys(OUTCOMES, 0.0)
        for (_, _, outcome), count in publishes(self._counters):
            outcomes[outcome] += count
        relays = list(self._counters.relays.values())
        nacked = sum(relay.confirms_nacked for relay in relays)
        returned = sum(relay.returns for relay in relays)
        totals = (*map(int, outcomes.values()), nacked, returned)
        sample = _Sample(now, totals, tuple(self._counters.confirm_seconds.buckets))
        if self._samples:
            before = self._samples[-1]
            seconds = now - before.timer
            if seconds < LEAST_SECONDS:  # a new client may end a pause at any time
                return
            # A total decreases if reloaded rules no longer name an exchange.
            rates = (max(0.0, new - old) / seconds for new, old in zip(totals, before.totals, strict=True))
            self._history.append((round(wall, 3), *(round(rate, 3) for rate in rates)))
        self._samples.append(sample)
        while self._samples[0].timer < now - LATENCY_SECONDS - SAMPLE_SECONDS:
            self._samples.popleft()
        while self._history and self._history[0][0] < wall - HISTORY_SECONDS:
            self._history.popleft()

    def _read(self) -> None:
        now, before, numbers = self._timer(), self._numbers, _Numbers()
        known = self._numbers_at is not None
        seconds = max(now - (self._numbers_at or 0.0), 1e-9)
        if known and seconds < 0.9 * LEAST_SECONDS:  # a new client has just read them; a rate would be inexact
            self._changed = []
            return
        self.rated = known
        changed = []
        for name, _, read in _LISTS:
            for labels, total in read(self._counters):
                earlier, rate = before.get((name, labels), (0.0, None))
                per_second = round(max(0.0, total - earlier) / seconds, 3) if known else None
                numbers[name, labels] = (total, per_second)
                if per_second != rate or total != earlier:
                    changed.append((name, labels))
        self._numbers, self._changed, self._numbers_at = numbers, changed, now

    def _now(self) -> dict[str, object]:
        counters = self._counters
        last = self._history[-1][1:] if self._history else (0.0,) * len(SERIES)
        return {
            "at": self._wall(),
            "rules": counters.rules.version,
            "per_second": dict(zip(SERIES, last, strict=True)),
            "producers": counters.downstream.open,
            "channels": sum(relay.channels for relay in counters.relays.values()),
            "confirm_seconds": self._latency(),
        }

    def _latency(self) -> dict[str, float | None]:
        """Return the median and 99th percentile of the last minute's confirm latency; None if nothing was confirmed."""
        if not self._samples:
            return {"p50": None, "p99": None}
        new, old = self._samples[-1].confirms, self._samples[0].confirms
        counts = [late - early for late, early in zip(new, old, strict=True)]
        histogram = self._counters.confirm_seconds
        return {"p50": quantile(histogram, counts, 0.5), "p99": quantile(histogram, counts, 0.99)}

    def _listed(self, keys: Iterable[tuple[str, tuple[str, ...]]]) -> dict[str, list[dict[str, object]]]:
        columns: Mapping[str, tuple[str, ...]] = {name: labels for name, labels, _ in _LISTS}
        lists: dict[str, list[dict[str, object]]] = {name: [] for name in columns}
        for key in keys:
            name, labels = key
            total, per_second = self._numbers[key]
            row: dict[str, object] = dict(zip(columns[name], labels, strict=True))
            lists[name].append({**row, "total": int(total), "per_second": per_second})
        return lists


def quantile(histogram: Histogram, counts: Sequence[int], share: float) -> float | None:
    """Return a quantile of durations, interpolated linearly within its bucket, like Prometheus' histogram_quantile.

    Args:
        histogram: has the bounds of the buckets.
        counts: number of observations in each bucket.
        share: the quantile, from 0 to 1; 0.5 is the median.
    """
    cumulative = list(accumulate(counts))
    total = cumulative[-1]
    if not total:
        return None
    rank = share * total
    index = next(index for index, count in enumerate(cumulative) if count >= rank)
    bounds = histogram.bounds
    if index == len(bounds):  # above the last bound, where there is no better estimate
        return bounds[-1]
    lower = bounds[index - 1] if index else 0.0
    inside = (rank - (cumulative[index] - counts[index])) / counts[index]
    return lower + (bounds[index] - lower) * inside
