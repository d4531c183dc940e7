"""Which of the batches that wait comes first: pure functions to scores; the highest is served first.

Batches of better priority go before all others; orders rank those of one priority only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from scheduler.serving_time.bilinear import FloatArray

BatchOrder: TypeAlias = Callable[[FloatArray, Callable[[], FloatArray]], FloatArray]
"""(seconds that the oldest request of each batch has waited, a way to estimate each one's serving time) -> scores."""

SHORTEST = 1e-9
"""Seconds; so that no estimate of zero divides."""


def fcfs(waited: FloatArray, seconds: Callable[[], FloatArray]) -> FloatArray:
    """First come, first served: the batch with the oldest request. Asks for no estimate."""
    return waited


def hrrn(waited: FloatArray, seconds: Callable[[], FloatArray]) -> FloatArray:
    """Highest response ratio next: T_queue(B) / T_serve(B), the first being its oldest request's (Magnus, III-E)."""
    ratios: FloatArray = waited / np.maximum(seconds(), SHORTEST)
    return ratios


BATCH_ORDERS: Mapping[str, BatchOrder] = MappingProxyType({"fcfs": fcfs, "hrrn": hrrn})
