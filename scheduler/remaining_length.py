"""Expected tokens to come."""

from bisect import bisect_left
from collections.abc import Iterable
from math import inf, log

from models.recent import RecentSorted
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
    elif request.distribution is not None:
        expected = request.generated  # beyond all known: the median by Pareto's law with exponent 1
    elif request.predicted_length is not None:
        expected = scale * min(request.predicted_length, request.sampling.max_tokens) - request.generated
    else:
        expected = most if typical is None else typical
    return float(max(1.0, request.sampling.least_tokens - request.generated, min(expected, most)))


def likely_lengths(request: Request, points: int, typical: float | None = None) -> list[float]:
    """As many equally likely ones: quantiles of G - generated given G > generated; unpredicted ones are memoryless."""
    known, scale, made = request.distribution, request.correction, request.generated
    shares = [(point + 0.5) / points for point in range(points)]
    if points > 1 and known is not None:
        ends = known.remaining_quantiles(made / scale, shares) or [made / scale * one / (1 - one) for one in shares]
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
        self._latest = RecentSorted[tuple[float, float]](self.WINDOW)
        self._sorted = self._latest.sorted

    @property
    def answers(self) -> int:
        return len(self._sorted)

    @property
    def ratio(self) -> float:
        told = sum(one for one, _ in self._sorted)
        return sum(true for _, true in self._sorted) / told if told else 1.0

    def add(self, request: Request) -> None:
        if request.predicted_length is not None:
            self._latest.add((_capped(request), float(request.generated)))

    def factor(self, request: Request, running: Iterable[Request]) -> float:
        if request.predicted_length is None:
            return 1.0
        known = [(_capped(one), float(one.generated)) for one in running if one.predicted_length is not None]
        held = sorted((told, max(told, made)) for told, made in known)
        total = len(self._sorted) + len(held)
        if total < self.FEWEST:
            return 1.0
        count = max(4, min(self.NEAREST, total // 8))
        ends = (_capped(request), 0.0), (_capped(request), inf)
        place = (sum(bisect_left(pairs, end) for pairs in (self._sorted, held) for end in ends) - count) // 2
        place = max(0, min(place, total - count))
        skipped = max(0, place - len(held))  # ended ones, before these with any held
        near = sorted([*self._sorted[skipped : place + count], *held])[place - skipped :][:count]
        return max(1.0, sum(true for _, true in near)) / max(1.0, sum(told for told, _ in near))


def _capped(request: Request) -> float:
    return float(min(request.predicted_length or 0.0, request.sampling.max_tokens))
