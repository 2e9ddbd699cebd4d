"""The page that Prometheus scrapes, made without holding the event loop.

prometheus_client writes the text, a piece at a time: a rules file of ten thousand destinations makes as many
series, and a whole page of them would stop every producer for a tenth of a second. Between pieces the loop
runs. Which metrics there are is said in `metrics`; that an HTTP server serves them is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter

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

from proxy.amqp.counters import Counters
from proxy.observe.metrics import METRICS, Kind, MetricSpec
from proxy.observe.readings import MetricsSource, Reading, Row

#: Series written in one piece: about half a millisecond's work.
PIECE_SERIES = 64
#: Seconds of work after which other tasks get a turn.
TURN_SECONDS = 0.001
#: In OpenMetrics a counter's family has no `_total` in its name, and this one's would be that of the gauge
#: `connections`; so it is shown there as a metric of unknown type, its samples named as ever.
_CLASHING = "oxproxy_connections_total"
_OPENMETRICS_END = b"# EOF\n"


class _Piece(Collector):
    """One metric family, or a part of one, as a registry that an encoder takes."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        yield self._metric


class Exposition:
    """All metrics of one process.

    Args:
        counters: what the process counts.
        version: version of this program.
        sources: further sources of traffic beside ``counters.traffic``.
    """

    def __init__(self, counters: Counters, version: str, sources: Iterable[MetricsSource] = ()) -> None:
        """Prepare; nothing is read before a scrape."""
        self._reading = Reading(counters, (counters.traffic, *sources), version)
        self._process = ProcessCollector(registry=None)
        self._platform = list(PlatformCollector(registry=CollectorRegistry(auto_describe=False)).collect())
        self._one_at_a_time = asyncio.Lock()

    async def render(self, accept: str = "") -> tuple[bytes, str]:
        """Write the page, letting other tasks run in between.

        Args:
            accept: the request's Accept header; OpenMetrics where it asks for it, else the plain text format.

        Returns:
            The page and its content type. Numbers are those of slightly different moments.
        """
        encoder, content_type = choose_encoder(accept)
        openmetrics = content_type.startswith("application/openmetrics-text")
        written: list[bytes] = []
        async with self._one_at_a_time:
            # /proc is read in a thread: listing ten thousand descriptors takes milliseconds.
            process = await asyncio.to_thread(lambda: list(self._process.collect()))
            turn_started = perf_counter()
            for piece in self._pieces(encoder, openmetrics, process):
                written.append(piece)
                if perf_counter() - turn_started >= TURN_SECONDS:
                    await asyncio.sleep(0)
                    turn_started = perf_counter()
        if openmetrics:
            written.append(_OPENMETRICS_END)
        return b"".join(written), content_type

    def _pieces(
        self, encoder: Callable[[Collector], bytes], openmetrics: bool, process: list[Metric]
    ) -> Iterator[bytes]:
        for source in self._reading.sources:
            for _ in source.folding():
                yield b""
        for spec in METRICS:
            headline = True
            for part in _parts(spec, self._reading, openmetrics):
                if part is None:
                    yield b""
                    continue
                text = encoder(_Piece(part)).removesuffix(_OPENMETRICS_END)
                yield text if headline else _without_headline(text)
                headline = False
        for metric in (*process, *self._platform):
            yield encoder(_Piece(metric)).removesuffix(_OPENMETRICS_END)


def _parts(spec: MetricSpec, reading: Reading, openmetrics: bool) -> Iterator[Metric | None]:
    """Yield families of few series each, one at least, and None where others may run."""
    if spec.histogram is not None:
        histogram = spec.histogram(reading)
        counts = histogram.cumulative()
        buckets = [(str(bound), float(count)) for bound, count in zip(histogram.bounds, counts, strict=False)]
        buckets.append(("+Inf", float(counts[-1])))
        yield HistogramMetricFamily(spec.name, spec.help, buckets=buckets, sum_value=histogram.total_seconds)
        return
    rows: list[Row] = []
    first = True
    for row in spec.rows(reading):
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
    if spec.kind is Kind.INFO:
        info = InfoMetricFamily(spec.name.removesuffix("_info"), spec.help, labels=())
        for values, _ in rows:
            info.add_metric((), dict(zip(labels, map(_printable, values), strict=True)))
        return info
    family: CounterMetricFamily | GaugeMetricFamily | UnknownMetricFamily
    if spec.kind is Kind.GAUGE:
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
    """Give a label that UTF-8 can hold: text with lone surrogates would spoil the whole page."""
    return value if value.isascii() else value.encode(errors="backslashreplace").decode()
