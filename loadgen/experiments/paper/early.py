"""Counts slices that end before their time. Knows no simulation."""

from __future__ import annotations

from scheduler.observers import PlanObserver
from scheduler.plan import Assignment


class SliceCount:
    """A PlanObserver that tells another, if there is one, what it is told."""

    def __init__(self, other: PlanObserver | None = None) -> None:
        self._other = other
        self._slices = 0
        self._early = 0

    @property
    def early_share(self) -> float:
        """Of batches with an iteration limit, those whose rows had all ended before it; 0 without any."""
        return self._early / self._slices if self._slices else 0.0

    def finished(self, assignment: Assignment, now: float) -> None:
        limit = assignment.plan.terms.iterations
        if limit is not None:
            self._slices += 1
            self._early += assignment.iterations < limit
        if self._other is not None:
            self._other.finished(assignment, now)
