"""The device that takes time and computes nothing: the simulated device, step by step, behind a thread of its own. The
whole server runs on it as on a real one. Its text is filler, and says so.

Answers are as long as their requests allow (`max_tokens`, or `replay_tokens`), as with `ignore_eos` and without stops.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.device import Action, Outcome, RowFault
from engine.kv.prefix_cache import PrefixCache
from engine.messages import RowSpec, RowUpdate, Tally
from engine.simulated.batch import SimulatedBatch, SimulatedKv, SimulatedRow
from engine.simulated.device import SimulatedDevice
from engine.simulated.machine import Cost

PR_SET_TIMERSLACK = 29
"""The option of prctl(2) by which a thread says how late, in ns, its sleeps may end: 50,000 unless it says."""


class NotComputed(RowFault):
    """A client asks for numbers that only a network could compute."""

    by_client = True


class VirtualDevice(SimulatedDevice):
    """A `Device` of engine.device whose actions take the seconds of a cost model; it tells each step's tokens.

    A step is begun before the tokens of the one before it are read, as engines do on a GPU: host work that takes less
    than a step delays none. A row that has ended or left meanwhile is computed once in vain, and one that joins is in
    the step after the one under way.
    """

    def __init__(
        self,
        name: str,
        batch: SimulatedBatch,
        cost: Cost,
        max_prefill_tokens: int,
        prefixes: PrefixCache[SimulatedKv] | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(batch, cost, max_prefill_tokens, prefixes)
        text = f"{name} takes time and computes nothing: this text is filler."
        self._words = [f"{word} " for word in text.split()]
        self._clock, self._sleep = clock, sleep
        self._read_at = 0.0  # when the chunk under way has been read
        self._stepped_at = 0.0  # when the latest step that was begun ends
        self._sleeps_well = False

    def new_row(self, spec: RowSpec) -> SimulatedRow:
        row = super().new_row(spec)
        row.words = self._words
        return row

    def insert(self, row: SimulatedRow, *, lasting: bool) -> None:
        if not self.batch.rows:  # the rows of the step under way have gone
            self._under_way = 0
        super().insert(row, lasting=lasting)

    def launch_chunk(self, rows: Sequence[SimulatedRow]) -> Tally:
        """Begin a chunk now. It has a stream of its own, and takes its time from the step beside it."""
        launched, now = super().launch_chunk(rows), self._clock()
        seconds = self.work(Action.PREFILL, (), 1).seconds
        self._read_at = now + seconds
        if self._stepped_at > now:
            self._stepped_at += seconds
        return launched

    def collect_chunk(self) -> Outcome[SimulatedRow]:
        self._sleep_until(self._read_at)
        if not self.prefilling:  # its last row was cancelled while the chunk was under way
            return Outcome()
        outcome = super().collect_chunk()
        asked = [(row, row.sampling) for row in outcome.read]
        wrong = [row for row, sampling in asked if (sampling.logprobs, sampling.prompt_logprobs) != (None, None)]
        failures = [(row, NotComputed("a virtual device has no log-probabilities")) for row in wrong]
        told = [update for update in outcome.updates if update.row_id not in {row.row_id for row in wrong}]
        return replace(outcome, updates=told, failures=failures)

    def enter(self, rows: Sequence[SimulatedRow]) -> Outcome[SimulatedRow]:
        if self._under_way:
            self.batch.step(1)  # whose tokens are told with those of this one
        self._begin(Action.ENTER, rows)
        self._under_way = 0
        self._sleep_until(self._stepped_at)
        return super().enter(rows)

    def step(self, iterations: int) -> Outcome[SimulatedRow]:
        """One decode iteration, whatever was asked for. The one after it is under way when its tokens are read."""
        if not self._under_way:
            self._begin(Action.DECODE)
        end, tally = self._stepped_at, self.batch.tally(1)
        self.batch.step(1)
        self.batch.just_ended()  # so that those that go on are counted anew
        self._under_way = int(self.batch.live > 0 and self.batch.can_step())
        if self._under_way:
            self._begin(Action.DECODE)
        self._sleep_until(end)
        updates = self._look()
        return Outcome(updates, tally=replace(tally, generated=len(updates)))

    def _begin(self, action: Action, entering: Sequence[SimulatedRow] = ()) -> None:
        """Begin an action once the device is free."""
        self._stepped_at = max(self._clock(), self._stepped_at) + self.work(action, entering, 1).seconds

    def _sleep_until(self, end: float) -> None:
        if not self._sleeps_well:  # which each thread has to say for itself
            ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
            self._sleeps_well = True
        while (left := end - self._clock()) > 0:
            self._sleep(left)

    def _look(self) -> list[RowUpdate]:
        """Report each row that has a token more."""
        rows = [row for row in self.batch.rows if row.reported < row.total]
        for row in rows:
            self.batch.settle(row)
        return [row.report() for row in rows if row.step > row.reported]
