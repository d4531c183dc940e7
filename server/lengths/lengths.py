"""Predicted lengths of answers, and what is recorded and learned when they end: one object for handlers and dispatcher.

It joins what the handlers knew of a request with what became of it. The default's forest, which predicts in this
process, is put together here, without a tensor library; predictors.py does so for those that need one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from engine.messages import REPETITION, FinishReason
from engine.sampling.params import SamplingParams
from models.catalog.catalog import default_cache
from scheduler.clock import Clock, background
from scheduler.journal.file import JournalError, RequestEntry, read
from scheduler.journal.writer import Bounds, Journal
from scheduler.learner import Lesson, Submit, inline
from scheduler.length.cache import CachedPredictor
from scheduler.length.features import LengthQuery, TokenFeatures
from scheduler.length.learning import Learning, LengthHistory, ServedRow, served_rows
from scheduler.length.microbatch import IDLE_SHARE, LateEstimates, MicroBatcher
from scheduler.length.online import MOST, Fit, OnlineForest, fit
from scheduler.length.oracle import oracle
from scheduler.length.prediction import Estimate, LengthPredictor, Prediction, prediction_of
from scheduler.request import Request
from server.api.served_model import AnswerLengths, Revise
from server.cli.config import FrontConfig
from server.composition.cache_paths import journal_path


@dataclass(frozen=True, slots=True)
class PredictorParts:
    """The parts that predict and learn; None for what is not there."""

    front: MicroBatcher | None = None
    learning: Learning | OnlineForest | None = None
    cached: CachedPredictor | None = None
    late: LateEstimates = field(default_factory=LateEstimates)
    history: LengthHistory = field(default_factory=LengthHistory)

    @property
    def lesson(self) -> Lesson | None:
        """The latest lesson on lengths; None before the first."""
        return None if self.learning is None else self.learning.learner.latest


CANCELLED = "cancelled"
"""Outcome of a request whose client has left; those of others are their finish reasons, and REPETITION."""


class Lengths(AnswerLengths):
    """Predicts for the handlers, and follows requests for the dispatcher. Event loop only; recording takes
    no time and raises nothing."""

    def __init__(
        self,
        config: FrontConfig,
        model: str,
        journal: Journal | None,
        learned: PredictorParts | None = None,
        *,
        knows: bool = False,
    ) -> None:
        """`model` is the name that answers are recorded by; where it `knows`, requests say how long they become."""
        self.learned = learned or PredictorParts()
        self.journal = journal
        """Where requests are recorded; None for nowhere."""
        self._config, self._model, self._knows = config, model, knows
        self._open: dict[Request, tuple[LengthQuery, Prediction | None]] = {}

    async def predict(self, query: LengthQuery, sampling: SamplingParams) -> Prediction | None:
        """The predicted length; None where none is wanted. Raises NoReplay."""
        if self.learned.front is not None:
            return await self.learned.front.predict(query)
        return oracle(sampling) if self._knows else None

    def note(self, request: Request, query: LengthQuery, prediction: Prediction | None, revise: Revise) -> None:
        """Note a request that was submitted, with what is known of it."""
        self._open[request] = query, prediction
        if prediction is not None and prediction.late is not None and not request.state.is_final:
            self.learned.late.expect(request, prediction.late, partial(self._revised, request, revise))

    def on_first_token(self, request: Request, now: float) -> None:
        return

    def on_end(self, request: Request, reason: FinishReason | None, now: float) -> None:
        self.learned.late.forget(request)
        noted = self._open.pop(request, None)
        if noted is None:  # it ended while it was being submitted
            return
        query, prediction = noted
        if reason in (FinishReason.STOP, FinishReason.LENGTH) and request.generated:
            self._learn(query, prediction, request.generated, whole=_is_whole(request, reason))
        if self.journal is not None:
            entry = request_entry(self._config, self._model, request, query, prediction, reason)
            recorded = self.journal.put(entry)
            request.recorded = recorded if self._config.journal_sync else None

    def _learn(self, query: LengthQuery, prediction: Prediction | None, length: int, *, whole: bool) -> None:
        """Learn from an answer; one that is not `whole` was cut off at `max_tokens`, or because it repeated itself."""
        parts = self.learned
        parts.history.add(query.scope, query.instruction, length, cut=not whole)
        if parts.cached is not None and whole:
            parts.cached.ended(query, length)
        if parts.learning is not None and prediction is not None and (features := prediction.features_by_now):
            parts.learning.add(ServedRow(features, prediction.length, length, not whole, query.scope))

    def _revised(self, request: Request, revise: Revise, estimate: Estimate) -> bool:
        """Take over a prediction that came after its request had gone on with a guess; False when it says nothing."""
        query, known = self._open[request]
        prediction = prediction_of(query, estimate)
        if prediction is None:
            return False
        if not prediction.features and known is not None:  # it is from other features, which leave what it had
            prediction = replace(prediction, features=known.features_by_now)
        self._open[request] = query, prediction
        revise(request, prediction.length, prediction.distribution)
        return True


def request_entry(
    config: FrontConfig,
    model: str,
    request: Request,
    query: LengthQuery,
    prediction: Prediction | None,
    reason: FinishReason | None,
) -> RequestEntry:
    """A request that has ended, as the journal has it."""
    times = request.times
    since = times.arrival
    return RequestEntry(
        finished_at=time.time(),
        model=model,
        strategy=config.strategy,
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
        instruction=query.instruction if config.journal_prompts else None,
        user_input=query.user_input if config.journal_prompts else None,
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


@dataclass(frozen=True, slots=True)
class PredictorContext:
    """The rest of the server, as far as the predictor needs it."""

    held: Callable[[float], None]
    """Called with the seconds that a request waited for its prediction."""
    late: Callable[[float], None]
    """Called with the seconds that a request which had gone on was without it."""
    shared_cores: bool = True
    """Whether the model computes where the predictor does."""
    token_features: TokenFeatures | None = None
    """Features by the served model's own embeddings, where lengths are predicted from these."""
    submit: Submit = inline
    """Runs work off the event loop."""
    fit: Fit = fit
    """Grows the forests of the default."""


