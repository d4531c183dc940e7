"""How much of an answer is still to come, given what there is of it. Knows predictions only, never true lengths."""

from __future__ import annotations

from scheduler.request import Request


def expected_remaining(request: Request) -> float:
    """Tokens that a request is expected to generate from now on, at least 1 and never more than it may.

    E[G | G > generated] - generated where its lengths' distribution is known and goes so far; else the predicted length
    less what has been generated; else, where nobody predicts, all that it may still generate.
    """
    most = request.sampling.max_tokens - request.generated
    expected = None if request.distribution is None else request.distribution.remaining(request.generated)
    if expected is None and request.predicted_length is not None:
        expected = request.predicted_length - request.generated
    return float(max(1.0, most if expected is None else min(expected, most)))
