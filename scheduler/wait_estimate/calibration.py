"""Calibrated promises: split conformal prediction (Lei et al., JASA 113, 2018) with signed scores in groups.

With a point p and a spread s, an answer that ends after t seconds scores z = ln(t / p) / s; quantiles of a group's
scores give the low end p·exp(s·z05), the median and the promise p·exp(s·z95). Censored are scores of what broke off or
is overdue, by its seconds so far, and of what was served only since its promise was due, else kept promises would be
evidence for nearer ones.
"""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import compress
from math import ceil, hypot, log, log1p
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from models.recent import RecentSorted
from scheduler.length.learning import ROUNDING
from scheduler.request import Request
from scheduler.wait_estimate.completion import LEAST_SECONDS, Expected, Group

LOW = 0.05  # quantile of low ends

RECENT = 256  # scores that count

FEWEST = 20  # answers before scoring

FEWEST_SCORES = 40  # before calibration: of fewer the largest would be the promise

LEAST_SPREAD = 0.25  # of speeds

WAIT_SPREAD = 0.5  # of a wait, as a log ratio

UNKNOWN = (-0.5, 0.0, 2.0)  # scores before there are any: low end, median, promise


NO_WAIT, ALONE, NEXT = -1, -3, -4  # for the queue's share; beside others, first of all, or of those that wait

LIMITED = 3  # length class of what `max_tokens` will end

ALL_LIMITED = (-2, LIMITED)


class Score(NamedTuple):
    z: float
    cut: bool = False  # censored
    answers: int = 0  # known when promised


class Calibration:
    def __init__(self, keeps: bool) -> None:
        """`keeps`: due requests go first."""
        self._keeps = keeps
        self._scores = defaultdict[Group | None, RecentSorted[Score]](lambda: RecentSorted(RECENT))
        self._overdue: defaultdict[Group | None, deque[Request]] = defaultdict(lambda: deque(maxlen=RECENT))
        self._promises: list[tuple[float, int, Request]] = []  # heap by time
        self._lengths = RecentSorted[int](RECENT)

    def promise(self, request: Request) -> None:
        """Once it is in line."""
        if (told := request.expected) is not None and told.group is not None:
            heappush(self._promises, (told.at + told.high, request.row_id, request))

    def add(self, request: Request, end: float, *, cut: bool = False) -> None:
        """An answer, or what was `cut` before it."""
        expected, assigned = request.expected, request.times.assigned
        if not cut:
            self._lengths.add(request.generated)
            self._forget()
        if expected is None or expected.group is None or not self._counts(expected):
            return
        score, known = expected.score(end - expected.at), expected.answers
        rescued = self._keeps and expected.waits and assigned is not None and assigned >= expected.due
        for pool in {*list_pools(expected.group)}:
            self._scores[pool].add(Score(score, cut or rescued, known))
        if expected.waits and assigned is not None:
            served = max(end - assigned, LEAST_SECONDS)
            alone = Score(log(served / expected.own) / expected.own_spread, cut, known)
            self._scores[NEXT, expected.group[1]].add(alone)

    @property
    def answers(self) -> int:
        """Known, until RECENT."""
        return len(self._lengths.sorted)

    def _forget(self) -> None:
        if self.answers < RECENT:
            for scores in self._scores.values():
                scores.keep(self._counts)

    def _counts(self, one: Score | Expected) -> bool:
        """Promises of when little was known do not."""
        return 4 * one.answers >= self.answers

    def find_group(self, length: float, ahead: float, *, limited: bool = False) -> Group | None:
        """By the share of the queue's work that is `ahead`, else NO_WAIT, ALONE or NEXT."""
        if self.answers < FEWEST:
            return None
        usual = median(self._lengths.sorted)
        own = LIMITED if limited else bisect_left((usual / 2, 2 * usual), length)
        return min(3, int(4 * ahead)) if ahead >= 0 else int(ahead), own

    def find_scores(self, group: Group | None, now: float, coverage: float) -> tuple[float, float, float]:
        """Of low end, median and promise."""
        while self._promises and self._promises[0][0] < now:
            late = heappop(self._promises)[2]
            if late.expected is not None:  # else a backend refused it
                for each in {*list_pools(late.expected.group)}:
                    self._overdue[each].append(late)
        common, own = list_pools(group)
        chosen = own if len(self._scores[own].sorted) >= FEWEST_SCORES else common
        scores = self._scores[chosen].sorted
        if self._overdue[chosen]:
            scores = sorted([*scores, *self._score_overdue(chosen, now)])
        if len(scores) < FEWEST_SCORES:
            return UNKNOWN
        low, middle, high = find_quantiles(scores, (LOW, 0.5, coverage))
        return low, middle, high

    def _score_overdue(self, pool: Group | None, now: float) -> Iterator[Score]:
        for request in [one for one in self._overdue[pool] if one.state.is_final]:
            self._overdue[pool].remove(request)
        told = (one.expected for one in self._overdue[pool])
        return (Score(one.score(now - one.at), True, one.answers) for one in told if one is not None)


def find_last(requests: Sequence[Request]) -> Expected | None:
    """Of a call's answers; None if any is not known."""
    told = [one.expected for one in requests if one.expected is not None and one.expected.known]
    return max(told, key=attrgetter("by")) if told and len(told) == len(requests) else None


def promise_together(requests: Sequence[Request]) -> float | None:
    """When the last of a call's answers is promised, which all are, and which alone is scored."""
    if (last := find_last(requests)) is None:
        return None
    for request in requests:
        if (one := request.expected) is not None and one is not last:
            request.expected = replace(one, high=last.by - one.at, group=None)
    return last.by


def list_pools(group: Group | None) -> tuple[Group | None, Group | None]:
    """Of all, and its own; what ends alone, or by limits, and what does not teach nothing of each other."""
    if group is not None and group[0] == ALONE:
        return group, group
    return (None if group is None or group[1] != LIMITED else ALL_LIMITED), group


def spread_of(point: float, own: float, lengths: float, others: float) -> float:
    """Of both parts by their shares; `lengths`: log ratio of the own length's high end to its median. UNKNOWN promises
    allow for all of it, and all seconds of `others`.
    """
    parts = hypot(lengths / UNKNOWN[2] * own, WAIT_SPREAD * (point - own)) / point
    return LEAST_SPREAD + parts + log1p(others / point) / UNKNOWN[2]


def find_quantiles(scores: Sequence[Score], shares: Sequence[float]) -> list[float]:
    """Of scores, some cut, that are exchangeable with the next, both ascending: `survival`, by steps between cuts."""
    count, found = len(scores), list[float]()
    step = 1 / (count + 1)
    for cut in (*compress(range(count), map(attrgetter("cut"), scores)), count):
        while len(found) < len(shares):
            place = ceil(count - (1 - shares[len(found)] + ROUNDING) / step)
            if place >= cut:
                break
            found.append(scores[place].z)
        step *= (count + 1 - cut) / max(1, count - cut)
    return found + [scores[-1].z] * (len(shares) - len(found))
