"""The page that Prometheus scrapes, written without holding up the event loop.

prometheus_client writes the text, a piece at a time: a rules file of ten thousand destinations makes as many series,
and a whole page of them would stop every producer for a tenth of a second. Other tasks run between pieces. `metrics`
defines which metrics there are.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    UnknownMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from proxy.observe.metrics import METRICS, MetricKind, MetricSpec, MetricsSource, Reading, Row, Rows
from proxy.relay.counters import Counters, Histogram

#: Series written in one piece: about half a millisecond's work.
PIECE_SERIES = 64
#: Seconds of work after which other tasks get a turn.
TURN_SECONDS = 0.001
#: In OpenMetrics a counter's family has no `_total` in its name, and this one's would be that of the gauge
#: `connections`; so it is shown there as a metric of unknown type, its samples named as ever.
_CLASHING = "oxproxy_connections_total"
_OPENMETRICS_END = b"# EOF\n"
#: What the lines of a snapshot are called that are about the process itself.
PROCESS = "process"


class _Piece(Collector):
    """One metric family, or a part of one, as a registry that an encoder takes."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        yield self._metric


class MetricValues(Protocol):
    """Where the numbers of a page come from: one process, or several that were added up."""

    def folding(self) -> Iterator[None]:
        """Bring them up to date, pausing now and then."""

    def rows(self, spec: MetricSpec) -> Rows:
        """Read a metric."""

    def histogram(self, spec: MetricSpec) -> Histogram:
        """Read a histogram."""

    def process(self) -> Iterable[Metric]:
        """Read what the system says of the process; in a thread."""


class ProcessValues:
    """The numbers of this process.

    Args:
        reading: what is read.
    """

    def __init__(self, reading: Reading) -> None:
        """Read nothing yet."""
        self._reading = reading
        self._process = ProcessCollector(registry=None)

    def folding(self) -> Iterator[None]:
        """Bring the totals up to date."""
        for source in self._reading.sources:
            yield from source.folding()

    def rows(self, spec: MetricSpec) -> Rows:
        """Read a metric."""
        return spec.rows(self._reading)

    def histogram(self, spec: MetricSpec) -> Histogram:
        """Read a histogram."""
        assert spec.histogram is not None  # noqa: S101 -- only histograms are asked for
        return spec.histogram(self._reading)

    def process(self) -> Iterable[Metric]:
        """Read /proc: listing ten thousand descriptors takes milliseconds."""
        return list(self._process.collect())


class Exposition:
    """All metrics of one process.

    Args:
        counters: what the process counts.
        version: version of this program.
        sources: further sources of traffic in addition to ``counters.traffic``.
    """

    def __init__(self, counters: Counters, version: str, sources: Iterable[MetricsSource] = ()) -> None:
        """Prepare; nothing is read before a scrape."""
        self._numbers = ProcessValues(Reading(counters, (counters.traffic, *sources), version))
        self._one_at_a_time = asyncio.Lock()

    async def render(self, accept: str = "") -> tuple[bytes, str]:
        """Write the page, letting other tasks run in between.

        Args:
            accept: the request's Accept header; OpenMetrics where it asks for it, else the plain text format.

        Returns:
            The page and its content type. MetricValues are those of slightly different moments.
        """
        async with self._one_at_a_time:
            return await write_page(self._numbers, accept)

    async def snapshot(self) -> bytes:
        """Write the numbers for another process that adds them up (see `merging`)."""
        async with self._one_at_a_time:
            process = await asyncio.to_thread(self._numbers.process)
            return b"".join(await _in_turns(write_snapshot(self._numbers, process)))

    async def snapshot_page(self, _body: bytes) -> tuple[int, object]:
        """Return the snapshot to who asks for it over HTTP: status and text."""
        return 200, (await self.snapshot()).decode()


async def write_page(numbers: MetricValues, accept: str) -> tuple[bytes, str]:
    """Write a page, see `Exposition.render`."""
    encoder, content_type = choose_encoder(accept)
    openmetrics = content_type.startswith("application/openmetrics-text")
    process = await asyncio.to_thread(numbers.process)
    written = await _in_turns(_pieces(numbers, encoder, openmetrics, process))
    if openmetrics:
        written.append(_OPENMETRICS_END)
    return b"".join(written), content_type


