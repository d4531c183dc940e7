"""Which of the batches that wait is served first: highest response ratio next (Magnus, section III-E), or the oldest.

Batches of better priority go before all others; these rules rank those of one priority only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from scheduler.serving_time.bilinear import FloatArray

BatchOrder: TypeAlias = Callable[[FloatArray, Callable[[], FloatArray]], FloatArray]
"""(seconds that the oldest request of each batch has waited, a way to estimate each batch's serving time) -> a score of
each batch, the highest first."""

LEAST_SECONDS = 1e-9
"""Seconds that an estimate counts for at least, so that none divides by zero."""


def oldest_first(waited: FloatArray, seconds: Callable[[], FloatArray]) -> FloatArray:
    """First come, first served: the batch with the oldest request. Asks for no estimate."""
    return waited


def hrrn(waited: FloatArray, seconds: Callable[[], FloatArray]) -> FloatArray:
    """Highest response ratio next: T_queue(B) / T_serve(B), where T_queue is its oldest request's waiting time."""
    ratios: FloatArray = waited / np.maximum(seconds(), LEAST_SECONDS)
    return ratios


BATCH_ORDERS: Mapping[str, BatchOrder] = MappingProxyType({"fcfs": oldest_first, "hrrn": hrrn})
