"""The bilinear estimates of the moment: those of the machine's profile until a re-fit brings others.

It knows neither when a model is fitted again nor from what.
"""

from __future__ import annotations

from scheduler.serving_time.bilinear import Bilinear, FloatArray


class Refitted:
    """A ServingTime. `model` is only ever replaced as a whole, from whatever thread; who needs estimates that belong
    together reads it once.
    """

    def __init__(self, profile: Bilinear) -> None:
        self.profile = profile
        self.model = profile

    def estimate(self, rows: int, input_length: int, generation_length: int) -> float:
        """Seconds that such a batch takes."""
        return self.model.estimate(rows, input_length, generation_length)

    def estimate_all(self, batches: FloatArray) -> FloatArray:
        """(batches, 3) -> (batches,) in seconds."""
        return self.model.estimate_all(batches)
