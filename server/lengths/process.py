"""The length predictor in a process of its own, beside the server's: texts to features, and these to distributions of
lengths by a forest; or texts to lengths by SSJF's proxy. And the process of low priority that grows forests.
"""

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
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import numpy as np

from scheduler.length.features import FloatMatrix, LengthQuery, assemble
from scheduler.length.forest import Examples, Forest, ForestError, Manifest, grow, load, read, save
from scheduler.length.learning import ServedRow, is_worse
from scheduler.length.prediction import Estimate, LengthDistribution, Source
from server.process.worker_process import TIMEOUT, ProcessFailed, WorkerProcess

if TYPE_CHECKING:
    from models.embedder import Embedder
    from models.proxy.network import Proxy

log = logging.getLogger(__name__)

NICENESS = 19
"""A forest that grows hardly slows down what serves, and still gets somewhere where all cores are busy; in an idle
class it might not."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of the process."""

    folder: Path
    """The embedder's folder."""
    forest: Path
    """The forest's file. Where it is absent nothing is predicted yet, but features are made for the first forest."""
    about: Manifest
    """The embedder, the tokens of a text that it reads, and how forests grow."""
    niceness: int = NICENESS
    """Niceness of the process that grows forests, above the server's own."""
    device: str = "cpu"
    """The device of the executors, as --device says."""


class Encoder(Protocol):
    """The part of models.embedder.Embedder that is needed here."""

    def encode(self, texts: Sequence[str]) -> FloatMatrix: ...


class ForestWorker:
    """Estimates lengths by an embedder and a forest."""

    def __init__(self, embedder: Encoder, setup: Setup) -> None:
        self._embedder = embedder
        self._forest = load_forest(setup.forest, setup.about)

    def embed(self, texts: Sequence[str]) -> FloatMatrix:
        """Texts -> (n, dim), for the length cache."""
        return self._embedder.encode(texts)

    def take(self, forest: Forest) -> None:
        """Put a forest in the place of the present one."""
        self._forest = forest

    def estimate(self, queries: Sequence[LengthQuery]) -> tuple[Estimate, ...]:
        features = embed(self._embedder, queries)
        distributions = self._forest.distributions(features) if self._forest else [None] * len(queries)
        rows = zip(features.tolist(), distributions, strict=True)
        return tuple(Estimate(tuple(row), distribution) for row, distribution in rows)


class ProxyWorker:
    """Estimates lengths by a proxy."""

    def __init__(self, proxy: Proxy, load_encoder: Callable[[], Encoder]) -> None:
        """`load_encoder` is called where the length cache has texts embedded."""
        self._proxy, self._encoder = proxy, cache(load_encoder)

    def embed(self, texts: Sequence[str]) -> FloatMatrix:
        """Texts -> (n, dim), for the length cache."""
        return self._encoder().encode(texts)

    def estimate(self, queries: Sequence[LengthQuery]) -> tuple[Estimate, ...]:
        lengths = self._proxy.predict([query.conversation for query in queries]).tolist()
        return tuple(Estimate((), LengthDistribution.certain(length), Source.PROXY) for length in lengths)


def embed(embedder: Encoder, queries: Sequence[LengthQuery]) -> FloatMatrix:
    """Instructions and user inputs in one call -> features (n, FEATURES)."""
    texts = [query.instruction for query in queries] + [query.user_input for query in queries]
    embeddings = embedder.encode(texts)
    lengths = np.array([query.user_input_length for query in queries], dtype=np.float32)
    return assemble(embeddings[: len(queries)], embeddings[len(queries) :], lengths)


def load_forest(path: Path, about: Manifest) -> Forest | None:
    """The forest in a file; None where there is none, or none that was grown for this embedder."""
    with suppress(ForestError):
        read_examples(path, about)
        return load(path)[0]
    return None


def read_examples(path: Path, about: Manifest) -> Examples:
    """The examples of the forest in a file, if they were made by this embedder. Raises ForestError."""
    examples, its = read(path)
    if (its.embedder, its.max_tokens) != (about.embedder, about.max_tokens):
        raise ForestError(
            f"{path} was made for the embedder {its.embedder} with {its.max_tokens} tokens, not for "
            f"{about.embedder} with {about.max_tokens}: train it again with `lengthwise train`"
        )
    return examples


def load_embedder(folder: Path, max_tokens: int) -> Embedder:
    """Read it without the bars and warnings that its libraries print. Raises CatalogError."""
    import transformers

    from models.embedder import Embedder

    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return Embedder.load(folder, max_tokens=max_tokens)


WARM_UP_TEXT = "Say which of these words is the longest one, and why that is so. " * 4

WARM_UP = (
    (LengthQuery("", WARM_UP_TEXT, 64, 1),),
    tuple(LengthQuery(WARM_UP_TEXT, WARM_UP_TEXT[: 32 * more], 8 * more, 1) for more in range(1, 9)),
)
"""Queries that are asked before any request: one alone, and a batch of short and long ones."""

T = TypeVar("T")


