"""Calibrated promises: split conformal prediction (Lei et al., JASA 113, 2018) with signed scores in groups.

With a point p and a spread s, an answer that ends after t seconds scores z = ln(t / p) / s; quantiles of a group's
scores give the low end p·exp(s·z05), the median and the promise p·exp(s·z95). Feedback is a queue's length late: what
is overdue scores by its seconds so far, and what was served only since it was due scores beyond its promise.
"""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from math import ceil, hypot
from statistics import median

from scheduler.request import Request
from scheduler.wait_estimate.completion import Group

LOW = 0.05  # quantile of low ends

RECENT = 256  # scores that count

FEWEST = 32  # scores before calibration, and answers before scoring: earlier estimates know too little

LEAST_SPREAD = 0.25

WAIT_SPREAD = 0.5  # of a wait, as a log ratio

# spreads beyond its promise; with 0, promises that order keeps come ever nearer, until a fifth of a kind breaks
RESCUED = 0.5

UNKNOWN = (-0.5, 0.0, 1.5)  # scores before there are any: low end, median, promise


class Calibration:
    def __init__(self, keeps: bool) -> None:
        """`keeps`: due requests go first."""
        self._keeps = keeps
        self._scores: defaultdict[Group | None, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))
        self._overdue: defaultdict[Group | None, deque[Request]] = defaultdict(lambda: deque(maxlen=RECENT))
        self._promises: list[tuple[float, int, Request]] = []  # heap by time
        self._lengths = deque[int](maxlen=RECENT)

    def promise(self, request: Request) -> None:
        """Once it is in line."""
        if (told := request.expected) is not None and told.group is not None:
            heappush(self._promises, (told.at + told.high, request.row_id, request))

    def add(self, request: Request, end: float) -> None:
        """An answer."""
        self._lengths.append(request.generated)
        expected, assigned = request.expected, request.times.assigned
        if expected is None or expected.group is None or assigned is None:
            return
        score = expected.score(end - expected.at)
        if self._keeps and assigned >= expected.due(request.promised):
            score = max(score, expected.score(expected.high) + RESCUED)
        for group in (None, expected.group):
            self._scores[group].append(score)

    def find_group(self, length: float, ahead: float) -> Group | None:
        """By the share of the queue's work that is `ahead`, -1 where none is."""
        if len(self._lengths) < FEWEST:
            return None
        usual = median(self._lengths)
        return min(3, int(4 * ahead)) if ahead >= 0 else -1, bisect_left((usual / 2, 2 * usual), length)

    def find_scores(self, group: Group | None, now: float, coverage: float) -> tuple[float, float, float]:
        """Of low end, median and promise."""
        while self._promises and self._promises[0][0] < now:
            late = heappop(self._promises)[2]
            assert late.expected is not None
            for each in (None, late.expected.group):
                self._overdue[each].append(late)
        chosen = group if len(self._scores[group]) >= FEWEST else None
        scores = [*self._scores[chosen], *(self._score_overdue(chosen, now) if self._overdue[chosen] else ())]
        if len(scores) < FEWEST:
            return UNKNOWN
        scores.sort()
        return find_quantile(scores, LOW), find_quantile(scores, 0.5), find_quantile(scores, coverage)

    def _score_overdue(self, group: Group | None, now: float) -> Iterator[float]:
        for request in [one for one in self._overdue[group] if one.state.is_final]:
            self._overdue[group].remove(request)
        return (one.expected.score(now - one.expected.at) for one in self._overdue[group] if one.expected is not None)


def spread_of(point: float, own: float, lengths: float) -> float:
    """Of both parts by their shares; `lengths`: log ratio of the own length's high end to its median."""
    return max(LEAST_SPREAD, hypot(lengths * own, WAIT_SPREAD * (point - own)) / point)


def find_quantile(ordered: Sequence[float], share: float) -> float:
    """As of scores that are exchangeable with the next."""
    count = len(ordered)
    return ordered[min(count, max(1, ceil(share * (count + 1)))) - 1]
