"""A batch that nobody joined and that ran as planned, by all that a serving-time model knows of it.

How an executor runs it (engine/pipeline.py): first the rows without K and V are read as one padded group, and each
gets a token from that; only then do all rows start, and in each decode iteration every one of them gets one more. So a
fresh row has a token more than it had iterations, the others have as many. The slot of a row that ended runs on, its
tokens thrown away, until the slice is over or the last row has ended, whichever is first: N stays what it was, and
a slice whose rows all end early has fewer iterations than its plan. A row that brings K and V brings those of all its
tokens but the newest, which its first iteration reads: so it has a column and a copied token less than is said here,
which is not worth a difference between the two kinds of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.assignment import Assignment
from scheduler.serving_time.bilinear import Bilinear


@dataclass(frozen=True, slots=True)
class ClosedBatch:
    """Lengths in tokens, from when it was sent."""

    rows: int
    """N."""
    input_length: int
    """L(B), of its longest row."""
    iterations: int
    """Decode iterations that it ran."""
    fresh_rows: int
    """Rows that were prefilled."""
    fresh_length: int
    """Of the longest of these, to which the others were padded; 0 without any."""
    copied_tokens: int
    """Of the other rows together, whose K and V were copied in."""
    seconds: float
    """From the beginning of its prefill, or of its first iteration, to its end."""

    def copies(self, model: Bilinear) -> float:
        """What a model says of copying K and V, in seconds."""
        return model.c1 * self.copied_tokens + model.c0 * (self.rows - self.fresh_rows)

    def estimate(self, model: Bilinear) -> float:
        """What a model says of all of it, in seconds; of iterations that ran, else as `dp.slice_seconds`."""
        prefill = model.prefill(self.fresh_rows, self.fresh_length) if self.fresh_rows else 0.0
        return prefill + model.decode(self.rows, self.input_length, self.iterations) + self.copies(model)


def closed_batch(assignment: Assignment) -> ClosedBatch | None:
    """An assignment that is over as such a batch.

    None when others could join it, its prompts were read in groups, it did not run as planned, or it left no trace of
    its time.
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


def _iterations(assignment: Assignment) -> int:
    """Those that the row which stayed longest has gone through."""
    return max(
        (request.generated - before - (request in assignment.fresh) for request, before in assignment.before.items()),
        default=0,
    )
