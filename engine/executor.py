"""An executor's thread: commands in, a report a turn out. Device faults fail rows; a fault here ends the thread,
reported last.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from engine.health import FIRST_CAPACITY, LEAST_CAPACITY, DeviceHealth
from engine.lifecycle import Lifecycle
from engine.messages import Command, Deliver, ExecutorDied, ExecutorHealth, ExecutorInfo, Stop

log = logging.getLogger(__name__)


class Executor:
    """Thread-safe."""

    def __init__(
        self,
        info: ExecutorInfo,
        lifecycle: Lifecycle[Any],
        deliver: Deliver,
        *,
        threads: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`threads`: of a CPU's kernels. `clock` returns seconds, for the device's health."""
        self.info = info
        self._lifecycle = lifecycle
        self._table = lifecycle.table
        self._deliver = deliver
        self._clock = clock
        self._torch_threads = threads
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._turns = 0
        self._shape = lifecycle.table.shape()  # as last reported
        self._health = DeviceHealth()
        # changes around every turn, to detect hangs
        self.beat = 0
        self._running = True
        self._worn = False
        self._thread = threading.Thread(target=self._run, name=f"executor-{info.index}", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def post(self, command: Command) -> None:
        self._inbox.put(command)

    def reclaim(self) -> tuple[Command, ...]:
        """Take back commands of a lost thread, which loses access to swapped rows."""
        self._table.leave_store()
        commands: list[Command] = []
        with suppress(queue.Empty):
            while True:
                commands.append(self._inbox.get_nowait())
        return tuple(commands)

    def stop(self, timeout: float | None = None) -> None:
        """After the current turn; waits `timeout` seconds."""
        self.post(Stop())
        self._thread.join(timeout)

    def _run(self) -> None:
        self._serve()
        while self._running:
            self._serve_afresh()

    def _serve_afresh(self) -> None:
        """In a new thread: oneDNN remembers a lack of memory in each."""
        thread = threading.Thread(target=self._serve, name=self._thread.name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._serve()
        else:
            thread.join()

    def _serve(self) -> None:
        self._worn = False
        try:
            # settings of each thread
            if self._torch_threads is not None:
                torch.set_num_threads(self._torch_threads)
            if self.info.device.startswith("cuda"):
                torch.cuda.set_device(self.info.device)
            with torch.inference_mode():
                while self._running and not self._worn:
                    self._loop_once()
        except BaseException as error:
            self._running = False
            log.exception("executor %d died", self.info.index)
            self._deliver(ExecutorDied(self.info.index, f"{type(error).__name__}: {error}", self._table.salvage()))

    def _loop_once(self) -> None:
        self._take_commands()
        self.beat += 1
        if not self._running:
            return
        now, health, lifecycle = self._clock(), self._health, self._lifecycle
        if health.may_grow(now) and self._table.closed is None:
            self._report_moves(partial(lifecycle.grow, 2 * lifecycle.capacity))
            health.note_growth(now, lifecycle.capacity)
        if health.fault is not None:
            self._rest(now)
        elif not self._table.idle:
            if now >= health.resume:
                self._turn()
        elif self._table.shape() != self._shape:  # the last rows were cancelled, which no turn will report
            self._report_moves(self._table.clear)

    def _take_commands(self) -> None:
        idle = self._table.idle
        due = self._health.wakes_at(idle=idle)
        try:
            self._carry_out(self._inbox.get(timeout=None if due is None else max(0.0, due - self._clock())))
            while True:
                self._carry_out(self._inbox.get_nowait())
        except queue.Empty:
            return

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, Stop):
            self._running = False
        else:
            self._table.carry_out(command)

    def _turn(self) -> None:
        begin = time.perf_counter()
        self._lifecycle.turn()
        self._turns += 1
        self.beat += 1
        self._worn = self._lifecycle.short and self.info.device == "cpu"
        lost, failures = self._lifecycle.lost, max(self._lifecycle.failures.values())
        self._health.note_turn(self._clock(), short=self._lifecycle.short)
        self._report(time.perf_counter() - begin)
        if self._health.is_suspect(failures, self._lifecycle.capacity, lost=lost):
            self._report_moves(self._table.hand_back_all)
            self._prove()

    def _report_moves(self, move: Callable[[], object]) -> None:
        self._table.clear()
        move()
        self._report(0.0)

    def _prove(self) -> None:
        if self._lifecycle.capacity < FIRST_CAPACITY:
            self._lifecycle.grow(FIRST_CAPACITY)
        before, enough = self._health.fault, self._lifecycle.capacity >= LEAST_CAPACITY
        error = self._lifecycle.prove(self._show_life) if enough else "there is no memory"
        self._worn = error is not None and self.info.device == "cpu"
        self._health.note_proof(self._clock(), error)
        if (error is None) is (before is None):
            return
        if error is None:
            log.warning("executor %d has proved itself, and takes rows again", self.info.index)
        else:
            log.error("executor %d takes no rows until its device has proved itself: %s", self.info.index, error)
        self._deliver(ExecutorHealth(self.info.index, error))

    def _show_life(self) -> None:
        self.beat += 1

    def _rest(self, now: float) -> None:
        if self._table.rows:
            self._report_moves(self._table.hand_back_all)
        if now >= self._health.resume:
            self._prove()

    def _report(self, seconds: float) -> None:
        report = self._table.report(self.info.index, self._turns, seconds)
        self._shape = report.shape
        self._deliver(report)
