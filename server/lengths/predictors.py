"""The length predictor's part of the composition root: from flags to what predicts, records and learns.

A seed's predictor works in a process of its own, which starts while the model is loaded. The loops that feed and train
it are started here, and all is ended here. The default works in this process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from engine.sampling.params import SamplingParams
from models.catalog.catalog import Catalog, default_cache
from models.network.embeddings import token_embeddings
from models.network.loader import LoadedModel
from scheduler.clock import Clock, background
from scheduler.journal.bounds import Bounds
from scheduler.journal.file import JournalError, RequestEntry, read
from scheduler.journal.writer import Journal
from scheduler.learner import Submit, inline
from scheduler.length.cache import CachedPredictor, LengthCache
from scheduler.length.features import LengthQuery, TokenFeatures
from scheduler.length.history import LengthHistory
from scheduler.length.late import LateEstimates
from scheduler.length.learning import Learning, ServedRow, served_rows
from scheduler.length.microbatch import IDLE_SHARE, MicroBatcher
from scheduler.length.online import MOST, Fit, OnlineForest, fit
from scheduler.length.prediction import LengthPredictor, Prediction
from scheduler.request import Request
from server.cli.config import FrontConfig, ServeConfig
from server.composition.cache_paths import journal_path, model_key
from server.lengths.kinds import IN_MODEL, IN_PROCESS, KINDS, PredictorKind, cache_size, choose_predictor
from server.lengths.lengths import Lengths, PredictorParts
from server.lengths.process import PredictorProcess, Work
from server.lengths.records import EndedAnswer, OnAnswer, Origin, Records
from server.lengths.worker import NICENESS, Setup
from server.process.worker_process import ProcessFailed

log = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True)
class Predictor:
    """A predictor whose process has been started and may not be ready yet."""

    kind: PredictorKind
    process: PredictorProcess
    started: asyncio.Task[None]


@asynccontextmanager
async def open_predictor(
    config: ServeConfig, work: Work | None = None, niceness: int = NICENESS
) -> AsyncIterator[Predictor | None]:
    """Start the process that predicts, and do not wait for it; None where none is wanted.

    `work` is what it does in place of its own, for tests; `niceness` is that of the one that grows forests. Raises
    CatalogError and UserError.
    """
    kind = KINDS.get(choose_predictor(config))
    if kind is None:
        yield None
        return
    folder = await asyncio.to_thread(Catalog().resolve, config.embedder)
    path = kind.path(default_cache(), config.model)
    setup = Setup(config.embedder, folder, config.embedder_max_tokens, path, niceness=niceness, device=config.device)
    process = PredictorProcess(setup, work or kind.work)
    started = asyncio.create_task(process.start(embeds=cache_size(config, kind) > 0), name="length predictor")
    try:
        yield Predictor(kind, process, started)
    finally:
        await process.aclose()
        with suppress(ProcessFailed, asyncio.CancelledError):
            await started


def token_features(config: ServeConfig, model: LoadedModel) -> TokenFeatures | None:
    """The features of requests by the model's own embeddings; None where nothing is predicted from these."""
    return TokenFeatures.of(token_embeddings(model)) if choose_predictor(config) in IN_MODEL else None


@asynccontextmanager
async def open_lengths(
    config: ServeConfig,
    predictor: Predictor | None,
    clock: Clock,
    context: PredictorContext,
) -> AsyncIterator[Lengths]:
    """Lengths that are predicted, recorded and learned from, once the predictor is ready or has failed to be."""
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(_open_journal(config))
        origin = Origin(model_key(config.model), config.strategy, config.journal_prompts, config.journal_sync)
        if predictor is not None:
            await _until_ready(predictor)
            parts = await _process_parts(config, predictor, clock, stack)
            yield await _connect(config, parts, journal, origin, stack, context)
        elif context.token_features is not None:
            parts = await _own_parts(config, context.token_features, clock, journal, origin, context)
            yield await _connect(config, parts, journal, origin, stack, context)
        else:
            records = Records(origin, journal, lambda request, ended: None)
            yield Lengths(IN_PROCESS[choose_predictor(config)], records)


