"""The length predictor in a process of its own: sentence embedder and forest, beside the server's process.

It is a process because embedding is milliseconds of arithmetic: in the server's own it would take the interpreter's
lock and OpenMP's threads away from the executors. It ends with the server, also when that is killed.
"""

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
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from scheduler.length.features import FloatMatrix, LengthQuery
from scheduler.length.forest import Examples, Forest, grow
from scheduler.length.forest_file import ForestError, manifest, save
from scheduler.length.learning import ServedRow, is_worse
from scheduler.length.prediction import Estimate
from server.lengths.worker import (
    NICENESS,
    EmbedTexts,
    GetExamples,
    LengthWorker,
    ReloadForest,
    Reply,
    Setup,
    load_embedder,
    load_forest,
)
from server.process.spawn import kill, spawn

log = logging.getLogger(__name__)

WARM_UP_TEXT = "Say which of these words is the longest one, and why that is so. " * 4

WARM_UP = (
    (LengthQuery("", WARM_UP_TEXT, 64, 1),),
    tuple(LengthQuery(WARM_UP_TEXT, WARM_UP_TEXT[: 32 * more], 8 * more, 1) for more in range(1, 9)),
)
"""Queries that are asked before any request: one alone, and a batch of short and long ones."""

START_TIMEOUT, TIMEOUT = 120.0, 20.0
"""Seconds without a reply after which a process stands still: the first one, which takes loading, and later ones."""

END_TIMEOUT = 5.0
"""Seconds that a process has to end once it is no longer wanted."""


T = TypeVar("T")


class ProcessFailed(RuntimeError):
    """The predictor's process broke off; the next call starts another."""


Work: TypeAlias = "Callable[[Connection[Any, Any], Setup], None]"


class Worker(Protocol):
    """Answers the messages of a predictor's process; never raises, an error is a reply."""

    def answer(self, message: Any) -> Reply: ...