def make_forest_worker(setup: Setup) -> ForestWorker:
    """What predicts by a forest, in a process of its own."""
    from server.composition.devices import run_beside_executors  # with torch, which the trainer starts without

    run_beside_executors(setup.device)
    return ForestWorker(load_embedder(setup.folder, setup.about.max_tokens), setup)


def make_proxy_worker(setup: Setup) -> ProxyWorker:
    """What predicts by the proxy in the folder `setup.forest`, in a process of its own."""
    from models.proxy.network import load  # with torch, in this process only
    from server.composition.devices import run_beside_executors

    run_beside_executors(setup.device)
    return ProxyWorker(load(setup.forest).pack(), partial(load_embedder, setup.folder, setup.about.max_tokens))


Make: TypeAlias = Callable[[Setup], object]
"""Makes the worker of the process that predicts, there."""


class PredictorProcess:
    """A LengthPredictor that can be trained. Event loop only; never blocks it."""

    def __init__(self, setup: Setup, make: Make = make_forest_worker, timeout: float = TIMEOUT) -> None:
        """`timeout` is in seconds."""
        self._setup = setup
        self._process = WorkerProcess("length predictor", partial(make, setup), timeout)
        self._trainer = NicedProcess(setup.niceness)

    def begin(self, *, embeds: bool) -> asyncio.Task[None]:
        """Start it, and do not wait for it: `ready` does. The task is the caller's to wait for at the end."""
        self._started = asyncio.create_task(self.start(embeds=embeds), name="length predictor")
        return self._started

    async def ready(self) -> bool:
        """Wait until it has begun, and return whether it could. Else it is tried again when it is asked, and requests
        go on with guesses meanwhile."""
        try:
            await asyncio.shield(self._started)
        except ProcessFailed as error:
            log.warning("no lengths can be predicted, requests go on with guesses: %s", error)
            return False
        return True

    async def start(self, *, embeds: bool = False) -> None:
        """Return when it is ready: it has loaded, and answered what takes longer at first than later, texts too where
        the length cache `embeds` them. Raises ProcessFailed with the reason."""
        for queries in WARM_UP:
            await self.estimate(queries)
        if embeds:
            await self.embed((WARM_UP_TEXT,))

    async def estimate(self, queries: Sequence[LengthQuery]) -> Sequence[Estimate]:
        """One estimate for each query. Raises ProcessFailed."""
        estimates: Sequence[Estimate] = await self._process.ask("estimate", tuple(queries))
        return estimates

    async def embed(self, texts: Sequence[str]) -> FloatMatrix:
        """Texts -> (n, dim), for the length cache. Raises ProcessFailed."""
        embeddings: FloatMatrix = await self._process.ask("embed", tuple(texts))
        return embeddings

    async def training(self) -> Examples | None:
        """The examples that the present forest was grown from; None where there is none, or none that can be used,
        which is logged."""
        if self._setup.forest.exists():
            try:
                return await asyncio.to_thread(read_examples, self._setup.forest, self._setup.about)
            except ForestError as error:
                log.warning("%s; until then lengths are predicted without it", error)
        return None

    async def train(self, training: Examples, judges: Sequence[ServedRow] = ()) -> None:
        """Grow a forest in a further process, keep its rows in the file, and put it in place, unless it is worse than
        the present one. Raises ProcessFailed."""
        growing = self._trainer.submit(self._trainer.run, _train, self._setup, training, judges)
        forest = await asyncio.wrap_future(growing)
        if forest is not None:
            await self._process.ask("take", forest)
        else:
            log.info("a new forest is worse on %d answers held out: the present predictions stay", len(judges))

    def close(self) -> None:
        """End the processes: a forest that is growing is given up, a batch that is under way is waited for a moment."""
        self._trainer.close()
        self._process.close()


class NicedProcess:
    """Runs work in processes of low priority, one after another, and a thread that waits for them. It grows forests:
    in the server's own process that would hold the interpreter's lock, and the event loop lags by it."""

    def __init__(self, niceness: int = NICENESS) -> None:
        self._process = WorkerProcess("length training", partial(NicedWorker, niceness), start_timeout=None)
        self.submit = self._process.thread.submit
        """Runs work in the thread, which may call `run`."""
        self.submit(int)  # its thread starts now: while answers are made, the system may have none to give

    def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Run work in a process of its own and wait for its result. Raises ProcessFailed, and CancelledError at the
        end of the server."""
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
        """End the process: what is under way is given up."""
        self._process.close()


class NicedWorker:
    """Does any work, in a process of low priority."""

    def __init__(self, niceness: int) -> None:
        os.nice(niceness)

    def run(self, work: Callable[..., T], arguments: tuple[object, ...]) -> T:
        return work(*arguments)


def _train(setup: Setup, training: Examples, judges: Sequence[ServedRow] = ()) -> Forest | None:
    """Grow a forest, and keep its rows in the file; None, and nothing kept, where it is worse than the present one."""
    forest = grow(training, setup.about.growth)
    if is_worse(forest, load_forest(setup.forest, setup.about), judges):
        return None
    save(setup.forest, training, setup.about)
    return forest
