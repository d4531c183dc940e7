"""Lengths of answers within what their calls allow."""

from scheduler.length.prediction import TAILS
from scheduler.request import Request


def likely_quantiles(request: Request, *shares: float) -> list[float]:
    """Of a predicted distribution, in tokens."""
    known, limits = request.distribution, request.sampling
    assert known is not None
    return [max(limits.least_tokens, min(limits.max_tokens, known.quantile(share))) for share in shares]


def length_interval(request: Request) -> list[float] | None:
    """Low end, median and high end; None without a distribution."""
    return None if request.distribution is None else likely_quantiles(request, TAILS[0], 0.5, TAILS[1])


def median_length(request: Request) -> float | None:
    """In tokens, as everywhere shown; None where not predicted."""
    return request.predicted_length if request.distribution is None else likely_quantiles(request, 0.5)[0]
