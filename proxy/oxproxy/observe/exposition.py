"""Writes the page that Prometheus scrapes, with a collector for prometheus_client.

Before a page is written, the event loop adds the tallies (see `oxproxy.relay.counters`) to the totals. This modifies
the counters, so the event loop does it itself, in small steps. A thread then reads the totals and writes the text,
which takes 0.1 s for 10,000 series. The thread does not block the event loop for longer than `sys.setswitchinterval`
permits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import chain

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from oxproxy.observe.metrics import METRICS, MetricSpec, Row
from oxproxy.relay.counters import Counters, Histogram

#: In OpenMetrics, a counter's family name has no `_total`. This counter's family name would clash with the gauge
#: `connections`, so the counter is exposed as a metric of unknown type with unchanged sample names.
_CLASHING = "oxproxy_connections_total"


class Exposition:
    """All metrics of one process."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._one_at_a_time = asyncio.Lock()

    async def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the page and its content type. The values are not an atomic snapshot.

        Args:
            accept: the request's Accept header, which selects OpenMetrics or, by default, the plain text format.
        """
        try:
            encoder, content_type = choose_encoder(accept)
        except TypeError:  # the header contains a version that is not a number
            encoder, content_type = choose_encoder("")
        openmetrics = content_type.startswith("application/openmetrics-text")
        collector = SidecarCollector(self._counters, openmetrics)
        async with self._one_at_a_time:
            for _ in self._counters.traffic.folding():
                await asyncio.sleep(0)
            return await asyncio.to_thread(encoder, collector), content_type


class SidecarCollector(Collector):
    """Collects every metric of the page, in either format."""

    def __init__(self, counters: Counters, openmetrics: bool) -> None:
        self._counters = counters
        self._openmetrics = openmetrics

    def collect(self) -> Iterable[Metric]:
        own = (self._metric(spec) for spec in METRICS)
        platform = PlatformCollector(registry=CollectorRegistry(auto_describe=False))
        yield from chain(own, ProcessCollector(registry=None).collect(), platform.collect())

    def _metric(self, spec: MetricSpec) -> Metric:
        values = spec.read(self._counters)
        return _histogram(spec, values) if isinstance(values, Histogram) else _family(spec, self._openmetrics, values)


def _histogram(spec: MetricSpec, histogram: Histogram) -> Metric:
    counts = histogram.cumulative()
    buckets = [(str(bound), float(count)) for bound, count in zip(histogram.bounds, counts, strict=False)]
    buckets.append(("+Inf", float(counts[-1])))
    return HistogramMetricFamily(spec.name, spec.help, buckets=buckets, sum_value=histogram.total_seconds)


def _family(spec: MetricSpec, openmetrics: bool, rows: Iterable[Row]) -> Metric:
    kind = "unknown" if openmetrics and spec.name == _CLASHING else spec.kind
    suffix = {"counter": "_total", "info": "_info"}.get(kind, "")
    metric = Metric(spec.name.removesuffix(suffix), spec.help, kind)
    for values, value in rows:
        metric.add_sample(spec.name, dict(zip(spec.labels, map(_printable, values), strict=True)), value)
    return metric


def _printable(value: str) -> str:
    """Return a label value that can be encoded as UTF-8. A lone surrogate would make the whole page fail."""
    return value if value.isascii() else value.encode(errors="backslashreplace").decode()
