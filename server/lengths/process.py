"""The length predictor in a process of its own: sentence embedder and forest, beside the server's process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias, TypeVar, cast

from scheduler.length.features import FloatMatrix, LengthQuery
from scheduler.length.forest import Examples, Forest, ForestError, Manifest, grow, save
from scheduler.length.learning import ServedRow, is_worse
from scheduler.length.prediction import Estimate
from server.lengths import worker
from server.process.worker_process import END_TIMEOUT, TIMEOUT, ProcessFailed, WorkerProcess, answer_all, end, spawn

log = logging.getLogger(__name__)

WARM_UP_TEXT = "Say which of these words is the longest one, and why that is so. " * 4

WARM_UP = (
    (LengthQuery("", WARM_UP_TEXT, 64, 1),),
    tuple(LengthQuery(WARM_UP_TEXT, WARM_UP_TEXT[: 32 * more], 8 * more, 1) for more in range(1, 9)),
)
"""Queries that are asked before any request: one alone, and a batch of short and long ones."""

T = TypeVar("T")


Work: TypeAlias = "Callable[[Connection[Any, Any], worker.Setup], None]"


class PredictorProcess:
    """A LengthPredictor that can be trained. Event loop only; never blocks it."""

    def __init__(self, setup: worker.Setup, work: Work | None = None, timeout: float = TIMEOUT) -> None:
        """`work` is what the process does instead of growing and asking a forest: the proxy's, or a test's; `timeout`
        is in seconds."""
        self._setup = setup
        self._process = WorkerProcess("length predictor", work or _predict, setup, timeout)
        self._trainer = NicedProcess(setup.niceness)

    async def start(self, *, embeds: bool = False) -> None:
        """Return when it is ready: it has loaded, and answered what takes longer at first than later, texts too where
        the length cache `embeds` them. Raises ProcessFailed with the reason."""
        for queries in WARM_UP:
            await self._call(queries)
        if embeds:
            await self._call(worker.EmbedTexts((WARM_UP_TEXT,)))

    async def estimate(self, queries: Sequence[LengthQuery]) -> Sequence[Estimate]:
        """One estimate for each query. Raises ProcessFailed."""
        return (await self._call(tuple(queries))).estimates

    async def embed(self, texts: Sequence[str]) -> FloatMatrix:
        """Texts -> (n, dim), for the length cache. Raises ProcessFailed."""
        embeddings = (await self._call(worker.EmbedTexts(tuple(texts)))).embeddings
        assert embeddings is not None, "a reply without an error has what was asked for"
        return embeddings

    async def training(self) -> Examples | None:
        """The examples that the present forest was grown from; None where there is none, or none that can be used.
        Raises ProcessFailed."""
        await self._call(())
        with suppress(ForestError):
            return await asyncio.to_thread(worker.read_examples, self._setup)
        return None

    async def train(self, training: Examples, judges: Sequence[ServedRow] = ()) -> None:
        """Grow a forest in a further process, keep its rows in the file, and put it in place, unless it is worse than
        the present one. Raises ProcessFailed."""
        forest = await asyncio.wrap_future(self._trainer.submit(self._grow, training, judges))
        if forest is not None:
            await self._call(worker.TakeForest(forest))
        else:
            log.info(
                "a new forest is worse on %d answers held out than the present predictions: they stay", len(judges)
            )

    async def aclose(self) -> None:
        """End the processes as `close` does, off the event loop."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """End the processes: a forest that is growing is given up, a batch that is under way is waited for a moment."""
        self._trainer.close()
        self._process.close()

    async def _call(self, message: object) -> worker.Reply:
        reply: worker.Reply = await self._process.ask(message)
        if reply.warning is not None:
            log.warning("%s", reply.warning)
        if reply.error is not None:
            raise ProcessFailed(reply.error)
        return reply

    def _grow(self, training: Examples, judges: Sequence[ServedRow]) -> Forest | None:
        """The new forest, whose rows are in the file; None where it is worse than the present one."""
        return self._trainer.run(_train, self._setup, training, judges)


class NicedProcess:
    """Runs work in processes of low priority, one after another, and a thread that waits for them. It grows forests:
    in the server's own process that would hold the interpreter's lock, and the event loop lags by it."""

    def __init__(self, niceness: int = worker.NICENESS) -> None:
        self._niceness = niceness
        self._thread = ThreadPoolExecutor(1, "length training")
        self._thread.submit(int)  # its thread starts now: while answers are made, the system may have none to give
        self._process: BaseProcess | None = None
        self._closed = False

    def submit(self, work: Callable[..., T], *arguments: object) -> Future[T]:
        """Run work in the thread, which may call `run`."""
        return self._thread.submit(work, *arguments)

    def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Run work in a process of its own and wait for its result. Raises ProcessFailed, and CancelledError at the
        end of the server, whose signal may have come to all its processes."""
        self._process, connection = spawn(_work_niced, self._niceness, work, arguments)
        if self._closed:  # since it was being started
            self._process.kill()
        try:
            with connection:
                result, error = connection.recv()
        except (EOFError, OSError) as gone:
            self._process.join(END_TIMEOUT)
            told = self._closed or self._process.exitcode == -signal.SIGTERM
            raise (CancelledError if told else ProcessFailed)("the process that grew a forest is gone") from gone
        finally:
            end(self._process)
        if error is not None:
            raise ProcessFailed(f"no forest could be grown: {error}")
        return cast(T, result)

    def close(self) -> None:
        """End the process: what is under way is given up."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
        self._thread.shutdown(cancel_futures=True)


def _predict(connection: Connection[Any, Any], setup: worker.Setup) -> None:
    """Answer what comes over the connection with the forest's predictions, in a process of its own."""
    answer_all(connection, partial(_real_worker, setup))


def _real_worker(setup: worker.Setup) -> worker.LengthWorker:
    # With torch, which the trainer's process starts without.
    from server.composition.devices import run_beside_executors

    run_beside_executors(setup.device)
    return worker.LengthWorker(worker.load_embedder(setup.folder, setup.max_tokens), setup)


def _work_niced(
    connection: Connection[Any, Any], niceness: int, work: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    """A process of low priority: sends the result of the work, and what went wrong, or None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(niceness)
    result, error = None, None
    try:
        result = work(*arguments)
    except Exception as trouble:
        error = f"{type(trouble).__name__}: {trouble}"
    with suppress(OSError):
        connection.send((result, error))


def _train(setup: worker.Setup, training: Examples, judges: Sequence[ServedRow] = ()) -> Forest | None:
    """Grow a forest, and keep its rows in the file; None, and nothing kept, where it is worse than the present one."""
    forest = grow(training, setup.growth)
    if is_worse(forest, _present(setup), judges):
        return None
    save(setup.forest, training, Manifest(setup.embedder, setup.max_tokens, setup.growth))
    return forest


def _present(setup: worker.Setup) -> Forest | None:
    try:
        return worker.load_forest(setup)
    except ForestError:
        return None
