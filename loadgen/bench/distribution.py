"""Many samples as a few figures. Knows no metric and no unit other than seconds.

Percentiles come from an HDR histogram with three significant digits: each is a measured value, by nearest rank and at
most 0.1 % above the true one, never an interpolation between two. Mean and deviation are exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from hdrh.histogram import HdrHistogram

TICKS = 1_000_000_000
"""The histogram counts whole nanoseconds."""
DIGITS = 3


@dataclass(frozen=True, slots=True)
class Distribution:
    """Seconds; at least one sample."""

    count: int
    mean: float
    std: float
    """Of these samples, not an estimate for what they were drawn from."""
    median: float
    percentiles: Mapping[float, float]


def distribution(samples: Sequence[float], percentiles: Sequence[float]) -> Distribution | None:
    """The figures of samples in seconds, 0 or more each; None when there are none. Percentiles are in (0, 100]."""
    if not samples:
        return None
    histogram = HdrHistogram(1, max(2, math.ceil(max(samples) * TICKS)), DIGITS)
    for sample in samples:
        histogram.record_value(round(sample * TICKS))
    at = histogram.get_percentile_to_value_dict([50.0, *percentiles])
    return Distribution(
        count=len(samples),
        mean=float(np.mean(samples)),
        std=float(np.std(samples)),
        median=at[50.0] / TICKS,
        percentiles={percentile: at[percentile] / TICKS for percentile in percentiles},
    )
