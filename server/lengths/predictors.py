"""The length predictor's part of the composition root: from flags to what predicts, records and learns.

A seed's predictor works in a process of its own, which starts while the model is loaded. The loops that feed and train
it are started here, and all is ended here. The default works in this process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

from models.catalog.catalog import Catalog, default_cache
from models.network.embeddings import token_embeddings
from models.network.loader import LoadedModel
from scheduler.clock import Clock, background
from scheduler.length.cache import CachedPredictor, LengthCache
from scheduler.length.features import TokenFeatures
from scheduler.length.learning import Learning
from server.cli.config import ServeConfig
from server.composition.cache_paths import model_key
from server.lengths.in_process import Parts, PredictorContext, connect, forest_parts, open_journal
from server.lengths.kinds import IN_MODEL, IN_PROCESS, KINDS, PredictorKind, cache_size, choose_predictor
from server.lengths.lengths import Lengths, Origin, Records
from server.lengths.process import PredictorProcess, Work
from server.lengths.worker import NICENESS, Setup
from server.process.worker_process import ProcessFailed

log = logging.getLogger(__name__)


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
        journal = await stack.enter_async_context(open_journal(config))
        origin = Origin(model_key(config.model), config.strategy, config.journal_prompts, config.journal_sync)
        if predictor is not None:
            await _until_ready(predictor)
            parts = await _process_parts(config, predictor, clock, stack)
            yield await connect(config, parts, journal, origin, stack, context)
        elif context.token_features is not None:
            parts = await forest_parts(config, context.token_features, clock, journal, origin, context)
            yield await connect(config, parts, journal, origin, stack, context)
        else:
            records = Records(origin, journal, lambda request, ended: None)
            yield Lengths(IN_PROCESS[choose_predictor(config)], records)


async def _process_parts(config: ServeConfig, predictor: Predictor, clock: Clock, stack: AsyncExitStack) -> Parts:
    """The predictor in a process of its own; the loop that trains it is started."""
    process, size = predictor.process, cache_size(config, predictor.kind)
    cached = CachedPredictor(process, process.embed, LengthCache(size)) if size else None
    learning = await _open_learning(config, predictor, clock)
    if learning is not None:
        await stack.enter_async_context(background(learning.run(), "length learning"))
    return Parts(cached or process, learning, cached)


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
