"""The device that takes time and computes nothing: the simulated device, step by step, behind a thread of its own. The
whole server runs on it as on a real one. Its text is filler, and says so.

Answers are as long as their requests allow (`max_tokens`, or `replay_tokens`), as with `ignore_eos` and without stops.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.device import Action, Outcome, RowFault
from engine.kv.prefix_cache import PrefixCache
from engine.messages import RowSpec, RowUpdate, Tally
from engine.simulated.batch import SimulatedBatch, SimulatedKv, SimulatedRow
from engine.simulated.cost import Cost
from engine.simulated.device import SimulatedDevice

PR_SET_TIMERSLACK = 29
"""The option of prctl(2) by which a thread says how late, in ns, its sleeps may end: 50,000 unless it says."""


class NotComputed(RowFault):
    """A client asks for numbers that only a network could compute."""

    by_client = True


@dataclass(eq=False, slots=True)
class VirtualRow(SimulatedRow):
    """A row whose tokens are words of a text."""

    words: Sequence[str] = ()

    def report(self) -> RowUpdate:
        begin, words = self.reported, self.words
        text = "".join([words[place % len(words)] for place in range(begin, self.generated)])
        return replace(SimulatedRow.report(self), text=text)


class VirtualDevice(SimulatedDevice):
    """A `Device` of engine.device whose actions take the seconds of a cost model; a step tells its tokens at once."""

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
        self._sleeps_well = False

    def new_row(self, spec: RowSpec) -> VirtualRow:
        return VirtualRow(spec, words=self._words)

    def launch_chunk(self, rows: Sequence[SimulatedRow]) -> Tally:
        launched = super().launch_chunk(rows)
        self._read_at = self._clock() + self.work(Action.PREFILL, (), 1).seconds
        return launched

    def collect_chunk(self) -> Outcome[SimulatedRow]:
        self._sleep_until(self._read_at)
        if self._prefill is None:  # its last row was cancelled while the chunk was under way
            return Outcome()
        outcome = super().collect_chunk()
        wrong = [row for row in outcome.read if _wants_numbers(row.spec)]
        failures = [((row,), NotComputed("a virtual device has no log-probabilities")) for row in wrong]
        told = [update for update in outcome.updates if update.row_id not in {row.row_id for row in wrong}]
        return replace(outcome, updates=told, failures=failures)

    def enter(self, rows: Sequence[SimulatedRow]) -> Outcome[SimulatedRow]:
        self._take(Action.ENTER, rows)
        return super().enter(rows)

    def step(self, iterations: int) -> Outcome[SimulatedRow]:
        self._take(Action.DECODE)
        return super().step(1)

    def _take(self, action: Action, entering: Sequence[SimulatedRow] = ()) -> None:
        """Let the time of an action pass, from now on."""
        begin = self._clock()
        self._sleep_until(begin + self.work(action, entering, 1).seconds)

    def _sleep_until(self, end: float) -> None:
        if not self._sleeps_well:  # which each thread has to say for itself
            ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
            self._sleeps_well = True
        while (left := end - self._clock()) > 0:
            self._sleep(left)

    def _look(self) -> list[RowUpdate]:
        """Report each row that has not ended before."""
        self.batch.just_ended()  # so that bounds are found anew where a row has ended
        live = [row for row in self.batch.rows if row.reported < row.total]
        for row in live:
            self.batch.settle(row)
        return [row.report() for row in live]


def _wants_numbers(spec: RowSpec) -> bool:
    return spec.sampling.logprobs is not None or spec.sampling.prompt_logprobs is not None
