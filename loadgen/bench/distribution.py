"""Many samples as a few figures. Knows no metric and no unit other than seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Distribution:
    """Figures of at least one sample, in seconds."""

    count: int
    mean: float
    std: float
    """The deviation of these samples, not an estimate for what they were drawn from."""
    median: float
    percentiles: Mapping[float, float]


def summarize(samples: Sequence[float], percentiles: Sequence[float]) -> Distribution | None:
    """The figures of samples in seconds; None when there are none. Percentiles are in (0, 100]."""
    if not samples:
        return None
    ordered = sorted(samples)
    return Distribution(
        count=len(samples),
        mean=float(np.mean(samples)),
        std=float(np.std(samples)),
        median=find_percentile(ordered, 50.0),
        percentiles={percentile: find_percentile(ordered, percentile) for percentile in percentiles},
    )


def find_percentile(ordered: Sequence[float], percentile: float) -> float:
    """A percentile by nearest rank: one of the samples, which are in ascending order, never a value between two."""
    # Multiplied first: 99.9 / 100 is rounded up, and numpy's `inverted_cdf` takes the 1,999th of 2,000 for it.
    return ordered[math.ceil(len(ordered) * percentile / 100) - 1]
