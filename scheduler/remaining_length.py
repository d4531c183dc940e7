"""Expected tokens to come."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from math import inf, log

from scheduler.request import Request

PROMPT_TOKEN = 0.2  # work of a prompt token, in generated tokens


def remaining_length(request: Request, typical: float | None = None) -> float:
    """From 1, or what the least length leaves, to the allowed: E[G | G > generated] - generated; else the prediction,
    `typical`, or all allowed; times `correction`.
    """
    most, scale = request.sampling.max_tokens - request.generated, request.correction
    expected = None if request.distribution is None else request.distribution.remaining(request.generated / scale)
    if expected is not None:
        expected = scale * min(expected, request.sampling.max_tokens)
    elif request.predicted_length is not None:
        expected = scale * min(request.predicted_length, request.sampling.max_tokens) - request.generated
    else:
        expected = most if typical is None or request.distribution is not None else typical
    return float(max(1.0, request.sampling.least_tokens - request.generated, min(expected, most)))


def likely_lengths(request: Request, points: int, typical: float | None = None) -> list[float]:
    """As many equally likely ones: quantiles of G - generated given G > generated; unpredicted ones are memoryless."""
    known, scale, made = request.distribution, request.correction, request.generated
    shares = [(point + 0.5) / points for point in range(points)]
    if points > 1 and known is not None and (ends := known.remaining_quantiles(made / scale, shares)):
        least = max(1.0, request.sampling.least_tokens - made)
        most = max(least, request.sampling.max_tokens - made)
        return [max(least, min(most, scale * end)) for end in ends]
    mean = remaining_length(request, typical)
    if points == 1 or known is not None or request.predicted_length is not None:
        return [mean] * points
    return [-mean * log(1 - share) for share in shares]


def work_left(request: Request) -> float:
    return remaining_length(request) + PROMPT_TOKEN * request.unread


class Calibration:
    """sum of true / sum of predicted lengths of the NEAREST predictions among the last WINDOW answers and running
    rows.
    """

    WINDOW = 512
    NEAREST = 24
    FEWEST = 8

    def __init__(self) -> None:
        self._latest: deque[tuple[float, float]] = deque()
        self._sorted: list[tuple[float, float]] = []

    @property
    def answers(self) -> int:
        return len(self._sorted)

    @property
    def ratio(self) -> float:
        told = sum(one for one, _ in self._sorted)
        return sum(true for _, true in self._sorted) / told if told else 1.0

    def add(self, request: Request) -> None:
        if request.predicted_length is None:
            return
        pair = _capped(request), float(request.generated)
        self._latest.append(pair)
        insort(self._sorted, pair)
        if len(self._latest) > self.WINDOW:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]

    def factor(self, request: Request, running: Iterable[Request]) -> float:
        if request.predicted_length is None:
            return 1.0
        known = [(_capped(one), float(one.generated)) for one in running if one.predicted_length is not None]
        pairs = sorted([*self._sorted, *((told, max(told, made)) for told, made in known)])
        if len(pairs) < self.FEWEST:
            return 1.0
        count = max(4, min(self.NEAREST, len(pairs) // 8))
        own = _capped(request)
        place = (bisect_left(pairs, (own, 0.0)) + bisect_left(pairs, (own, inf)) - count) // 2
        near = pairs[max(0, min(place, len(pairs) - count)) :][:count]
        return max(1.0, sum(true for _, true in near)) / max(1.0, sum(told for told, _ in near))


def _capped(request: Request) -> float:
    return float(min(request.predicted_length or 0.0, request.sampling.max_tokens))
