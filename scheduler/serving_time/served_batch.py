"""Batches that ran as planned: their predictions, and what they came to."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.plan import Assignment


@dataclass(frozen=True, slots=True)
class ServedBatch:
    """A batch that has ended: its prediction, and what it came to."""

    rows: int
    input_length: int
    predicted_length: int
    """G'(B), the generation length with which its time was estimated."""
    generation_length: int
    """G(B), the true one."""
    predicted_seconds: float
    seconds: float


def served_batch(assignment: Assignment) -> ServedBatch | None:
    """An assignment as a batch to learn from; None when it did not run as planned, or its begin or end is unknown."""
    seconds = assignment.seconds
    if seconds is None:
        return None
    return ServedBatch(
        rows=len(assignment.plan.requests),
        input_length=assignment.input_length,
        predicted_length=assignment.plan.generation_length,
        generation_length=assignment.iterations,
        predicted_seconds=assignment.plan.estimate,
        seconds=seconds,
    )
