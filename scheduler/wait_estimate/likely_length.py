"""Lengths of answers within what their calls allow."""

from scheduler.request import COVERAGE, Request
from scheduler.wait_estimate.calibration import LOW

SHARES = (LOW, 0.5, COVERAGE)  # quantiles


def length_interval(request: Request) -> tuple[float, float, float] | None:
    """Low end, median and high end; None without a distribution."""
    known, least, most = request.distribution, request.sampling.least_tokens, request.sampling.max_tokens
    if known is None:
        return None
    low, middle, high = (max(least, min(most, known.quantile(share))) for share in SHARES)
    return low, middle, high


def median_length(request: Request) -> float | None:
    """In tokens, as everywhere shown; None where not predicted."""
    known, limits = request.distribution, request.sampling
    if known is None:
        return request.predicted_length
    return max(limits.least_tokens, min(limits.max_tokens, known.median))
