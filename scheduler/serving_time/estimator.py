"""How long a batch will take: what every estimator can do, the table of them, and which batches one should learn from.

An estimator knows a batch by three numbers only: rows, input length L(B) and generation length G(B).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, TypeAlias

from scheduler.serving_time.bilinear import Bilinear, FloatArray
from scheduler.serving_time.nearest import BatchTime, Nearest
from scheduler.serving_time.refitted import Refitted

SURPRISE_SECONDS = 2.0
SURPRISE_SHARE = 0.2
"""Of the measured time. Both as in Magnus, section III-D."""


class ServingTime(Protocol):
    """Estimates serving times, in seconds."""

    def estimate(self, rows: int, input_length: int, generation_length: int) -> float:
        """Seconds from the prefill of a batch to its last token."""
        ...

    def estimate_all(self, batches: FloatArray) -> FloatArray:
        """The same for many at once: (batches, 3) in the order of `estimate` -> (batches,)."""
        ...


@dataclass(frozen=True, slots=True)
class ServedBatch:
    """A batch that has ended: what was thought of it, and what it was."""

    rows: int
    input_length: int
    predicted_length: int
    """G'(B), the generation length with which its time was estimated."""
    generation_length: int
    """G(B), the true one."""
    predicted_seconds: float
    seconds: float

    @property
    def time(self) -> BatchTime:
        """What there is to learn from it."""
        return BatchTime(self.rows, self.input_length, self.generation_length, self.seconds)


def surprises(
    served: Iterable[ServedBatch],
    estimator: ServingTime,
    *,
    seconds: float = SURPRISE_SECONDS,
    share: float = SURPRISE_SHARE,
) -> tuple[ServedBatch, ...]:
    """The batches to add to an estimator's training set (Magnus, section III-D).

    Each is estimated again with its true generation length, so that a wrong length is not held against the estimator;
    those remain that are wrong by more than `seconds` and by more than `share` of the measured time.
    """
    return tuple(
        batch
        for batch in served
        if abs(estimator.estimate(batch.rows, batch.input_length, batch.generation_length) - batch.seconds)
        > max(seconds, share * batch.seconds)
    )


ServingTimeFactory: TypeAlias = Callable[[Bilinear], ServingTime]
"""The device's profile -> an estimator."""


SERVING_TIMES: Mapping[str, ServingTimeFactory] = MappingProxyType({"bilinear": Refitted, "nearest": Nearest})
