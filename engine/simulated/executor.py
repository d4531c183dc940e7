"""A simulated executor with a cost model, on a clock that its owner moves."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from engine.device import HEADROOM, Action
from engine.kv.host_store import HostStore
from engine.kv.prefix_cache import PrefixCache
from engine.lifecycle import Lifecycle
from engine.messages import Admit, Command, Deliver, ExecutorInfo, StepStats, Stop
from engine.simulated.batch import SimulatedBatch, SimulatedKv, SimulatedRow
from engine.simulated.device import SimulatedDevice
from engine.simulated.machine import Machine, Work, keep_pace


@dataclass(slots=True)
class DeviceUsage:
    """Seconds, and tokens."""

    completion: float = 0.0  # clock time of its last work
    prefill: float = 0.0  # with entries by shape
    decode: float = 0.0
    row_decode: float = 0.0  # over rows: / `decode` = mean batch size
    tally: StepStats = StepStats()

    def book(self, work: Work, rows: int, now: float) -> None:
        self.completion = now
        if work.action is Action.DECODE:
            self.decode += work.seconds
            self.row_decode += rows * work.seconds
        else:
            self.prefill += work.seconds


@dataclass(eq=False)
class SimulatedExecutor:
    """The owner moves the clock to `due`, and calls `advance`. A shared store lets rows migrate."""

    index: int
    machine: Machine
    now: Callable[[], float]
    deliver: Deliver
    alive = True  # nothing stops it
    _: KW_ONLY
    prefixes: PrefixCache[SimulatedKv]
    store: HostStore[SimulatedRow] | None = None
    headroom: int = HEADROOM
    due: float = math.inf  # clock time; infinity: on a command
    usage: DeviceUsage = field(default_factory=DeviceUsage)
    _inbox: list[Command] = field(default_factory=list)
    _work: Work | None = None
    _began: float = 0.0
    _turns: int = 0

    def __post_init__(self) -> None:
        machine = self.machine
        capacity, rows, chunk = machine.capacity_tokens, machine.max_num_seqs, machine.max_prefill_tokens
        self.info = ExecutorInfo(self.index, "simulated", capacity, rows, machine.longest)
        batch = SimulatedBatch(capacity, rows, self.headroom, reads_padding=machine.reads_padding)
        self._device = SimulatedDevice(batch, machine.cost, capacity * rows if chunk is None else chunk, self.prefixes)
        self._lifecycle = Lifecycle(self._device, self.store)
        self._table = self._lifecycle.table
        self._shape = self._table.shape()

    def post(self, command: Command) -> None:
        """Cuts current work short where it must."""
        self._inbox.append(command)
        if self._work is None:
            self.due = self.now()
        elif not (isinstance(command, Admit) and command.terms.closed and self._table.closed is not None):
            self._work = self._work.cut(self.now() - self._began)
            self.due = max(self.now(), self._began + self._work.seconds)

    def reclaim(self) -> tuple[Command, ...]:
        commands, self._inbox = self._inbox, []
        return tuple(commands)

    def advance(self) -> None:
        now, work, self._work = self.now(), self._work, None
        if work is not None:
            self.usage.book(work, len(self._device.batch), now)
            self._turns += work.iterations
            self._lifecycle.finish(work.action, work.iterations)
            self._report(work.seconds)
            self.due = math.inf if self._table.idle and not self._inbox else now
            return
        for command in self.reclaim():
            assert not isinstance(command, Stop), "nothing is given up in a simulation"
            self._table.carry_out(command)
        self._work = self._next_work()
        self._began = now
        self.due = math.inf if self._work is None else now + self._work.seconds
        self._report(0.0)

    def _next_work(self) -> Work | None:
        for _ in range(4 * len(self._table.rows)):  # each None moves a row
            action = self._lifecycle.next()
            if action is not None:
                work = self._device.work(action, self._lifecycle.entering, self._lifecycle.iterations_to_look())
                return work if self.machine.pace is keep_pace else work.paced(self.machine.pace, self.now())
        if self._table.rows:
            raise RuntimeError(f"a simulated device is stuck with {len(self._table.rows)} rows: a fault of ours")
        return None

    def _report(self, seconds: float) -> None:
        report = self._table.report(self.index, self._turns, seconds)
        emptied = self._table.idle and report.shape != self._shape
        if seconds or report.updates or report.begun or report.handed_back or report.tally != StepStats() or emptied:
            self._shape = report.shape
            self._table.clear()
            self.usage.tally += report.tally
            self.deliver(report)
