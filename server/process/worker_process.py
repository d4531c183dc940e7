"""A process that answers messages, beside the server's: started when it is first asked, and anew when it is gone.

What computes for milliseconds is done in such a process: in the server's own it would take the interpreter's lock and
OpenMP's threads away from the executors. It ends with the server, also when that is killed.
"""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

KILL_TIMEOUT = 5.0
"""Seconds that a process has to be gone once it is killed."""


def kill(process: BaseProcess) -> None:
    """End a process, also one that is stopped and would not hear that it shall end."""
    process.kill()
    process.join(KILL_TIMEOUT)


def spawn(work: Callable[..., object], *arguments: object, name: str = "") -> tuple[BaseProcess, Connection[Any, Any]]:
    """Run `work(connection, *arguments)` in a new process; both ends notice when the other is gone."""
    context = multiprocessing.get_context("spawn")  # forking a process with threads is not safe
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, *arguments), name=name or work.__name__, daemon=True)
    # Ctrl-C reaches the whole group, and a process that has yet to be set up would complain of it at length.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return process, ours


START_TIMEOUT, TIMEOUT = 120.0, 20.0
"""Seconds without a reply after which a process stands still: the first one, which takes loading, and later ones."""

END_TIMEOUT = 5.0
"""Seconds that a process has to end once it is no longer wanted."""


class ProcessFailed(RuntimeError):
    """A process broke off, or cannot do its work; the next call starts another where it is gone."""


class Refusal(Exception):
    """Raised by a worker for the caller, who has to ask for something else."""


class WorkerProcess:
    """Asks a process, one message at a time in the order of their coming, in a thread of its own."""

    def __init__(
        self,
        name: str,
        make: Callable[[], object],
        timeout: float = TIMEOUT,
        start_timeout: float | None = START_TIMEOUT,
    ) -> None:
        """`make` makes the worker, in the process; timeouts are in seconds, the second one that of the first reply."""
        self._name, self._make = name, make
        self._timeout, self._start_timeout = timeout, start_timeout
        self.thread = ThreadPoolExecutor(1, name)
        self._process: BaseProcess | None = None
        self._connection: Connection[Any, Any] | None = None
        self._up = False  # whether the process has answered, and is not busy with loading any more
        self._closed = False

    @property
    def running(self) -> bool:
        """Whether a process has been started and has not been found to be gone."""
        return self._connection is not None

    @property
    def told_to_end(self) -> bool:
        """Whether the server ends, whose signal may have come to all its processes."""
        return self._closed or (self._process is not None and self._process.exitcode == -signal.SIGTERM)

    async def ask(self, method: str, *arguments: object) -> Any:
        """The result of a method of the worker. Raises ProcessFailed, and what the worker refuses."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, self.call, method, *arguments)

    def call(self, method: str, *arguments: object) -> Any:
        """What `ask` does, from its thread."""
        reply = self._exchange((method, arguments))
        if isinstance(reply, ProcessFailed | Refusal):
            raise reply
        return reply

    def hang_up(self) -> None:
        """Let the process end, from the same thread; the next call starts another."""
        self._disconnect()
        if self._process is not None:
            end(self._process)

    def close(self) -> None:
        """End the process; a message that is under way is waited for a moment."""
        self._closed = True
        if self._process is not None and not self._up:  # it is still loading
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
                if self.told_to_end:  # since it was being started
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
    """Wait for a process that has been told to end, for a moment; one that stands still is killed."""
    process.join(END_TIMEOUT)
    kill(process)


def answer_all(connection: Connection[Any, Any], make: Callable[[], object]) -> None:
    """Call the worker's methods as messages ask for them until the server is gone; where no worker can be made, the
    first reply says why."""
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
    """Run the program with the words behind the parent's process id, as a child that ends with that parent, however it
    ends; returns its exit code."""
    parent = int(sys.argv.pop(1))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        return 1
    import lengthwise

    return lengthwise.main()


if __name__ == "__main__":
    sys.exit(main())