async def _in_turns(pieces: Iterator[bytes]) -> list[bytes]:
    """Take all pieces, and let other tasks run in between."""
    written: list[bytes] = []
    turn_started = perf_counter()
    for piece in pieces:
        written.append(piece)
        if perf_counter() - turn_started >= TURN_SECONDS:
            await asyncio.sleep(0)
            turn_started = perf_counter()
    return written


def _pieces(
    numbers: MetricValues, encoder: Callable[[Collector], bytes], openmetrics: bool, process: Iterable[Metric]
) -> Iterator[bytes]:
    for _ in numbers.folding():
        yield b""
    for spec in METRICS:
        headline = True
        for part in _parts(spec, numbers, openmetrics):
            if part is None:
                yield b""
                continue
            text = encoder(_Piece(part)).removesuffix(_OPENMETRICS_END)
            yield text if headline else _without_headline(text)
            headline = False
    platform = PlatformCollector(registry=CollectorRegistry(auto_describe=False)).collect()
    for metric in (*process, *platform):
        yield encoder(_Piece(metric)).removesuffix(_OPENMETRICS_END)


def write_snapshot(numbers: MetricValues, process: Iterable[Metric]) -> Iterator[bytes]:
    """Write numbers as JSON, a line for each piece of a metric, an empty piece where others may run."""
    for _ in numbers.folding():
        yield b""
    for spec in METRICS:
        if spec.histogram is not None:
            histogram = numbers.histogram(spec)
            yield _line(spec.name, [[[str(index)], count] for index, count in enumerate(histogram.buckets)])
            yield _line(spec.name, [[["sum"], histogram.total_seconds]])
            continue
        rows: list[Row] = []
        for row in numbers.rows(spec):
            if row is None:
                yield b""
                continue
            rows.append(row)
            if len(rows) == PIECE_SERIES:
                yield _line(spec.name, rows)
                rows = []
        yield _line(spec.name, rows)
    for metric in process:
        for sample in metric.samples:
            yield _line(PROCESS, [[[metric.name, metric.type, metric.documentation, sample.name], sample.value]])


def _line(name: str, rows: Sequence[object]) -> bytes:
    return json.dumps([name, rows]).encode() + b"\n"


def _parts(spec: MetricSpec, numbers: MetricValues, openmetrics: bool) -> Iterator[Metric | None]:
    """Yield families of few series each, one at least, and None where others may run."""
    if spec.histogram is not None:
        histogram = numbers.histogram(spec)
        counts = histogram.cumulative()
        buckets = [(str(bound), float(count)) for bound, count in zip(histogram.bounds, counts, strict=False)]
        buckets.append(("+Inf", float(counts[-1])))
        yield HistogramMetricFamily(spec.name, spec.help, buckets=buckets, sum_value=histogram.total_seconds)
        return
    rows: list[Row] = []
    first = True
    for row in numbers.rows(spec):
        if row is None:
            yield None
            continue
        rows.append(row)
        if len(rows) == PIECE_SERIES:
            yield _family(spec, openmetrics, rows)
            rows, first = [], False
    if rows or first:
        yield _family(spec, openmetrics, rows)


def _family(spec: MetricSpec, openmetrics: bool, rows: Iterable[Row] = ()) -> Metric:
    labels = spec.labels
    if spec.kind is MetricKind.INFO:
        info = InfoMetricFamily(spec.name.removesuffix("_info"), spec.help, labels=())
        for values, _ in rows:
            info.add_metric((), dict(zip(labels, map(_printable, values), strict=True)))
        return info
    family: CounterMetricFamily | GaugeMetricFamily | UnknownMetricFamily
    if spec.kind is MetricKind.GAUGE:
        family = GaugeMetricFamily(spec.name, spec.help, labels=labels)
    elif openmetrics and spec.name == _CLASHING:
        family = UnknownMetricFamily(spec.name, spec.help, labels=labels)
    else:
        family = CounterMetricFamily(spec.name, spec.help, labels=labels)
    for values, value in rows:
        family.add_metric([_printable(label) for label in values], value)
    return family


def _without_headline(text: bytes) -> bytes:
    """Cut the comment lines that a family begins with: `# HELP`, `# TYPE`, in OpenMetrics maybe `# UNIT`."""
    while text.startswith(b"# "):
        text = text[text.index(b"\n") + 1 :]
    return text


def _printable(value: str) -> str:
    """Return a label that UTF-8 can hold: text with lone surrogates would spoil the whole page."""
    return value if value.isascii() else value.encode(errors="backslashreplace").decode()