class PredictorProcess:
    """A LengthPredictor and a Trainer. Event loop only; never blocks it."""

    def __init__(self, setup: Setup, work: Work | None = None, timeout: float = TIMEOUT) -> None:
        """`work` is what the process does instead of growing and asking a forest: the proxy's, or a test's; `timeout`
        is in seconds."""
        self._setup = setup
        self._work = work or _predict
        self._timeout = timeout
        self._thread = ThreadPoolExecutor(1, "length predictor")
        self._trainer = NicedProcess(setup.niceness)
        self._process: BaseProcess | None = None
        self._connection: Connection[Any, Any] | None = None
        self._up = False  # whether the process has answered, and is not busy with loading any more
        self._closed = False

    async def start(self, *, embeds: bool = False) -> None:
        """Return when it is ready: it has loaded, and answered what takes longer at first than later, texts too where
        the length cache `embeds` them. Raises ProcessFailed with the reason."""
        for queries in WARM_UP:
            await self._call(queries)
        if embeds:
            await self._call(EmbedTexts((WARM_UP_TEXT,)))

    async def estimate(self, queries: Sequence[LengthQuery]) -> Sequence[Estimate]:
        """One estimate for each query. Raises ProcessFailed."""
        return (await self._call(tuple(queries))).estimates

    async def embed(self, texts: Sequence[str]) -> FloatMatrix:
        """Texts -> (n, dim), for the length cache. Raises ProcessFailed."""
        embeddings = (await self._call(EmbedTexts(tuple(texts)))).embeddings
        assert embeddings is not None, "a reply without an error has what was asked for"
        return embeddings

    async def training(self) -> Examples | None:
        """The examples that the present forest was grown from; None where there is none. Raises ProcessFailed."""
        return (await self._call(GetExamples())).examples

    async def train(self, training: Examples, judges: Sequence[ServedRow] = ()) -> None:
        """Grow a forest in a further process, keep it in the file, and put it in place, unless it is worse than the
        present one. Raises ProcessFailed."""
        if await asyncio.wrap_future(self._trainer.submit(self._grow, training, judges)):
            await self._call(ReloadForest())
        else:
            log.info(
                "a new forest is worse on %d answers held out than the present predictions: they stay", len(judges)
            )

    async def aclose(self) -> None:
        """End the processes as `close` does, off the event loop."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """End the processes: a forest that is growing is given up, a batch that is under way is waited for a moment."""
        self._closed = True
        self._trainer.close()
        if self._process is not None and not self._up:  # it is still loading
            self._process.kill()
        hung_up = self._thread.submit(self._disconnect)
        try:
            hung_up.result(END_TIMEOUT)
        except TimeoutError:  # it hangs
            if self._process is not None:
                self._process.kill()
        self._thread.shutdown()
        if self._process is not None:
            end(self._process)

    async def _call(self, message: object) -> Reply:
        reply = await asyncio.get_running_loop().run_in_executor(self._thread, self._exchange, message)
        if reply.warning is not None:
            log.warning("%s", reply.warning)
        if reply.error is not None:
            raise ProcessFailed(reply.error)
        return reply

    def _exchange(self, message: object) -> Reply:
        if self._closed:
            raise ProcessFailed("the length predictor's process has ended")
        try:
            if self._connection is None:
                self._up = False
                self._process, self._connection = spawn(self._work, self._setup)
            self._connection.send(message)
            if not self._connection.poll(self._timeout if self._up else START_TIMEOUT):
                raise TimeoutError
            reply: Reply = self._connection.recv()
            self._up = True
        except (EOFError, OSError) as error:
            self._disconnect()
            state = "stands still" if isinstance(error, TimeoutError) else "is gone"
            if self._process is not None:
                kill(self._process)
            raise ProcessFailed(f"the length predictor's process {state}") from error
        return reply

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _grow(self, training: Examples, judges: Sequence[ServedRow]) -> bool:
        """Whether there is a new forest in the file."""
        return bool(self._trainer.run(_train, self._setup, training, judges))


class NicedProcess:
    """Runs work in processes of low priority, one after another, and a thread that waits for them. It grows forests:
    in the server's own process that would hold the interpreter's lock, and the event loop lags by it."""

    def __init__(self, niceness: int = NICENESS) -> None:
        self._niceness = niceness
        self._thread = ThreadPoolExecutor(1, "length training")
        self._process: BaseProcess | None = None
        self._closed = False

    def submit(self, work: Callable[..., T], *arguments: object) -> Future[T]:
        """Run work in the thread, which may call `run`."""
        return self._thread.submit(work, *arguments)

    def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Run work in a process of its own and wait for its result. Raises ProcessFailed, and CancelledError at the
        end of the server."""
        self._process, connection = spawn(_work_niced, self._niceness, work, arguments)
        if self._closed:  # since it was being started
            self._process.kill()
        try:
            with connection:
                result, error = connection.recv()
        except (EOFError, OSError) as gone:
            raise (CancelledError if self._closed else ProcessFailed)(
                "the process that grew a forest is gone"
            ) from gone
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


def end(process: BaseProcess) -> None:
    """Wait for a process that has been told to end, for a moment; one that stands still is killed."""
    process.join(END_TIMEOUT)
    kill(process)


def _predict(connection: Connection[Any, Any], setup: Setup) -> None:
    """The predictor's process."""
    answer_all(connection, partial(_real_worker, setup))


def answer_all(connection: Connection[Any, Any], make: Callable[[], Worker]) -> None:
    """Answer one message after another until the server is gone; where no worker can be made, the first with why."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server decides when to end
    with suppress(EOFError, OSError):
        try:
            worker = make()
        except Exception as error:
            connection.recv()
            connection.send(Reply(error=str(error)))
            return
        while True:
            connection.send(worker.answer(connection.recv()))


def _real_worker(setup: Setup) -> LengthWorker:
    from server.process.devices import run_beside_executors  # with torch, which the trainer's process starts without

    run_beside_executors(setup.device)
    return LengthWorker(load_embedder(setup.folder, setup.max_tokens), setup)


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


def _train(setup: Setup, training: Examples, judges: Sequence[ServedRow] = ()) -> bool:
    """Grow a forest, and keep it in the file unless it is worse than the present one; whether it was kept."""
    forest = grow(training, setup.growth)
    if is_worse(forest, _present(setup), judges):
        return False
    save(setup.forest, forest, manifest(setup.embedder, setup.max_tokens, len(training)))
    return True


def _present(setup: Setup) -> Forest | None:
    try:
        return load_forest(setup)
    except ForestError:
        return None
