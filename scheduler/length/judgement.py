"""Which answers tell how good a length prediction was, and whether an answer's length was in the predicted interval."""

from __future__ import annotations

from engine.messages import FinishReason
from scheduler.request import Request

TAIL = 0.05
"""Part of the answers that shall be shorter than the interval, and part that shall be longer."""


def can_be_judged(request: Request, reason: FinishReason) -> bool:
    """Whether an answer that ended can be held against its prediction.

    One that max_tokens or the context has cut has no true length, and a prediction of max_tokens only repeats what the
    client asked for.
    """
    predicted = request.predicted_length
    return reason is FinishReason.STOP and predicted is not None and round(predicted) < request.sampling.max_tokens


def is_inside(request: Request) -> bool | None:
    """Whether the length of an answer is in the interval that was predicted with 90 %; None where there was none."""
    lengths = request.distribution
    if lengths is None:
        return None
    return round(lengths.quantile(TAIL)) <= request.generated <= round(lengths.quantile(1 - TAIL))
