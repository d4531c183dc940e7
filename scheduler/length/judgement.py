"""Which answers tell how good a length prediction was, and whether an answer's length was in the predicted interval."""

from __future__ import annotations

from engine.messages import FinishReason
from scheduler.length.distribution import TAILS
from scheduler.length.oracle import is_replayed
from scheduler.request import Request

TWICE = 2.0


def within_twice(predicted: float, generated: float) -> bool:
    """Whether neither of two lengths is more than twice the other."""
    return max(predicted, generated) <= TWICE * min(predicted, generated)


def can_be_judged(request: Request, reason: FinishReason) -> bool:
    """Whether an answer that ended can be held against its prediction.

    One that max_tokens or the context has cut has no true length, and a prediction of max_tokens only repeats what the
    client asked for.
    """
    whole = reason is FinishReason.STOP or is_replayed(request.sampling)
    return whole and counts(request.predicted_length, request.sampling.max_tokens)


def counts(predicted: float | None, max_tokens: int) -> bool:
    """Whether a predicted length says more than that the answer may have all of max_tokens."""
    return predicted is not None and round(predicted) < max_tokens


def is_inside(request: Request) -> bool | None:
    """Whether the length of an answer is in the interval that was predicted with 90 %; None where there was none."""
    lengths = request.distribution
    if lengths is None:
        return None
    low, high = (round(lengths.quantile(share)) for share in TAILS)
    return low <= request.generated <= high
