"""Predicted lengths of answers, and what is recorded and learned when they end: one object for handlers and dispatcher.

It joins what the handlers knew of a request with what became of it. It knows neither how lengths are predicted nor who
learns from them; predictors.py puts that together.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from engine.messages import REPETITION, FinishReason
from engine.sampling.params import SamplingParams
from scheduler.journal.file import BatchEntry, RequestEntry
from scheduler.journal.writer import Journal
from scheduler.learner import Lesson
from scheduler.length.cache import LengthCache
from scheduler.length.features import LengthQuery
from scheduler.length.learning import Learning, ServedRow
from scheduler.length.microbatch import LateEstimates, MicroBatcher
from scheduler.length.online import OnlineForest
from scheduler.length.prediction import Estimate, Prediction, oracle, prediction_of
from scheduler.plan import Assignment
from scheduler.request import Request
from scheduler.serving_time.nearest import served_batch
from server.api.served_model import Revise

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


CANCELLED = "cancelled"
"""Outcome of a request whose client has left; those of others are their finish reasons, and REPETITION."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The fields that all entries of one server have in common."""

    model: str
    strategy: str
    prompts: bool = False
    """Whether texts may be kept."""
    sync: bool = False
    """Whether the readers of answers wait until these are recorded."""


@dataclass(frozen=True, slots=True)
class EndedAnswer:
    """An answer that was not cancelled."""

    query: LengthQuery
    length: int
    whole: bool
    """Whether it ended by itself, and was not cut off at `max_tokens` or because it repeated itself."""
    prediction: Prediction | None = None

    @property
    def row(self) -> ServedRow | None:
        """The answer to learn from; None where its length was not predicted, not even with a guess for it."""
        features = () if self.prediction is None else self.prediction.features_by_now
        if self.prediction is None or not features:
            return None
        return ServedRow(features, self.prediction.length, self.length, not self.whole, self.query.scope)


OnAnswer: TypeAlias = Callable[[Request, EndedAnswer], None]


class Records:
    """Records requests and batches for the dispatcher. Event loop only; neither takes long nor raises."""

    def __init__(self, origin: Origin, journal: Journal | None, on_answer: OnAnswer) -> None:
        """`on_answer` is called with each answer that was not cancelled."""
        self._origin = origin
        self.journal = journal
        self._on_answer = on_answer
        self._open: dict[Request, tuple[LengthQuery, Prediction | None]] = {}

    def note(self, request: Request, query: LengthQuery, prediction: Prediction | None) -> None:
        """Note a request that was submitted, with what is known of it."""
        self._open[request] = query, prediction

    def revise(self, request: Request, prediction: Prediction) -> None:
        """Replace the prediction of a request that has not ended; one from other features leaves what it had."""
        query, known = self._open[request]
        if not prediction.features and known is not None:
            prediction = replace(prediction, features=known.features_by_now)
        self._open[request] = query, prediction

    def on_end(self, request: Request, reason: FinishReason | None, now: float) -> None:
        noted = self._open.pop(request, None)
        if noted is None:  # it ended while it was being submitted
            return
        query, prediction = noted
        if reason in (FinishReason.STOP, FinishReason.LENGTH) and request.generated:
            self._on_answer(request, EndedAnswer(query, request.generated, _is_whole(request, reason), prediction))
        if self.journal is not None:
            recorded = self.journal.put(request_entry(self._origin, request, query, prediction, reason))
            request.recorded = recorded if self._origin.sync else None

    def on_finish(self, assignment: Assignment, now: float) -> None:
        entry = batch_entry(self._origin, assignment)
        if self.journal is not None and entry is not None:
            self.journal.put(entry)


def request_entry(
    origin: Origin, request: Request, query: LengthQuery, prediction: Prediction | None, reason: FinishReason | None
) -> RequestEntry:
    """A request that has ended, as the journal has it."""
    times = request.times
    since = times.arrival
    return RequestEntry(
        finished_at=time.time(),
        model=origin.model,
        strategy=origin.strategy,
        outcome=_outcome(request, reason),
        input_length=request.input_length,
        user_input_length=query.user_input_length,
        max_tokens=request.sampling.max_tokens,
        generated=request.generated,
        predicted=None if prediction is None else prediction.length,
        source=None if prediction is None else str(prediction.source),
        assigned=None if times.assigned is None else times.assigned - since,
        started=None if times.started is None else times.started - since,
        first_token=None if times.first_token is None else times.first_token - since,
        latency=(since if times.end is None else times.end) - since,
        runs=request.runs,
        replayed=request.sampling.replay_tokens is not None,
        features=() if prediction is None else prediction.features_by_now,
        instruction=query.instruction if origin.prompts else None,
        user_input=query.user_input if origin.prompts else None,
        scope=query.scope,
    )


def _outcome(request: Request, reason: FinishReason | None) -> str:
    if reason is None:
        return CANCELLED
    return REPETITION if _repeated(request) else str(reason)


def _is_whole(request: Request, reason: FinishReason) -> bool:
    if _repeated(request):
        return False
    return reason is FinishReason.STOP or request.generated < request.sampling.max_tokens


def _repeated(request: Request) -> bool:
    """Whether the server ended the answer; a client's own stop string of this name is another matter."""
    return request.stop_reason == REPETITION and REPETITION not in request.sampling.stop


def batch_entry(origin: Origin, assignment: Assignment) -> BatchEntry | None:
    """A batch that has ended, as the journal has it; None when it did not run as planned."""
    batch = served_batch(assignment)
    if batch is None:
        return None
    return BatchEntry(
        finished_at=time.time(),
        model=origin.model,
        strategy=origin.strategy,
        executor=assignment.executor,
        rows=batch.rows,
        input_length=batch.input_length,
        generation_length=batch.generation_length,
        predicted_length=batch.predicted_length or None,
        predicted_seconds=batch.predicted_seconds or None,
        seconds=batch.seconds,
    )
