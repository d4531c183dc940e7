"""Batches that ran as planned, as serving times are learned from them: any batch, and closed ones in more detail.

How an executor runs a closed batch: first the rows without K and V are read as one padded group, and each
gets a token from that; only then do all rows start, and in each decode iteration every one of them gets one more. So a
fresh row has a token more than it had iterations, the others have as many. The slot of a row that ended runs on, its
tokens thrown away, until the slice is over or the last row has ended, whichever is first: N stays what it was, and
a slice whose rows all end early has fewer iterations than its plan. A row that brings K and V brings those of all its
tokens but the newest, which its first iteration reads: so it has a column and a copied token less than is said here,
which is not worth a difference between the two kinds of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.journal.file import BatchEntry
from scheduler.plan import Assignment
from scheduler.serving_time.bilinear import Bilinear


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


@dataclass(frozen=True, slots=True)
class ClosedBatch:
    """A closed batch that has ended. Lengths are in tokens, from when it was sent."""

    rows: int
    """N."""
    input_length: int
    """L(B), the length of its longest row."""
    iterations: int
    """Decode iterations that it ran."""
    fresh_rows: int
    """Rows that were prefilled."""
    fresh_length: int
    """Length of the longest prefilled row, to which the others were padded; 0 without any."""
    copied_tokens: int
    """Tokens of the other rows together, whose K and V were copied in."""
    seconds: float
    """From the beginning of its prefill, or of its first iteration, to its end."""

    def copies(self, model: Bilinear) -> float:
        """Seconds of copying K and V, by a model."""
        return model.c1 * self.copied_tokens + model.c0 * (self.rows - self.fresh_rows)

    def estimate(self, model: Bilinear) -> float:
        """Seconds of the batch by a model, as `dp.slice_seconds` but for the iterations that ran."""
        prefill = model.prefill(self.fresh_rows, self.fresh_length) if self.fresh_rows else 0.0
        return prefill + model.decode(self.rows, self.input_length, self.iterations) + self.copies(model)


def closed_batch(assignment: Assignment) -> ClosedBatch | None:
    """An assignment that is over as a closed batch.

    None when others could join it, its prompts were prefilled in groups, it did not run as planned, or its begin or end
    is unknown.
    """
    terms, seconds = assignment.plan.terms, assignment.seconds
    if seconds is None or not (terms.closed and terms.prefill_together):
        return None
    lengths = {request: request.input_length + before for request, before in assignment.before.items()}
    fresh = [length for request, length in lengths.items() if request in assignment.fresh]
    return ClosedBatch(
        rows=len(lengths),
        input_length=assignment.input_length,
        iterations=_iterations(assignment),
        fresh_rows=len(fresh),
        fresh_length=max(fresh, default=0),
        copied_tokens=sum(lengths.values()) - sum(fresh),
        seconds=seconds,
    )


def recorded_batch(entry: BatchEntry) -> ClosedBatch:
    """The journal's entry of a closed batch as such a batch."""
    return ClosedBatch(
        rows=entry.rows,
        input_length=entry.input_length,
        iterations=entry.iterations or 0,
        fresh_rows=entry.fresh_rows or 0,
        fresh_length=entry.fresh_length or 0,
        copied_tokens=entry.copied_tokens or 0,
        seconds=entry.seconds,
    )


def _iterations(assignment: Assignment) -> int:
    """Decode iterations of the row that stayed longest."""
    return max(
        (request.generated - before - (request in assignment.fresh) for request, before in assignment.before.items()),
        default=0,
    )
