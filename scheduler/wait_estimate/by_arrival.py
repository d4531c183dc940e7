"""What the order of the queue brings: latencies of the latest answers beside those that first come, first served gives.

The replay runs at each moment as many answers as ran then, those that came first, each for as long as it ran: where
requests were served in order of arrival, both are the same. While nobody waits, as many may run as ever ran at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from typing import NamedTuple

LATEST = 1024  # answers that are replayed

FEWEST_WAITED = 30  # answers that waited, below which there is no comparison


class Answer(NamedTuple):
    """An answer that has ended, with its moments in seconds of the clock."""

    arrival: float
    assigned: float
    end: float
    tokens: int
    waited: bool  # whether it came while all slots were taken


@dataclass(frozen=True, slots=True)
class Comparison:
    """Means over the latest answers, in seconds."""

    answers: int
    waited: int
    latency: float
    latency_by_arrival: float
    normalized: float  # latency for each generated token
    normalized_by_arrival: float
    latest: float  # most seconds that an answer ended later than by order of arrival


def compare(answers: Sequence[Answer]) -> Comparison | None:
    """Latencies beside those by order of arrival; None while too few answers waited."""
    count, waited = len(answers), sum(one.waited for one in answers)
    if waited < FEWEST_WAITED:
        return None
    pairs = [(one.end - one.arrival, end - one.arrival, one.tokens) for one, end in _replay(answers)]
    served, by_arrival = (sum(pair[which] for pair in pairs) / count for which in (0, 1))
    normalized, normalized_by_arrival = (sum(pair[which] / pair[2] for pair in pairs) / count for which in (0, 1))
    latest = max(mine - other for mine, other, _ in pairs)
    return Comparison(count, waited, served, by_arrival, normalized, normalized_by_arrival, latest)


def _replay(answers: Sequence[Answer]) -> Iterator[tuple[Answer, float]]:
    """Each answer with the moment at which it ends by order of arrival."""
    changes = sorted(
        change
        for one in answers
        for change in ((one.arrival, 0, 1), (one.assigned, 1, -1), (one.end, -1, 0))  # moment, running, waiting
    )
    most = max(accumulate(change[1] for change in changes))
    queue, ends, running, waiting = deque(sorted(answers)), list[float](), 0, 0

    def start(now: float) -> Iterator[tuple[Answer, float]]:
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
