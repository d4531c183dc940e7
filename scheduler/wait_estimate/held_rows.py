"""What executors hold, and when its slots let others start.

A slot whose row ends at r has begun 1 + (t - r) / m requests of mean work m by t, as a renewal process has; one with n
ahead starts at the first t at which all slots have begun n + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.remaining_length import likely_lengths, remaining_length
from scheduler.request import Request
from scheduler.waiting.prices import Prices

POINTS = 4  # a row; 16 are no better

ALL_POINTS = 64  # then one a row


@dataclass(frozen=True, slots=True)
class HeldRows:
    """In tokens of a row."""

    ends: NDArray[np.float64]  # of slots taken, ascending
    points: int  # of each slot
    free: int  # slots
    staged: int  # rows beyond the slots
    work: float  # of these
    unread: float  # work left to prefill
    tokens: float  # mean of a row
    slots: int
    prices: Prices

    @classmethod
    def of(
        cls, held: Sequence[Request], slots: int, prices: Prices, typical: float | None, *, stuck: bool = False
    ) -> HeldRows:
        """Milliseconds for a thousand. Background rows take no slot; while others are stuck, none is free."""
        rows = sorted((one for one in held if not one.in_background), key=generates, reverse=True)
        prompts = [request.unread for request in held if request.needs_prefill]
        points = max(1, min(POINTS, ALL_POINTS // (len(rows) + 1)))
        ends = [end for request in rows[:slots] for end in likely_lengths(request, points, typical)]
        return cls(
            np.sort(ends),
            points,
            0 if stuck else max(0, slots - len(rows)),
            max(0, len(rows) - slots),
            sum(remaining_length(request, typical) for request in rows[slots:]),
            prices.read_work(sum(prompts), len(prompts)),
            sum(request.tokens for request in held) / max(1, len(held)),
            slots,
            prices,
        )

    def until_taken(self, ahead: int, work: float, *, slot: bool = False) -> float:
        """Until one with some `ahead`, of `work` in all, takes a `slot`, or is staged."""
        if not len(self.ends) + self.free:
            return 0.0
        before = ahead + self.staged
        place = before if slot else ahead
        mean = ((work + self.work) / before if before else float(self.ends.mean()) if len(self.ends) else 0.0) or 1.0
        if not len(self.ends):
            return mean * max(1.0, (place + 1) / self.free - 1)
        ends = np.sort(np.append(self.ends, [mean] * self.points * self.free)) if self.free else self.ends
        slots, sums = np.arange(1, len(ends) + 1) / self.points, np.cumsum(ends) / self.points
        others = place - self.free  # the first take what is free
        last = int(np.searchsorted(slots + (slots * ends - sums) / mean, others + 1))
        if not last:
            return float(ends[0])
        until = (mean * (others + 1 - slots[last - 1]) + sums[last - 1]) / slots[last - 1]
        return float(until if last == len(ends) else min(until, ends[last]))


def generates(request: Request) -> bool:
    """Past its first token."""
    return request.generated > 1
