"""The families of GET /metrics, in vLLM's names where meanings agree (docs/observability.md)."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector

from engine.messages import Cause, FinishReason
from models.files import read_toml
from scheduler.request import Failure

FAMILIES: Mapping[str, Any] = read_toml(__file__, "families.toml")

COUNTERS: Mapping[str, str] = FAMILIES["counters"]
PER_TOKEN: Mapping[str, str] = FAMILIES["per_token"]
BOUNDS: Mapping[str, Sequence[float]] = FAMILIES["bounds"]
HISTOGRAMS: Mapping[str, Mapping[str, str]] = FAMILIES["histograms"]  # by name of bounds

GOOD = (FinishReason.STOP, FinishReason.LENGTH)
FAILURES = (*Failure, FinishReason.ERROR, "cancelled")

ENUMERATED: Mapping[str, Mapping[str, Iterable[str]]] = {
    "vllm:request_success": {"finished_reason": GOOD},
    "lengthwise:request_failure": {"kind": FAILURES},
    "lengthwise:handed_back_rows": {"cause": Cause, "kv": ("kept", "dropped")},
}
LABELS: Mapping[str, Mapping[str, Iterable[str]]] = FAMILIES["labels"] | ENUMERATED  # known values start at 0

SPANS: Mapping[str, tuple[str, str]] = FAMILIES["spans"]  # between moments in Times
TALLIED: Sequence[tuple[str, str, Mapping[str, str]]] = FAMILIES["tallied"]  # by field of a StepStats


class Registry(CollectorRegistry):
    """Adds the model's name, and drops creation times, a fifth of all samples."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._labels = {"model_name": model}

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():
            common = self._labels if ":" in family.name else {}
            kept = (sample for sample in family.samples if not sample.name.endswith("_created"))
            family.samples = [sample._replace(labels={**common, **sample.labels}) for sample in kept]
            yield family


class WeightedHistogram(Collector):
    """The last bucket is open."""

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
