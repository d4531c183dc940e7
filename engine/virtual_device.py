"""The simulated device in real time behind an executor thread: rows, their text and what sampling asks of the host are
the real ones, the tokens those of a filler, as many as allowed.
"""

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from engine.device import Action, RowFault, StepOutcome
from engine.messages import RowSpec, RowUpdate, StepStats
from engine.row import Choice, Row
from engine.sampling.table import SamplingTable
from engine.simulated.batch import SimulatedRow
from engine.simulated.device import SimulatedDevice
from models.text import Text

CPU = torch.device("cpu")

PR_SET_TIMERSLACK = 29  # prctl(2): timer slack in ns, 50,000 by default


class NotComputed(RowFault):
    """Only a network computes it."""

    by_client = True


class VirtualRow(SimulatedRow):
    def __init__(self, spec: RowSpec, text: Text, tokens: Sequence[int]) -> None:
        super().__init__(spec)
        unending = replace(spec.sampling, stop=(), stop_token_ids=(), ignore_eos=True, grammar=None, logprobs=None)
        self.real = Row(replace(spec, sampling=unending), text, frozenset())
        self._tokens = tokens

    def report(self) -> RowUpdate:
        tokens, places = self._tokens, range(self.reported, self.step)
        self.reported, self.real.cached_prompt = self.step, self.cached_prompt
        return RowUpdate.join([self.real.accept(Choice(tokens[place % len(tokens)])) for place in places])


@dataclass(eq=False, kw_only=True)
class VirtualDevice(SimulatedDevice):
    """Steps are launched ahead, as on a GPU."""

    name: str
    text: Text
    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    _table: SamplingTable = field(default_factory=SamplingTable)
    _read_at: float = 0.0  # time
    _stepped_at: float = 0.0  # time
    _sleeps_well: bool = False

    def __post_init__(self) -> None:
        filler = f"{self.name} takes time and computes nothing: this text is filler. "
        self._tokens = self.text.encode(filler, add_special_tokens=False)

    def new_row(self, spec: RowSpec) -> VirtualRow:
        return VirtualRow(spec, self.text, self._tokens)

    def insert(self, row: SimulatedRow, *, lasting: bool) -> None:
        if not self.batch.rows:  # rows gone
            self._under_way = 0
        super().insert(row, lasting=lasting)

    def launch_chunk(self, rows: Sequence[SimulatedRow]) -> StepStats:
        """Delays the step beside it by its own time."""
        launched, now = super().launch_chunk(rows), self.clock()
        seconds = self.work(Action.PREFILL, (), 1).seconds
        self._read_at = now + seconds
        if self._stepped_at > now:
            self._stepped_at += seconds
        return launched

    def collect_chunk(self) -> StepOutcome[SimulatedRow]:
        self._sleep_until(self._read_at)
        if not self.prefilling:  # cancelled meanwhile
            return StepOutcome()
        outcome = super().collect_chunk()
        asked = [(row, row.sampling) for row in outcome.read]
        wrong = [row for row, sampling in asked if (sampling.logprobs, sampling.prompt_logprobs) != (None, None)]
        failures = [(row, NotComputed("a virtual device has no log-probabilities")) for row in wrong]
        told = [update for update in outcome.updates if update.row_id not in {row.row_id for row in wrong}]
        return replace(outcome, updates=told, failures=failures)

    def enter(self, rows: Sequence[SimulatedRow]) -> StepOutcome[SimulatedRow]:
        if self._under_way:
            self.batch.step(1)  # reported with this step
        self._begin(Action.ENTER, rows)
        self._under_way = 0
        self._sleep_until(self._stepped_at)
        return super().enter(rows)

    def step(self, iterations: int) -> StepOutcome[SimulatedRow]:
        if not self._under_way:
            self._begin(Action.DECODE)
        end, tally = self._stepped_at, self.batch.tally(1)
        self.batch.step(1)
        self.batch.just_ended()  # recompute bounds
        self._under_way = int(self.batch.live > 0 and self.batch.can_step())
        if self._under_way:
            self._begin(Action.DECODE)
        self._table.sync([row.real for row in self.batch.rows if isinstance(row, VirtualRow)])
        if self._table.draws:
            self._table.wishes(self._table.steps(), CPU)
        self._sleep_until(end)
        updates = self._look()
        return StepOutcome(updates, tally=replace(tally, generated=len(updates)))

    def _begin(self, action: Action, entering: Sequence[SimulatedRow] = ()) -> None:
        self._stepped_at = max(self.clock(), self._stepped_at) + self.work(action, entering, 1).seconds

    def _sleep_until(self, end: float) -> None:
        if not self._sleeps_well:  # by thread
            ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
            self._sleeps_well = True
        while (left := end - self.clock()) > 0:
            self.sleep(left)

    def _look(self) -> list[RowUpdate]:
        rows = [row for row in self.batch.rows if row.reported < row.total]
        for row in rows:
            self.batch.settle(row)
        return [row.report() for row in rows if row.step > row.reported]
