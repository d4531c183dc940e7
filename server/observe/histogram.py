"""A Prometheus histogram that takes the same value many times at once.

All rows of a batch get their tokens together, so gaps between tokens come by the dozen; to observe each of them would
cost the event loop more than the rest of a report does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import inf

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector


class WeightedHistogram(Collector):
    """Counts in buckets; the last one takes whatever is above the others."""

    def __init__(self, name: str, text: str, bounds: Sequence[float], registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self._bounds = (*bounds, inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def collect(self) -> Iterator[HistogramMetricFamily]:
        bounds = ["+Inf" if bound == inf else str(float(bound)) for bound in self._bounds]
        counts = [float(count) for count in accumulate(self._counts)]
        yield HistogramMetricFamily(self._name, self._text, list(zip(bounds, counts, strict=True)), self._sum)
