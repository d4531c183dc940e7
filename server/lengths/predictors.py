"""The predictor's part of the composition root."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from models.catalog.catalog import Catalog, CatalogError, default_cache
from models.errors import UserError
from models.proxy.network import read_manifest
from scheduler.clock import MonotonicClock, background
from scheduler.length.cache import CAPACITY, CachedPredictor, LengthCache
from scheduler.length.forest import Manifest
from scheduler.length.learning import Learning
from scheduler.strategy import STRATEGIES, Length
from server.cache_paths import forest_path, model_key, proxy_path
from server.config import ServeConfig
from server.lengths.lengths import Lengths, PredictorContext, connect, open_journal, open_recorded_lengths
from server.lengths.process import NICENESS, Make, PredictorProcess, Setup, make_forest_worker, make_proxy_worker
from server.worker_process import ProcessFailed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PredictorKind:
    path: Callable[[Path, str], Path]  # from cache folder and served model
    make: Make  # in the process
    learns: bool  # while serving
    cache_size: int  # prompts; lookups need embeddings, which the forest has anyway


KINDS: Mapping[Length, PredictorKind] = {
    Length.FOREST: PredictorKind(forest_path, make_forest_worker, learns=True, cache_size=0),
    Length.PROXY: PredictorKind(proxy_path, make_proxy_worker, learns=False, cache_size=CAPACITY),
}


def choose_predictor(config: ServeConfig) -> Length:
    """Raises UserError."""
    length = Length(config.length_predictor or STRATEGIES[config.strategy].length)
    if length is Length.ORACLE and not config.allow_replay:
        raise UserError("an oracle needs requests that say how long their answers become: add --allow-replay")
    if config.length_cache_size and length not in KINDS:
        raise UserError(f"--length-cache-size is for --length-predictor {' and '.join(KINDS)}, not {length}")
    return length


def fetch_predictor(config: ServeConfig) -> None:
    """Raises CatalogError and UserError."""
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
    """Prompts; 0 for none."""
    return kind.cache_size if config.length_cache_size is None else config.length_cache_size


@asynccontextmanager
async def open_predictor(
    config: ServeConfig, make: Make | None = None, niceness: int = NICENESS
) -> AsyncIterator[PredictorProcess | None]:
    """Starts without waiting; None where not wanted. Raises CatalogError and UserError."""
    kind = KINDS.get(choose_predictor(config))
    if kind is None:
        yield None
        return
    folder = await asyncio.to_thread(Catalog().resolve, config.embedder)
    about = Manifest(config.embedder, config.embedder_max_tokens)
    setup = Setup(folder, kind.path(default_cache(), config.model), about, niceness, config.device)
    process = PredictorProcess(setup, make or kind.make)
    started = process.begin(embeds=cache_size(config, kind) > 0)
    try:
        yield process
    finally:
        await asyncio.to_thread(process.close)
        with suppress(ProcessFailed, asyncio.CancelledError):
            await started


async def open_lengths(
    stack: AsyncExitStack, config: ServeConfig, process: PredictorProcess | None, context: PredictorContext
) -> Lengths:
    """Waits until the predictor is ready or failed; runs until the stack is left."""
    model, length = model_key(config.model), choose_predictor(config)
    if process is None and context.token_features is not None:
        return await open_recorded_lengths(stack, config, model, context.token_features, context)
    lengths = Lengths(config, model, open_journal(stack, config), knows=length is Length.ORACLE)
    if process is None:
        return lengths
    if await process.ready() and KINDS[length].learns:
        training = await process.training()
        if training is None and config.learning_interval:
            log.info("there is no forest yet: lengths are guessed from earlier answers until one has grown")
        if config.learning_interval:
            lengths.learning = learning = Learning(process.train, MonotonicClock(), training, config.learning_interval)
            await stack.enter_async_context(background(learning.run(), "length learning"))
    if size := cache_size(config, KINDS[length]):
        lengths.cached = CachedPredictor(process, process.embed, LengthCache(size))
    return await connect(stack, lengths, lengths.cached or process, context)