@asynccontextmanager
async def open_recorded_lengths(
    config: FrontConfig, model: str, features: TokenFeatures, clock: Clock, context: PredictorContext
) -> AsyncIterator[Lengths]:
    """Lengths of a model's answers, predicted from features of its prompts, and recorded by its name."""
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(open_journal(config))
        known = [] if journal is None else await asyncio.to_thread(_served_before, journal.path, model)
        forest = OnlineForest(features, context.submit, clock, known, context.fit)
        await forest.wait_for_first()
        learning = forest if config.learning_interval else None
        async with connect(config, model, journal, context, forest, learning) as lengths:
            yield lengths


def _served_before(path: Path, model: str) -> list[ServedRow]:
    """The model's newest answers in the journal. One that cannot be read is its writer's to set aside."""
    with suppress(JournalError):
        return served_rows(read(path, last=MOST, model=model))
    return []


@asynccontextmanager
async def connect(
    config: FrontConfig,
    model: str,
    journal: Journal | None,
    context: PredictorContext,
    predictor: LengthPredictor,
    learning: Learning | OnlineForest | None,
    cached: CachedPredictor | None = None,
) -> AsyncIterator[Lengths]:
    """Lengths by a predictor, and the loop that feeds it; its answers go to what learns from them and to the cache."""
    history = LengthHistory()
    front = MicroBatcher(
        cached or predictor,
        history,
        time_limit=config.prediction_timeout,
        idle_share=IDLE_SHARE if context.shared_cores else 1.0,
        observe=context.held,
    )

    parts = PredictorParts(front, learning, cached, LateEstimates(context.late), history)
    async with background(front.run(), "length front"):
        yield Lengths(config, model, journal, parts)


@asynccontextmanager
async def open_journal(config: FrontConfig) -> AsyncIterator[Journal | None]:
    if config.no_journal:
        yield None
        return
    age = None if config.journal_max_age is None else config.journal_max_age * 86400
    bounds = Bounds(age, config.journal_max_size * 2**30)
    journal = Journal(journal_path(default_cache(), config.journal), bounds=bounds)
    journal.start()
    try:
        yield journal
    finally:
        await asyncio.to_thread(journal.close)
