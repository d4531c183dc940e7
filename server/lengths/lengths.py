"""Predicted lengths of answers, and what is learned when they end: one object for handlers and dispatcher.

It knows neither how lengths are predicted nor who learns from them; predictors.py puts that together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from engine.messages import FinishReason
from engine.sampling.params import SamplingParams
from scheduler.journal.writer import Journal
from scheduler.learner import Lesson
from scheduler.length.cache import LengthCache
from scheduler.length.features import LengthQuery
from scheduler.length.learning import Learning
from scheduler.length.microbatch import LateEstimates, MicroBatcher
from scheduler.length.online import OnlineForest
from scheduler.length.prediction import Estimate, Prediction, oracle, prediction_of
from scheduler.plan import Assignment
from scheduler.request import Request
from server.api.generator import Revise
from server.lengths.records import Records

Predict: TypeAlias = Callable[[LengthQuery, SamplingParams], Awaitable[Prediction | None]]
"""Predicts the length of an answer."""


async def predict_nothing(query: LengthQuery, sampling: SamplingParams) -> None:
    """Predict no length, for strategies that do not ask."""


async def true_length(query: LengthQuery, sampling: SamplingParams) -> Prediction:
    """Tell the length that a request replays, for oracle strategies. Raises NoReplay."""
    return oracle(sampling)


@dataclass(frozen=True, slots=True)
class PredictorParts:
    """The parts that predict and learn, for metrics about them; None for what is not there."""

    front: MicroBatcher | None = None
    learning: Learning | OnlineForest | None = None
    cache: LengthCache | None = None
    late: LateEstimates = field(default_factory=LateEstimates)

    @property
    def lesson(self) -> Lesson | None:
        """The latest lesson on lengths; None before the first."""
        return None if self.learning is None else self.learning.learner.latest


class Lengths:
    """Predicts for the handlers, and follows requests and batches for the dispatcher. Event loop only."""

    def __init__(self, predict: Predict, records: Records, learned: PredictorParts | None = None) -> None:
        self.learned = learned or PredictorParts()
        self._predict = predict
        self._records = records

    @property
    def journal(self) -> Journal | None:
        """Where requests and batches are recorded; None for nowhere."""
        return self._records.journal

    async def predict(self, query: LengthQuery, sampling: SamplingParams) -> Prediction | None:
        return await self._predict(query, sampling)

    def note(self, request: Request, query: LengthQuery, prediction: Prediction | None, revise: Revise) -> None:
        self._records.note(request, query, prediction)
        if prediction is not None and prediction.late is not None and not request.state.is_final:
            self.learned.late.expect(request, prediction.late, partial(self._revised, request, query, revise))

    def on_first_token(self, request: Request, now: float) -> None:
        return

    def on_end(self, request: Request, reason: FinishReason | None, now: float) -> None:
        self._records.on_end(request, reason, now)
        self.learned.late.forget(request)

    def on_finish(self, assignment: Assignment, now: float) -> None:
        self._records.on_finish(assignment, now)

    def _revised(self, request: Request, query: LengthQuery, revise: Revise, estimate: Estimate) -> bool:
        """Take over a prediction that came after its request had gone on with a guess; False when it says nothing."""
        prediction = prediction_of(query, estimate)
        if prediction is None:
            return False
        self._records.revise(request, prediction)
        revise(request, prediction.length, prediction.distribution)
        return True
