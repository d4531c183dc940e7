"""The length predictor's part of the composition root: from flags to what predicts, records and learns.

A seed's predictor works in a process of its own, which starts while the model is loaded. The loops that feed and train
it are started here, and all is ended here. The default works in this process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from models.catalog.catalog import Catalog, CatalogError, default_cache
from models.errors import UserError
from models.proxy.network import read_manifest
from scheduler.clock import Clock, background
from scheduler.length.cache import CAPACITY, CachedPredictor, LengthCache
from scheduler.length.learning import Learning
from scheduler.strategy import STRATEGIES, Length
from server.cli.config import ServeConfig
from server.composition.cache_paths import forest_path, model_key, proxy_path
from server.lengths.lengths import Lengths, PredictorContext, connect, open_journal, open_recorded_lengths
from server.lengths.process import NICENESS, PredictorProcess, Setup, Work, predict_by_forest, predict_by_proxy
from server.process.worker_process import ProcessFailed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PredictorKind:
    """A kind of predictor that works in a process."""

    path: Callable[[Path, str], Path]
    """(cache folder, served model) -> the file or folder of what was trained."""
    work: Work
    """The work of the process."""
    learns: bool
    """Whether it is trained while it serves."""
    cache_size: int
    """Prompts in the length cache by default. A look-up embeds texts, which is what the forest does anyway."""


KINDS: Mapping[Length, PredictorKind] = MappingProxyType(
    {
        Length.FOREST: PredictorKind(forest_path, predict_by_forest, learns=True, cache_size=0),
        Length.PROXY: PredictorKind(proxy_path, predict_by_proxy, learns=False, cache_size=CAPACITY),
    }
)

IN_MODEL = frozenset({Length.OWN})
"""Predictions from what the served model makes of a prompt."""


def choose_predictor(config: ServeConfig) -> Length:
    """The kind of prediction that the settings ask for. Raises UserError where it cannot work with them."""
    length = Length(config.length_predictor or STRATEGIES[config.strategy].length)
    if length is Length.ORACLE and not config.allow_replay:
        raise UserError("an oracle needs requests that say how long their answers become: add --allow-replay")
    if config.length_cache_size and length not in KINDS:
        raise UserError(f"--length-cache-size is for --length-predictor {' and '.join(KINDS)}, not {length}")
    return length


def fetch_predictor(config: ServeConfig) -> None:
    """Bring what predicts lengths into the cache, if it is not there. Raises CatalogError and UserError."""
    length = choose_predictor(config)
    if length not in KINDS:
        return
    try:
        Catalog().resolve(config.embedder)
        if length is Length.PROXY:
            read_manifest(proxy_path(default_cache(), config.model))
    except CatalogError as error:
        raise CatalogError(f"{error}; or serve without predicted lengths: --length-predictor none") from error


def cache_size(config: ServeConfig, kind: PredictorKind) -> int:
    """Prompts that the length cache holds; 0 where there is none."""
    return kind.cache_size if config.length_cache_size is None else config.length_cache_size


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
        await asyncio.to_thread(process.close)
        with suppress(ProcessFailed, asyncio.CancelledError):
            await started


@asynccontextmanager
async def open_lengths(
    config: ServeConfig,
    predictor: Predictor | None,
    clock: Clock,
    context: PredictorContext,
) -> AsyncIterator[Lengths]:
    """Lengths that are predicted, recorded and learned from, once the predictor is ready or has failed to be."""
    model = model_key(config.model)
    async with AsyncExitStack() as stack:
        if predictor is None and context.token_features is not None:
            own = open_recorded_lengths(config, model, context.token_features, clock, context)
            yield await stack.enter_async_context(own)
            return
        journal = await stack.enter_async_context(open_journal(config))
        if predictor is None:
            yield Lengths(config, model, journal, knows=choose_predictor(config) is Length.ORACLE)
            return
        ready = await _until_ready(predictor)
        process, size = predictor.process, cache_size(config, predictor.kind)
        cached = CachedPredictor(process, process.embed, LengthCache(size)) if size else None
        learning = await _open_learning(config, process, clock) if ready and predictor.kind.learns else None
        if learning is not None:
            await stack.enter_async_context(background(learning.run(), "length learning"))
        connected = connect(config, model, journal, context, process, learning, cached)
        yield await stack.enter_async_context(connected)


async def _until_ready(predictor: Predictor) -> bool:
    """Whether it has started; else it is tried again when it is asked, and requests go on with guesses meanwhile."""
    try:
        await asyncio.shield(predictor.started)
    except ProcessFailed as error:
        log.warning("no lengths can be predicted, requests go on with guesses: %s", error)
        return False
    return True


async def _open_learning(config: ServeConfig, process: PredictorProcess, clock: Clock) -> Learning | None:
    training = await process.training()
    if not config.learning_interval:
        return None
    if training is None:
        log.info("there is no forest yet: lengths are guessed from earlier answers until one has grown")
    return Learning(process.train, clock, training, config.learning_interval)
