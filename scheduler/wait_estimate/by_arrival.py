"""Latencies of the latest answers beside those under first come, first served, by replaying them with the same
concurrency.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from typing import NamedTuple

LATEST = 1024  # answers replayed

FEWEST_WAITED = 30  # answers that waited, for a comparison


class EndedAnswer(NamedTuple):
    """Moments in seconds of the clock."""

    arrival: float
    assigned: float
    end: float
    tokens: int
    waited: bool  # all slots were taken


@dataclass(frozen=True, slots=True)
class ArrivalComparison:
    """Means in seconds."""

    answers: int
    waited: int
    latency: float
    latency_by_arrival: float
    normalized: float  # latency a generated token
    normalized_by_arrival: float
    latest: float  # largest delay against order of arrival


def compare(answers: Sequence[EndedAnswer]) -> ArrivalComparison | None:
    """None while too few answers waited."""
    count, waited = len(answers), sum(one.waited for one in answers)
    if waited < FEWEST_WAITED:
        return None
    pairs = [(one.end - one.arrival, end - one.arrival, one.tokens) for one, end in _replay(answers)]
    served, by_arrival = (sum(pair[which] for pair in pairs) / count for which in (0, 1))
    normalized, normalized_by_arrival = (sum(pair[which] / pair[2] for pair in pairs) / count for which in (0, 1))
    latest = max(mine - other for mine, other, _ in pairs)
    return ArrivalComparison(count, waited, served, by_arrival, normalized, normalized_by_arrival, latest)


def _replay(answers: Sequence[EndedAnswer]) -> Iterator[tuple[EndedAnswer, float]]:
    changes = sorted(
        change
        for one in answers
        for change in ((one.arrival, 0, 1), (one.assigned, 1, -1), (one.end, -1, 0))  # moment, running, waiting
    )
    most = max(accumulate(change[1] for change in changes))
    queue, ends, running, waiting = deque(sorted(answers)), list[float](), 0, 0

    def start(now: float) -> Iterator[tuple[EndedAnswer, float]]:
        while queue and queue[0].arrival <= now and len(ends) < (running if waiting else most):
            one = queue.popleft()
            heappush(ends, now + one.end - one.assigned)
            yield one, now + one.end - one.assigned

    for now, runs, waits in changes:
        while ends and ends[0] <= now:
            yield from start(heappop(ends))
        running, waiting = running + runs, waiting + waits
        yield from start(now)
    while queue:
        yield from start(heappop(ends))