@asynccontextmanager
async def open_recorded_lengths(
    config: FrontConfig, model: str, features: TokenFeatures, clock: Clock, context: PredictorContext
) -> AsyncIterator[Lengths]:
    """Lengths of the answers of a model elsewhere, predicted from features of its prompts, and recorded by its name."""
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(_open_journal(config))
        origin = Origin(model, config.strategy, config.journal_prompts, config.journal_sync)
        parts = await _own_parts(config, features, clock, journal, origin, context)
        yield await _connect(config, parts, journal, origin, stack, context)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts that differ between kinds of predictors."""

    predictor: LengthPredictor
    learning: Learning | OnlineForest | None
    cached: CachedPredictor | None = None


async def _own_parts(
    config: FrontConfig,
    features: TokenFeatures,
    clock: Clock,
    journal: Journal | None,
    origin: Origin,
    context: PredictorContext,
) -> _Parts:
    """The forest over the model's own embeddings, trained on the answers in the journal."""
    known = [] if journal is None else await asyncio.to_thread(_served_before, journal.path, origin.model)
    forest = OnlineForest(features, context.submit, clock, known, context.fit)
    await forest.wait_for_first()
    if not config.learning_interval:
        return _Parts(forest, None)
    return _Parts(forest, forest)


def _served_before(path: Path, model: str) -> list[ServedRow]:
    """The model's newest answers in the journal. One that cannot be read is its writer's to set aside."""
    with suppress(JournalError):
        return served_rows(read(path, RequestEntry, last=MOST, model=model))
    return []


def _learner(history: LengthHistory, parts: _Parts) -> OnAnswer:
    """All that is learned from an answer when it ends."""

    def on_answer(request: Request, ended: EndedAnswer) -> None:
        history.add(ended.query.scope, ended.query.instruction, ended.length, cut=not ended.whole)
        if parts.cached is not None and ended.whole:
            parts.cached.ended(ended.query, ended.length)
        row = ended.row
        if parts.learning is not None and row is not None:
            parts.learning.add(row)

    return on_answer


async def _process_parts(config: ServeConfig, predictor: Predictor, clock: Clock, stack: AsyncExitStack) -> _Parts:
    """The predictor in a process of its own; the loop that trains it is started."""
    process, size = predictor.process, cache_size(config, predictor.kind)
    cached = CachedPredictor(process, process.embed, LengthCache(size)) if size else None
    learning = await _open_learning(config, predictor, clock)
    if learning is not None:
        await stack.enter_async_context(background(learning.run(), "length learning"))
    return _Parts(cached or process, learning, cached)


async def _connect(
    config: FrontConfig,
    parts: _Parts,
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


async def _until_ready(predictor: Predictor) -> None:
    """A predictor that does not start is tried again when it is asked; requests go on with guesses meanwhile."""
    try:
        await asyncio.shield(predictor.started)
    except ProcessFailed as error:
        log.warning("no lengths can be predicted, requests go on with guesses: %s", error)


async def _open_learning(config: ServeConfig, predictor: Predictor, clock: Clock) -> Learning | None:
    if not predictor.kind.learns or not config.learning_interval:
        return None
    try:
        training = await predictor.process.training()
    except ProcessFailed as error:  # what would be learned from a few rows must not replace what is in the file
        log.warning("the forest does not learn from what is served: %s", error)
        return None
    if training is None:
        log.info("there is no forest yet: lengths are guessed from earlier answers until one has grown")
    return Learning(predictor.process.train, clock, training, config.learning_interval)


@asynccontextmanager
async def _open_journal(config: FrontConfig) -> AsyncIterator[Journal | None]:
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
