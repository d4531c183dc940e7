"""What the server foresees of answers, and what it makes of how they ended: one object for handlers and dispatcher.

It knows neither how lengths are predicted nor who learns from them; predictors.py puts that together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from engine.messages import FinishReason, SamplingParams
from scheduler.assignment import Assignment
from scheduler.learning import Learning, Lesson
from scheduler.length.cache import CacheCounts, LengthCache
from scheduler.length.features import LengthQuery
from scheduler.length.front import Front, Prediction
from scheduler.length.oracle import oracle
from scheduler.request import Request
from server.records import Records

Predict: TypeAlias = Callable[[LengthQuery, SamplingParams], Awaitable[Prediction | None]]


async def nobody(query: LengthQuery, sampling: SamplingParams) -> None:
    """The Predict of strategies that do not ask."""


async def true_length(query: LengthQuery, sampling: SamplingParams) -> Prediction:
    """The Predict of oracle strategies. Raises NoReplay."""
    return oracle(sampling)


@dataclass(frozen=True, slots=True)
class Learned:
    """Who predicts and learns, for whoever publishes how well; None for what is not there."""

    front: Front | None = None
    learning: Learning | None = None
    cache: LengthCache | None = None

    @property
    def lessons(self) -> Sequence[Lesson]:
        """The error of predictions over time, oldest first (Magnus, figure 14)."""
        return () if self.learning is None else self.learning.lessons

    @property
    def cached(self) -> CacheCounts | None:
        """None where there is no length cache."""
        return None if self.cache is None else self.cache.counts


class Lengths:
    """A Foresight for the handlers; a Ledger and an Observer for the dispatcher. Event loop only."""

    def __init__(self, predict: Predict, records: Records, learned: Learned = Learned()) -> None:
        self.learned = learned
        self._predict = predict
        self._records = records

    async def predict(self, query: LengthQuery, sampling: SamplingParams) -> Prediction | None:
        return await self._predict(query, sampling)

    def note(self, request: Request, query: LengthQuery, prediction: Prediction | None) -> None:
        self._records.note(request, query, prediction)

    def ended(self, request: Request, reason: FinishReason | None, now: float) -> None:
        self._records.ended(request, reason, now)

    def finished(self, assignment: Assignment, now: float) -> None:
        self._records.finished(assignment, now)
