"""How much of an answer is still to come, for every part that asks. Knows predictions only, never true lengths."""

from __future__ import annotations

from scheduler.request import Request


def remaining_length(request: Request, typical: float | None = None) -> float:
    """Tokens that a request is expected to generate from now on, at least 1 and at most as many as it may.

    E[G | G > generated] - generated where the distribution of its length is known and goes so far; else the predicted
    length less what has been generated; else, without a prediction, `typical`; else all that it may still generate.
    """
    most = request.sampling.max_tokens - request.generated
    expected = None if request.distribution is None else request.distribution.remaining(request.generated)
    if expected is None and request.predicted_length is not None:
        expected = request.predicted_length - request.generated
    if expected is None:
        expected = most if typical is None or request.distribution is not None else typical
    return float(max(1.0, min(expected, most)))
