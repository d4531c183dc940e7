"""A process that answers messages, restarted when gone: computation stays off the executors' interpreter lock."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

KILL_TIMEOUT = 5.0  # seconds for a killed process to be gone


def kill(process: BaseProcess) -> None:
    """Even one that is stopped."""
    process.kill()
    process.join(KILL_TIMEOUT)


def spawn(work: Callable[..., object], *arguments: object, name: str = "") -> tuple[BaseProcess, Connection[Any, Any]]:
    """Run `work(connection, *arguments)` in a new process; each end notices the other's."""
    context = multiprocessing.get_context("spawn")  # forking threads is unsafe
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, *arguments), name=name or work.__name__, daemon=True)
    # Ctrl-C reaches the group
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return process, ours


START_TIMEOUT, TIMEOUT = 120.0, 20.0  # seconds without a reply until a process hangs, the first with loading

END_TIMEOUT = 5.0  # seconds to end when asked


class ProcessFailed(RuntimeError):
    """The next call starts another process."""


class Refusal(Exception):
    """Raised by a worker for the caller."""


class WorkerProcess:
    """Messages one at a time, in order, from a thread of its own."""

    def __init__(
        self,
        name: str,
        make: Callable[[], object],
        timeout: float = TIMEOUT,
        start_timeout: float | None = START_TIMEOUT,
    ) -> None:
        """`make` makes the worker in the process; timeouts in seconds, the second for the first reply."""
        self._name, self._make = name, make
        self._timeout, self._start_timeout = timeout, start_timeout
        self.thread = ThreadPoolExecutor(1, name)
        self._process: BaseProcess | None = None
        self._connection: Connection[Any, Any] | None = None
        self._up = False  # it has answered once
        self._closed = False

    @property
    def running(self) -> bool:
        """Started, and not found gone."""
        return self._connection is not None

    @property
    def told_to_end(self) -> bool:
        """The signal may have reached all processes."""
        return self._closed or (self._process is not None and self._process.exitcode == -signal.SIGTERM)

    async def ask(self, method: str, *arguments: object) -> Any:
        """A worker method's result. Raises ProcessFailed, and what the worker refuses."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, self.call, method, *arguments)

    def call(self, method: str, *arguments: object) -> Any:
        """`ask` from its thread."""
        reply = self._exchange((method, arguments))
        if isinstance(reply, ProcessFailed | Refusal):
            raise reply
        return reply

    def hang_up(self) -> None:
        """From the same thread; the next call starts another."""
        self._disconnect()
        if self._process is not None:
            end(self._process)

    def close(self) -> None:
        """Waits briefly for a message under way."""
        self._closed = True
        if self._process is not None and not self._up:  # still loading
            self._process.kill()
        hung_up = self.thread.submit(self.hang_up)
        try:
            hung_up.result(END_TIMEOUT)
        except TimeoutError:  # it hangs
            if self._process is not None:
                self._process.kill()
        self.thread.shutdown()

    def _exchange(self, message: object) -> Any:
        if self._closed:
            raise ProcessFailed(f"the {self._name}'s process has ended")
        try:
            if self._connection is None:
                self._up = False
                self._process, self._connection = spawn(answer_all, self._make, name=self._name)
                if self.told_to_end:  # since it was started
                    self._process.kill()
            self._connection.send(message)
            if not self._connection.poll(self._timeout if self._up else self._start_timeout):
                raise TimeoutError
            reply = self._connection.recv()
            self._up = True
        except (EOFError, OSError) as error:
            self._disconnect()
            state = "stands still" if isinstance(error, TimeoutError) else "is gone"
            if self._process is not None:
                kill(self._process)
            raise ProcessFailed(f"the {self._name}'s process {state}") from error
        return reply

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def end(process: BaseProcess) -> None:
    """Wait briefly for a process that was asked to end, then kill it."""
    process.join(END_TIMEOUT)
    kill(process)


def answer_all(connection: Connection[Any, Any], make: Callable[[], object]) -> None:
    """Until the server is gone; if no worker can be made, the first reply says why."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server decides when to end
    with suppress(EOFError, OSError):
        try:
            worker = make()
        except Exception as error:
            connection.recv()
            connection.send(ProcessFailed(str(error)))
            return
        while True:
            method, arguments = connection.recv()
            connection.send(_call(getattr(worker, method), arguments))


def _call(method: Callable[..., object], arguments: tuple[object, ...]) -> object:
    try:
        return method(*arguments)
    except Refusal as refusal:
        return refusal
    except Exception as error:
        return ProcessFailed(f"{type(error).__name__}: {error}")


PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run a program as a child that ends with its parent (the first word)."""
    parent = int(sys.argv.pop(1))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before
        return 1
    runpy.run_module("lengthwise", run_name="__main__", alter_sys=True)  # raises SystemExit
    return 0


if __name__ == "__main__":
    sys.exit(main())
