"""Closed batches as a machine of a known model would serve them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

from engine.measure.timing import SliceTiming, Timing, Timings
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.served_batch import ClosedBatch

PROFILE = Bilinear(p1=1e-4, p2=2e-3, p3=3e-5, p4=0.02, d1=2e-7, d2=5e-4, d3=1e-6, d4=0.03, c1=1e-6, c0=1e-3)

CELLS = tuple(product((1, 4, 32), (16, 200, 2000)))


def timings(model: Bilinear = PROFILE) -> Timings:
    """What a profiler would have measured, without noise."""
    return Timings(
        prefill=tuple(Timing(rows, length, model.prefill(rows, length)) for rows, length in CELLS),
        decode=tuple(Timing(rows, length, model.iteration(rows, length)) for rows, length in CELLS),
        slices=(SliceTiming(8, 100, 128, model.serve(8, 100, 128)),),
    )


def took(
    model: Bilinear, rows: int, length: int, iterations: int = 64, *, fresh: int | None = None, factor: float = 1.0
) -> ClosedBatch:
    """A batch of rows as long as the longest, of which `fresh` were prefilled, by default all; `factor` times slower
    than the model has it."""
    prefilled = rows if fresh is None else fresh
    batch = ClosedBatch(
        rows, length, iterations, prefilled, length if prefilled else 0, (rows - prefilled) * length, seconds=0.0
    )
    return replace(batch, seconds=factor * batch.estimate(model))


def mixed(model: Bilinear) -> Iterable[ClosedBatch]:
    """Batches of many sizes and lengths, from all rows fresh to none."""
    for rows, length, iterations in product((1, 3, 8, 24), (20, 150, 600, 1500), (16, 64, 128)):
        for fresh in sorted({rows, rows // 2, 0}):
            yield took(model, rows, length, iterations, fresh=fresh)
