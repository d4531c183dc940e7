"""Predictor processes, for forest or SSJF's proxy, and the low-priority process that grows forests."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from scheduler.length.features import FloatMatrix, LengthQuery, assemble
from scheduler.length.forest import Examples, Forest, ForestError, Manifest, grow, load, read, save
from scheduler.length.learning import ServedRow, is_worse
from scheduler.length.prediction import Estimate, LengthDistribution, Source
from server.worker_process import TIMEOUT, ProcessFailed, WorkerProcess

if TYPE_CHECKING:
    from models.embedder import Embedder
    from models.proxy.network import Proxy

log = logging.getLogger(__name__)

NICENESS = 19  # idle scheduling might starve it


@dataclass(frozen=True, slots=True)
class Setup:
    folder: Path  # embedder
    forest: Path  # file; if absent, only features are made
    about: Manifest  # how features and forests are made
    niceness: int = NICENESS  # of the trainer, relative
    device: str = "cpu"  # executors' --device


class Encoder(Protocol):
    def encode(self, texts: Sequence[str]) -> FloatMatrix: ...


class ForestWorker:
    def __init__(self, embedder: Encoder, setup: Setup) -> None:
        self._embedder = embedder
        self._forest = load_forest(setup.forest, setup.about)

    def embed(self, texts: Sequence[str]) -> FloatMatrix:
        return self._embedder.encode(texts)

    def take(self, forest: Forest) -> None:
        self._forest = forest

    def estimate(self, queries: Sequence[LengthQuery]) -> tuple[Estimate, ...]:
        features = embed(self._embedder, queries)
        distributions = self._forest.distributions(features) if self._forest else [None] * len(queries)
        rows = zip(features.tolist(), distributions, strict=True)
        return tuple(Estimate(tuple(row), distribution) for row, distribution in rows)


class ProxyWorker:
    def __init__(self, proxy: Proxy, load_encoder: Callable[[], Encoder]) -> None:
        """`load_encoder` serves the length cache."""
        self._proxy, self._encoder = proxy, cache(load_encoder)

    def embed(self, texts: Sequence[str]) -> FloatMatrix:
        return self._encoder().encode(texts)

    def estimate(self, queries: Sequence[LengthQuery]) -> tuple[Estimate, ...]:
        lengths = self._proxy.predict([query.conversation for query in queries]).tolist()
        return tuple(Estimate((), LengthDistribution.certain(length), Source.PROXY) for length in lengths)


def embed(embedder: Encoder, queries: Sequence[LengthQuery]) -> FloatMatrix:
    """In one call -> (n, FEATURES)."""
    texts = [query.instruction for query in queries] + [query.user_input for query in queries]
    embeddings = embedder.encode(texts)
    lengths = np.array([query.user_input_length for query in queries], dtype=np.float32)
    return assemble(embeddings[: len(queries)], embeddings[len(queries) :], lengths)


def load_forest(path: Path, about: Manifest) -> Forest | None:
    """None if absent or for another embedder."""
    with suppress(ForestError):
        read_examples(path, about)
        return load(path)[0]
    return None


def read_examples(path: Path, about: Manifest) -> Examples:
    """Of this embedder. Raises ForestError."""
    examples, its = read(path)
    if (its.embedder, its.max_tokens) != (about.embedder, about.max_tokens):
        made, wanted = (f"{one.embedder} with {one.max_tokens}" for one in (its, about))
        fault = f"{path} was made for the embedder {made} tokens, not for {wanted}"
        raise ForestError(f"{fault}: train it again with `lengthwise train`")
    return examples


def load_embedder(folder: Path, max_tokens: int) -> Embedder:
    """Quietly. Raises CatalogError."""
    import transformers

    from models.embedder import Embedder

    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return Embedder.load(folder, max_tokens=max_tokens)


WARM_UP_TEXT = "Say which of these words is the longest one, and why that is so. " * 4

WARM_UP = (
    (LengthQuery("", WARM_UP_TEXT, 64, 1),),
    tuple(LengthQuery(WARM_UP_TEXT, WARM_UP_TEXT[: 32 * more], 8 * more, 1) for more in range(1, 9)),
)  # one alone, and a mixed batch

T = TypeVar("T")


def make_forest_worker(setup: Setup) -> ForestWorker:
    from server.predictor_cores import run_beside_executors

    run_beside_executors(setup.device)
    return ForestWorker(load_embedder(setup.folder, setup.about.max_tokens), setup)


def make_proxy_worker(setup: Setup) -> ProxyWorker:
    from models.proxy.network import load  # torch in this process only
    from server.predictor_cores import run_beside_executors

    run_beside_executors(setup.device)
    return ProxyWorker(load(setup.forest).pack(), partial(load_embedder, setup.folder, setup.about.max_tokens))


Make = Callable[[Setup], object]


class PredictorProcess:
    """A trainable LengthPredictor. Event loop only; never blocks."""

    def __init__(self, setup: Setup, make: Make = make_forest_worker, timeout: float = TIMEOUT) -> None:
        """Seconds."""
        self._setup = setup
        self._process = WorkerProcess("length predictor", partial(make, setup), timeout)
        self._trainer = NicedProcess(setup.niceness)

    def begin(self, *, embeds: bool) -> asyncio.Task[None]:
        """Without waiting; the caller joins the task."""
        self._started = asyncio.create_task(self.start(embeds=embeds), name="length predictor")
        return self._started

    async def ready(self) -> bool:
        """Whether it started; otherwise later calls retry, and requests use guesses."""
        try:
            await asyncio.shield(self._started)
        except ProcessFailed as error:
            log.warning("no lengths can be predicted, requests go on with guesses: %s", error)
            return False
        return True

    async def start(self, *, embeds: bool = False) -> None:
        """After loading and warm-up, with texts where the cache `embeds`. Raises ProcessFailed."""
        for queries in WARM_UP:
            await self.estimate(queries)
        if embeds:
            await self.embed((WARM_UP_TEXT,))

    async def estimate(self, queries: Sequence[LengthQuery]) -> Sequence[Estimate]:
        """Raises ProcessFailed."""
        estimates: Sequence[Estimate] = await self._process.ask("estimate", tuple(queries))
        return estimates

    async def embed(self, texts: Sequence[str]) -> FloatMatrix:
        """Texts -> (n, dim), for the length cache. Raises ProcessFailed."""
        embeddings: FloatMatrix = await self._process.ask("embed", tuple(texts))
        return embeddings

    async def training(self) -> Examples | None:
        """Of the present forest; unusable ones are logged."""
        if self._setup.forest.exists():
            try:
                return await asyncio.to_thread(read_examples, self._setup.forest, self._setup.about)
            except ForestError as error:
                log.warning("%s; until then lengths are predicted without it", error)
        return None

    async def train(self, training: Examples, judges: Sequence[ServedRow] = ()) -> None:
        """In a further process; keeps the present forest if better. Raises ProcessFailed."""
        growing = self._trainer.submit(self._trainer.run, _train, self._setup, training, judges)
        forest = await asyncio.wrap_future(growing)
        if forest is not None:
            await self._process.ask("take", forest)
        else:
            log.info("a new forest is worse on %d answers held out: the present predictions stay", len(judges))

    def close(self) -> None:
        """Abandons training, waits briefly for a batch."""
        self._trainer.close()
        self._process.close()


class NicedProcess:
    """Work in low-priority processes, one at a time: growing forests in-process would hold the interpreter lock."""

    def __init__(self, niceness: int = NICENESS) -> None:
        self._process = WorkerProcess("length training", partial(NicedWorker, niceness), start_timeout=None)
        self.submit = self._process.thread.submit  # in its thread, which may `run`
        self.submit(int)  # start its thread now: later the system may have none

    def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Raises ProcessFailed, and CancelledError at shutdown."""
        try:
            result: T = self._process.call("run", work, arguments)
        except ProcessFailed as failed:
            if self._process.told_to_end:
                raise CancelledError(str(failed)) from failed
            raise ProcessFailed(f"no forest could be grown: {failed}") from failed
        finally:
            self._process.hang_up()
        return result

    def close(self) -> None:
        self._process.close()


class NicedWorker:
    def __init__(self, niceness: int) -> None:
        os.nice(niceness)

    def run(self, work: Callable[..., T], arguments: tuple[object, ...]) -> T:
        return work(*arguments)


def _train(setup: Setup, training: Examples, judges: Sequence[ServedRow] = ()) -> Forest | None:
    """None, and nothing saved, where worse."""
    forest = grow(training, setup.about.growth)
    if is_worse(forest, load_forest(setup.forest, setup.about), judges):
        return None
    save(setup.forest, training, setup.about)
    return forest
