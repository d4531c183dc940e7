"""Lengths within what calls allow, and what predicted ones were worth."""

from engine.messages import FinishReason
from scheduler.length.oracle import is_replayed
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


TWICE = 2.0


def within_twice(predicted: float, generated: float) -> bool:
    return max(predicted, generated) <= TWICE * min(predicted, generated)


def can_be_judged(request: Request, reason: FinishReason) -> bool:
    """A truncated answer has no true length, and a prediction of max_tokens repeats the client."""
    whole, predicted = reason is FinishReason.STOP or is_replayed(request.sampling), request.predicted_length
    return whole and predicted is not None and round(predicted) < request.sampling.max_tokens


def is_inside(request: Request) -> bool | None:
    told = length_interval(request)
    return None if told is None else round(told[0]) <= request.generated <= round(told[-1])
