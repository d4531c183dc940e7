"""The default length predictor, a forest in this process, and what records answers and learns from them.

No model is loaded here, so a process that computes none can predict without a tensor library.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from engine.sampling.params import SamplingParams
from models.catalog.catalog import default_cache
from scheduler.clock import Clock, background
from scheduler.journal.file import JournalError, RequestEntry, read
from scheduler.journal.writer import Bounds, Journal
from scheduler.learner import Submit, inline
from scheduler.length.cache import CachedPredictor
from scheduler.length.features import LengthQuery, TokenFeatures
from scheduler.length.learning import Learning, LengthHistory, ServedRow, served_rows
from scheduler.length.microbatch import IDLE_SHARE, LateEstimates, MicroBatcher
from scheduler.length.online import MOST, Fit, OnlineForest, fit
from scheduler.length.prediction import LengthPredictor, Prediction
from scheduler.request import Request
from server.cli.config import FrontConfig
from server.composition.cache_paths import journal_path
from server.lengths.lengths import EndedAnswer, Lengths, OnAnswer, Origin, PredictorParts, Records


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
    """Lengths of the answers of a model elsewhere, predicted from features of its prompts, and recorded by its name."""
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(open_journal(config))
        origin = Origin(model, config.strategy, config.journal_prompts, config.journal_sync)
        parts = await forest_parts(config, features, clock, journal, origin, context)
        yield await connect(config, parts, journal, origin, stack, context)


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that differ between kinds of predictors."""

    predictor: LengthPredictor
    learning: Learning | OnlineForest | None
    cached: CachedPredictor | None = None


async def forest_parts(
    config: FrontConfig,
    features: TokenFeatures,
    clock: Clock,
    journal: Journal | None,
    origin: Origin,
    context: PredictorContext,
) -> Parts:
    """The forest over the model's own embeddings, trained on the answers in the journal."""
    known = [] if journal is None else await asyncio.to_thread(_served_before, journal.path, origin.model)
    forest = OnlineForest(features, context.submit, clock, known, context.fit)
    await forest.wait_for_first()
    if not config.learning_interval:
        return Parts(forest, None)
    return Parts(forest, forest)


def _served_before(path: Path, model: str) -> list[ServedRow]:
    """The model's newest answers in the journal. One that cannot be read is its writer's to set aside."""
    with suppress(JournalError):
        return served_rows(read(path, RequestEntry, last=MOST, model=model))
    return []


def _learner(history: LengthHistory, parts: Parts) -> OnAnswer:
    """All that is learned from an answer when it ends."""

    def on_answer(request: Request, ended: EndedAnswer) -> None:
        history.add(ended.query.scope, ended.query.instruction, ended.length, cut=not ended.whole)
        if parts.cached is not None and ended.whole:
            parts.cached.ended(ended.query, ended.length)
        row = ended.row
        if parts.learning is not None and row is not None:
            parts.learning.add(row)

    return on_answer


async def connect(
    config: FrontConfig,
    parts: Parts,
    journal: Journal | None,
    origin: Origin,
    stack: AsyncExitStack,
    context: PredictorContext,
) -> Lengths:
    """Put a predictor's parts together, and start the loop that feeds it."""
    history = LengthHistory()
    front = MicroBatcher(
        parts.predictor,
        history,
        time_limit=config.prediction_timeout,
        idle_share=IDLE_SHARE if context.shared_cores else 1.0,
        observe=context.held,
    )
    await stack.enter_async_context(background(front.run(), "length front"))

    async def predict(query: LengthQuery, sampling: SamplingParams) -> Prediction:
        return await front.predict(query)

    records = Records(origin, journal, _learner(history, parts))
    cache = None if parts.cached is None else parts.cached.cache
    late = LateEstimates(context.late)
    return Lengths(predict, records, PredictorParts(front, parts.learning, cache, late))


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
