"""The page of metrics of several processes: their numbers added up.

Each worker writes its numbers as a snapshot (`exposition.write_snapshot`); the parent process reads the snapshots and
writes one page with the usual labels. Counters of a worker that has ended stay in the sum as they were last read, so
that no sum decreases; its gauges go with it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from prometheus_client import Metric

from proxy.observe.exposition import PROCESS, write_page
from proxy.observe.metrics import MERGE_STEP, METRICS, Aggregation, MetricKind, MetricSpec, Reading, Rows
from proxy.relay.counters import Counters, Histogram

#: Label values to value.
_Series: TypeAlias = dict[tuple[str, ...], float]
#: Of the process's own numbers, the one that is not a sum: the first to start has started them.
_STARTED = "process_start_time_seconds"
_GROWING = frozenset(spec.name for spec in METRICS if spec.kind in (MetricKind.COUNTER, MetricKind.HISTOGRAM))
_FOLDS: dict[Aggregation, Callable[[float, float], float]] = {
    Aggregation.SUM: lambda first, second: first + second,
    Aggregation.MAX: max,
    Aggregation.MIN: min,
}


@dataclass(slots=True)
class MetricsSnapshot:
    """The numbers of one process, or of several: by metric, by label values.

    Args:
        series: the numbers; those of the process itself are called `PROCESS`, with family, type, help and name of the
            sample as labels; buckets of a histogram have their index as label, and its sum ``sum``.
    """

    series: dict[str, _Series] = field(default_factory=dict)

    def growing(self) -> MetricsSnapshot:
        """Return the numbers that never go down: what stays of a process that has ended."""
        kept = {name: dict(rows) for name, rows in self.series.items() if name in _GROWING}
        process = self.series.get(PROCESS, {})
        kept[PROCESS] = {labels: value for labels, value in process.items() if labels[1] == "counter"}
        return MetricsSnapshot(kept)

    def add(self, other: MetricsSnapshot) -> None:
        """Take another snapshot into this one."""
        for name, rows in other.series.items():
            mine = self.series.setdefault(name, {})
            for labels, value in rows.items():
                mine[labels] = _fold(name, labels)(mine[labels], value) if labels in mine else value


def read_snapshot(text: bytes) -> MetricsSnapshot:
    """Read what `exposition.write_snapshot` has written."""
    snapshot = MetricsSnapshot()
    for line in filter(None, text.splitlines()):
        name, rows = json.loads(line)
        series = snapshot.series.setdefault(name, {})
        for labels, value in rows:
            series[tuple(labels)] = value
    return snapshot


_MERGES = {spec.name: spec.merge for spec in METRICS}


def _fold(name: str, labels: tuple[str, ...]) -> Callable[[float, float], float]:
    if name == PROCESS:
        return min if labels[3] == _STARTED else _FOLDS[Aggregation.SUM]
    return _FOLDS[_MERGES.get(name, Aggregation.SUM)]


class MergedValues:
    """Snapshots added up, for a page.

    Args:
        snapshots: of all processes.
    """

    def __init__(self, snapshots: Iterable[MetricsSnapshot]) -> None:
        """Add them up."""
        self._sum = MetricsSnapshot()
        for snapshot in snapshots:
            self._sum.add(snapshot)
        self._empty = Reading(Counters(), (), "")

    def folding(self) -> Iterator[None]:
        """Nothing is left to bring up to date."""
        return iter(())

    def rows(self, spec: MetricSpec) -> Rows:
        """Read a metric."""
        for index, row in enumerate(self._sum.series.get(spec.name, {}).items(), 1):
            yield row
            if not index % MERGE_STEP:
                yield None

    def histogram(self, spec: MetricSpec) -> Histogram:
        """Read a histogram."""
        assert spec.histogram is not None  # noqa: S101 -- only histograms are asked for
        histogram = Histogram(spec.histogram(self._empty).bounds)
        for (label,), value in self._sum.series.get(spec.name, {}).items():
            if label == "sum":
                histogram.total_seconds = value
            else:
                histogram.buckets[int(label)] = int(value)
        return histogram

    def process(self) -> Iterable[Metric]:
        """Return the numbers of the processes themselves."""
        families: dict[str, Metric] = {}
        for (name, kind, about, sample), value in self._sum.series.get(PROCESS, {}).items():
            families.setdefault(name, Metric(name, about, kind)).add_sample(sample, {}, value)
        return families.values()


class MergedExposition:
    """The page of metrics of several processes.

    Args:
        gather: asks all of them for their snapshots.
    """

    def __init__(self, gather: Callable[[], Awaitable[Iterable[MetricsSnapshot]]]) -> None:
        """Request nothing before a scrape."""
        self._gather = gather
        self._one_at_a_time = asyncio.Lock()

    async def render(self, accept: str = "") -> tuple[bytes, str]:
        """Write the page; see `Exposition.render`."""
        async with self._one_at_a_time:
            return await write_page(MergedValues(await self._gather()), accept)
