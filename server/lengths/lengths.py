"""Predicts lengths, records and learns from finished requests; without a tensor library."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from engine.messages import REPETITION, FinishReason
from engine.sampling.params import SamplingParams
from models.catalog.catalog import default_cache
from scheduler.clock import MonotonicClock, background
from scheduler.journal.file import ANSWERED, JournalError, RequestEntry, read
from scheduler.journal.writer import Journal, JournalBounds
from scheduler.learner import Lesson, Submit, inline
from scheduler.length.cache import CachedPredictor
from scheduler.length.features import LengthQuery, TokenFeatures
from scheduler.length.learning import Learning, LengthHistory, ServedRow, served_rows
from scheduler.length.microbatch import IDLE_SHARE, MicroBatcher
from scheduler.length.online import ROWS, Fit, OnlineForest, fit
from scheduler.length.oracle import oracle
from scheduler.length.prediction import Answer, LengthDistribution, LengthPredictor, Prediction, prediction_of
from scheduler.request import Request, State
from server.cache_paths import journal_path
from server.config import FrontConfig

# takes a better prediction of a request's length, as the dispatcher does
Revise = Callable[[Request, float | None, LengthDistribution | None], None]

MOST_AGAIN = 512  # predicted again at once: 5 ms

CANCELLED = "cancelled"  # outcome beside finish reasons and REPETITION


@dataclass(eq=False, slots=True)
class Lengths:
    """For handlers and dispatcher. Event loop only; recording neither blocks nor raises."""

    config: FrontConfig
    model: str  # as recorded
    journal: Journal | None = None
    front: MicroBatcher | None = None
    learning: Learning | OnlineForest | None = None
    cached: CachedPredictor | None = None
    history: LengthHistory = field(default_factory=LengthHistory)
    observe_late: Callable[[float], None] = lambda seconds: None  # seconds without a late but useful prediction
    knows: bool = False  # oracle
    _open: dict[Request, tuple[LengthQuery, Prediction | None, Revise]] = field(default_factory=dict)
    _expecting: Counter[Answer] = field(default_factory=Counter)  # requests waiting for each

    @property
    def lesson(self) -> Lesson | None:
        return None if self.learning is None else self.learning.learner.latest

    async def predict(self, query: LengthQuery, sampling: SamplingParams) -> Prediction | None:
        """None where not wanted. Raises NoReplay."""
        if self.front is not None:
            return await self.front.predict(query)
        return oracle(sampling) if self.knows else None

    def note(self, request: Request, query: LengthQuery, prediction: Prediction | None, revise: Revise) -> None:
        self._open[request] = query, prediction, revise
        if prediction is not None and prediction.late is not None and not request.state.is_final:
            self._expect(request, prediction.late, asyncio.get_running_loop().time())

    def _expect(self, request: Request, late: Answer, since: float | None = None) -> None:
        self._expecting[late] += 1
        late.add_done_callback(partial(self._take_over, request, since))

    def _take_over(self, request: Request, since: float | None, late: Answer) -> None:
        """A late estimate; even one without a length is good to learn from."""
        self._expecting.pop(late, None)
        if request not in self._open or late.cancelled() or (estimate := late.result()) is None:
            return
        query, guess, revise = self._open[request]
        assert guess is not None
        prediction = prediction_of(query, estimate)
        self._open[request] = query, prediction or replace(guess, features=estimate.features), revise
        if prediction is not None:
            revise(request, prediction.length, prediction.distribution)
            if since is not None:
                self.observe_late(asyncio.get_running_loop().time() - since)

    def _predict_again(self, scope: str) -> None:
        """What waits, in turns of MOST_AGAIN."""
        if self.front is None:
            return
        own = (one for one, (query, *_) in self._open.items() if query.scope == scope)
        for request in [one for one in own if one.state is State.WAITING][:MOST_AGAIN]:
            query, prediction, revise = self._open.pop(request)
            if prediction is not None and prediction.late not in self._expecting:
                late = self.front.ask_again(query)
                prediction = replace(prediction, late=late)
                self._expect(request, late)
            self._open[request] = query, prediction, revise  # behind all others

    def find_running(self, scope: str) -> list[ServedRow]:
        """As if cut now."""
        return [
            ServedRow(prediction.features, prediction.length, request.generated // query.answers, True, scope)
            for request, (query, prediction, _) in self._open.items()
            if query.scope == scope and request.generated and prediction is not None and prediction.features
        ]

    def on_first_token(self, request: Request, now: float) -> None:
        return

    def on_end(self, request: Request, reason: FinishReason | None, now: float) -> None:
        noted = self._open.pop(request, None)
        if noted is None:  # ended while being submitted
            return
        query, prediction, _ = noted
        late = None if prediction is None else prediction.late
        if late is not None and late in self._expecting:
            self._expecting[late] -= 1
            if not self._expecting[late]:
                late.cancel()
        outcome = _outcome(request, reason)
        if outcome in ANSWERED and request.generated:
            limited = outcome == FinishReason.LENGTH and request.generated >= request.sampling.max_tokens
            self._learn(query, prediction, request.generated // query.answers, cut=limited or outcome == REPETITION)
        if self.journal is not None:
            recorded = self.journal.put(self._entry(request, query, prediction, outcome))
            request.recorded = recorded if self.config.journal_sync else None

    def _learn(self, query: LengthQuery, prediction: Prediction | None, length: int, *, cut: bool) -> None:
        """`cut` by `max_tokens` or repetition."""
        self.history.add(query.scope, query.instruction, length, cut=cut)
        if self.cached is not None and not cut:
            self.cached.ended(query, length)
        if self.learning is None or prediction is None or not (features := prediction.features):
            return
        if self.learning.add(ServedRow(features, prediction.length, length, cut, query.scope)):
            self._predict_again(query.scope)

    def _entry(self, request: Request, query: LengthQuery, prediction: Prediction | None, outcome: str) -> RequestEntry:
        times, since = request.times, request.times.came
        told = request.expected if request.expected is not None and request.expected.known else None
        return RequestEntry(
            finished_at=time.time(),
            model=self.model,
            strategy=self.config.strategy,
            outcome=outcome,
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
            features=() if prediction is None else prediction.features,
            instruction=query.instruction if self.config.journal_prompts else None,
            user_input=query.user_input if self.config.journal_prompts else None,
            scope=query.scope,
            program="" if request.program is None else request.program.name,
            promised=None if told is None else told.by - since,
            asked=None if request.promised is None else request.promised - since,
            coverage=None if told is None else request.coverage,
        )


def _outcome(request: Request, reason: FinishReason | None) -> str:
    """CANCELLED, REPETITION, or a finish reason; a client's stop string of that name is not."""
    if reason is None:
        return CANCELLED
    ended_here = request.stop_reason == REPETITION and REPETITION not in request.sampling.stop
    return REPETITION if ended_here else str(reason)


