"""The real executors that experiments have, and how much of a paper's size fits on them. Knows no paper."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.experiments.paper.load import LONGEST
from loadgen.simulate.node import Machine
from scheduler.serving_time.bilinear import Bilinear

LENGTH_SCALE = 1 / 8
"""The factor of lengths by default: 128 tokens are the most then where a paper has 1024."""

REQUESTS = 600
"""Requests of a run by default: with fewer no queue forms, or what ends the run decides."""

SLOTS = 64
"""Rows of an executor: more than the memory that experiments give it lets most batches have, as in the papers."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """The real executors, and what the user chose."""

    cost: Bilinear
    """The machine's own profile."""
    executors: int
    chunk_tokens: int
    """Prompt tokens that are read between two decode steps."""
    about: str
    """Model, weights and processor, for the reader."""
    length_scale: float = LENGTH_SCALE
    loads: tuple[float, ...] | None = None
    """Rates, as multiples of what the baseline serves; None: as the experiment has it."""
    requests: int = REQUESTS
    """Requests of a run, unless there is a duration."""
    duration: float | None = None
    """Seconds of arrivals."""
    rounds: int = 1

    def count(self, rate: float) -> int:
        """Count the requests of a run at this rate."""
        return self.requests if self.duration is None else max(2, round(rate * self.duration))

    @property
    def amount(self) -> str:
        """Words for the requests of a run."""
        return f"{self.requests} requests a run" if self.duration is None else f"{self.duration:g} s of arrivals"

    def tokens(self, length: int) -> int:
        """A paper's length in tokens, scaled."""
        return max(1, round(length * self.length_scale))

    def context(self, longest_answer: int = LONGEST) -> int:
        """Longest prompt plus answer, where a paper's answers have this many tokens at most."""
        return self.tokens(LONGEST) + self.tokens(longest_answer)

    def machine(self, context: int, rows: int, slots: int = SLOTS) -> Machine:
        """Executors with K and V for `rows` rows of the greatest length: a paper whose fixed batches have so many."""
        return Machine(
            cost=self.cost,
            capacity_tokens=rows * context,
            max_num_seqs=slots,
            context_length=context,
            workers=self.executors,
            max_prefill_tokens=self.chunk_tokens,
        )

    def describe(self, context: int) -> str:
        """The part of an experiment's setting that is the same in all papers."""
        mean = f"; means of {self.rounds} rounds ± half their range" if self.rounds > 1 else ""
        return (
            f"{self.executors} × {self.about}; lengths times {self.length_scale:g}, {context} tokens in and out at most"
            f"{mean}"
        )


def times(loads: tuple[float, ...], served: float, baseline: str) -> str:
    """Rates for the eye, as multiples of what the baseline serves."""
    multiples = ", ".join(f"{load:g}" for load in loads)
    return f"{multiples} times the {served:.3g} requests/s that {baseline} serves"
