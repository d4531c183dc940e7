"""What a request's predicted length was worth, once its answer has ended."""

from engine.messages import FinishReason
from scheduler.length.likely import length_interval
from scheduler.length.oracle import is_replayed
from scheduler.request import Request

TWICE = 2.0


def within_twice(predicted: float, generated: float) -> bool:
    return max(predicted, generated) <= TWICE * min(predicted, generated)


def can_be_judged(request: Request, reason: FinishReason) -> bool:
    """A truncated answer has no true length, and a prediction of max_tokens repeats the client."""
    whole, predicted = reason is FinishReason.STOP or is_replayed(request.sampling), request.predicted_length
    return whole and predicted is not None and round(predicted) < request.sampling.max_tokens


def is_inside(request: Request) -> bool | None:
    """Whether a length is in its predicted 90 % interval."""
    told = length_interval(request)
    return None if told is None else round(told[0]) <= request.generated <= round(told[-1])
