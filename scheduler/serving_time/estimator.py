"""How long a batch will take: what every estimator can do, and the estimates of the bilinear model.

An estimator knows a batch by three numbers only: rows, input length L(B) and generation length G(B).
"""

from __future__ import annotations

from typing import Protocol

from scheduler.serving_time.bilinear import Bilinear, FloatArray


class ServingTime(Protocol):
    """Estimates serving times, in seconds."""

    def estimate(self, rows: int, input_length: int, generation_length: int) -> float:
        """Seconds from the prefill of a batch to its last token."""
        ...

    def estimate_all(self, batches: FloatArray) -> FloatArray:
        """Seconds of many batches at once: (batches, 3) in the order of `estimate` -> (batches,)."""
        ...


class BilinearEstimator:
    """A ServingTime by the bilinear model of the moment: the machine's profile until a re-fit brings another.

    `model` is only ever replaced as a whole, from whatever thread; a reader that needs estimates which belong together
    reads it once.
    """

    def __init__(self, profile: Bilinear) -> None:
        self.profile = profile
        self.model = profile

    def estimate(self, rows: int, input_length: int, generation_length: int) -> float:
        return self.model.estimate(rows, input_length, generation_length)

    def estimate_all(self, batches: FloatArray) -> FloatArray:
        return self.model.estimate_all(batches)
