"""A simulated machine: how fast its executors are and how much each holds. Knows no trace, no strategy and no clock."""

from __future__ import annotations

from dataclasses import dataclass

from engine.simulated.cost import Cost, Pace, keep_pace


@dataclass(frozen=True, slots=True)
class Machine:
    """The executors to simulate, all alike."""

    cost: Cost
    capacity_tokens: int
    """Tokens of K and V that each can hold."""
    max_num_seqs: int
    """Rows that each can run at once."""
    context_length: int
    """Longest prompt plus answer, in tokens."""
    workers: int = 1
    max_prefill_tokens: int | None = None
    """Cells of a chunk of prefill; None reads every group at once."""
    prefix_cache_tokens: int = 0
    """Tokens of prompts whose K and V are kept in host memory, for all executors."""
    pace: Pace = keep_pace
    """How its speed changes about that of `cost`, in seconds after the simulation's begin."""
    runs_ahead: bool = False
    """Whether executors begin their next step before the scheduler has answered the last, as threads do: what is sent
    when a row ends finds an iteration under way. Else the scheduler takes no time at all."""

    @property
    def longest(self) -> int:
        """Tokens of the longest request that an executor can hold, prompt and answer together."""
        return min(self.context_length, self.capacity_tokens)