@dataclass(frozen=True, slots=True)
class PredictorContext:
    held: Callable[[float], None]  # seconds waited for predictions
    late: Callable[[float], None]  # seconds that requests went without
    shared_cores: bool = True  # model and predictor
    token_features: TokenFeatures | None = None  # of the served model
    submit: Submit = inline  # off the event loop
    fit: Fit = fit  # grows forests


async def open_recorded_lengths(
    stack: AsyncExitStack, config: FrontConfig, model: str, features: TokenFeatures, context: PredictorContext
) -> Lengths:
    """Until the stack is left."""
    journal = open_journal(stack, config)
    known = [] if journal is None else await asyncio.to_thread(_served_before, journal.path, model)
    forest = OnlineForest(features, context.submit, MonotonicClock(), known, context.fit)
    await forest.wait_for_first()
    lengths = Lengths(config, model, journal, learning=forest if config.learning_interval else None)
    if lengths.learning is not None:
        forest.running = lengths.find_running
    return await connect(stack, lengths, forest, context)


def _served_before(path: Path, model: str) -> list[ServedRow]:
    with suppress(JournalError):
        # Arrays take a tenth of tuples' memory.
        rows = (row for entry in read(path, last=ROWS, model=model) for row in served_rows([entry]))
        return [replace(row, features=np.array(row.features, dtype=np.float32)) for row in rows]
    return []


async def connect(
    stack: AsyncExitStack, lengths: Lengths, predictor: LengthPredictor, context: PredictorContext
) -> Lengths:
    """Until the stack is left."""
    lengths.observe_late = context.late
    limit, share = lengths.config.prediction_timeout, IDLE_SHARE if context.shared_cores else 1.0
    lengths.front = MicroBatcher(predictor, lengths.history, time_limit=limit, idle_share=share, observe=context.held)
    await stack.enter_async_context(background(lengths.front.run(), "length front"))
    return lengths


def open_journal(stack: AsyncExitStack, config: FrontConfig) -> Journal | None:
    """Closed with the stack; None without recording."""
    if config.no_journal:
        return None
    age = None if config.journal_max_age is None else config.journal_max_age * 86400
    bounds = JournalBounds(age, config.journal_max_size * 2**30)
    journal = Journal(journal_path(default_cache(), config.journal), bounds=bounds)
    journal.start()
    stack.push_async_callback(asyncio.to_thread, journal.close)
    return journal
