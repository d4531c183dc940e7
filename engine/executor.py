"""An executor's thread: commands in, a report a turn out. Device faults fail rows; a fault here ends the thread,
reported last.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

import torch

from engine.health import FIRST_CAPACITY, LEAST_CAPACITY, DeviceHealth
from engine.lifecycle import Lifecycle
from engine.messages import Command, Deliver, ExecutorDied, ExecutorHealth, ExecutorInfo, Stop

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Executor:
    """Thread-safe."""

    info: ExecutorInfo
    lifecycle: Lifecycle[Any]
    deliver: Deliver
    _: KW_ONLY
    threads: int | None = None  # of a CPU's kernels
    clock: Callable[[], float] = time.monotonic  # seconds, for the device's health
    beat: int = 0  # changes around every turn, to detect hangs
    _inbox: queue.SimpleQueue[Command] = field(default_factory=queue.SimpleQueue)
    _health: DeviceHealth = field(default_factory=DeviceHealth)
    _turns: int = 0
    _running: bool = True
    _worn: bool = False

    def __post_init__(self) -> None:
        self._table = self.lifecycle.table
        self._shape = self._table.shape()  # as last reported
        self._thread = threading.Thread(target=self._run, name=f"executor-{self.info.index}", daemon=True)

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
        while self._running:  # in a new thread: oneDNN remembers a lack of memory in each
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
            if self.threads is not None:
                torch.set_num_threads(self.threads)
            if self.info.device.startswith("cuda"):
                torch.cuda.set_device(self.info.device)
            with torch.inference_mode():
                while self._running and not self._worn:
                    self._loop_once()
        except BaseException as error:
            self._running = False
            log.exception("executor %d died", self.info.index)
            self.deliver(ExecutorDied(self.info.index, f"{type(error).__name__}: {error}", self._table.salvage()))

    def _loop_once(self) -> None:
        self._take_commands()
        self.beat += 1
        if not self._running:
            return
        now, health, lifecycle = self.clock(), self._health, self.lifecycle
        if health.may_grow(now) and self._table.closed is None:
            self._report_moves(partial(lifecycle.grow, 2 * lifecycle.capacity))
            health.note_growth(now, lifecycle.capacity)
        if health.fault is not None:
            if self._table.rows:
                self._report_moves(self._table.hand_back_all)
            if now >= health.resume:
                self._prove()
        elif not self._table.idle:
            if now >= health.resume:
                self._turn()
        elif self._table.shape() != self._shape:  # the last rows were cancelled, which no turn will report
            self._report_moves(self._table.clear)

    def _take_commands(self) -> None:
        due = self._health.wakes_at(idle=self._table.idle)
        try:
            self._carry_out(self._inbox.get(timeout=None if due is None else max(0.0, due - self.clock())))
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
        self.lifecycle.turn()
        self._turns += 1
        self.beat += 1
        self._worn = self.lifecycle.short and self.info.device == "cpu"
        lost, failures = self.lifecycle.lost, max(self.lifecycle.failures.values())
        self._health.note_turn(self.clock(), short=self.lifecycle.short)
        self._report(time.perf_counter() - begin)
        if self._health.is_suspect(failures, self.lifecycle.capacity, lost=lost):
            self._report_moves(self._table.hand_back_all)
            self._prove()

    def _report_moves(self, move: Callable[[], object]) -> None:
        self._table.clear()
        move()
        self._report(0.0)

    def _prove(self) -> None:
        if self.lifecycle.capacity < FIRST_CAPACITY:
            self.lifecycle.grow(FIRST_CAPACITY)
        before, enough = self._health.fault, self.lifecycle.capacity >= LEAST_CAPACITY
        error = self.lifecycle.prove(self._show_life) if enough else "there is no memory"
        self._worn = error is not None and self.info.device == "cpu"
        self._health.note_proof(self.clock(), error)
        if (error is None) is (before is None):
            return
        if error is None:
            log.warning("executor %d has proved itself, and takes rows again", self.info.index)
        else:
            log.error("executor %d takes no rows until its device has proved itself: %s", self.info.index, error)
        self.deliver(ExecutorHealth(self.info.index, error))

    def _show_life(self) -> None:
        self.beat += 1

    def _report(self, seconds: float) -> None:
        report = self._table.report(self.info.index, self._turns, seconds)
        self._shape = report.shape
        self.deliver(report)
