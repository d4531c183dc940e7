"""A device's health, from what its turns brought: pauses, self-tests, memory to take back. Pure; times in seconds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from engine.device import Action, RowT
from engine.messages import RowSpec
from engine.sampling.params import SamplingParams

MOST_FAILURES = 3  # consecutive failures of one action until a self-test

LEAST_CAPACITY = 0.1  # share of KV memory below which a self-test is due

FIRST_CAPACITY = 0.25  # share of KV memory for a self-test

FIRST_PAUSE, LONGEST_PAUSE = 0.01, 1.0  # seconds from out of memory to the next turn, doubling

FIRST_REST, LONGEST_REST = 1.0, 30.0  # seconds from a failed self-test to the next, doubling

FIRST_CALM, LONGEST_CALM = 5.0, 300.0  # quiet seconds until memory is taken back, doubling where that led to a shortage


class DeviceHealth:
    def __init__(self) -> None:
        self.fault: str | None = None  # why the device takes no rows
        self.resume = 0.0  # earliest time of the next turn or self-test
        self.grow_at: float | None = None  # when to take memory back; None while none is missing
        self._pause = 0.0
        self._rest = 0.0
        self._calm = FIRST_CALM
        self._grew: float | None = None  # when memory was last taken back, until a shortage follows

    def note_turn(self, now: float, *, short: bool) -> None:
        """A turn is over; `short`: it ran out of memory."""
        self._pause = min(max(2 * self._pause, FIRST_PAUSE), LONGEST_PAUSE) if short else 0.0
        self.resume = now + self._pause
        if short:
            if self._grew is not None and now < self._grew + LONGEST_CALM:
                self._calm = min(2 * self._calm, LONGEST_CALM)
            elif self.grow_at is None:
                self._calm = FIRST_CALM
            self._grew = None
            self.grow_at = now + self._calm

    def may_grow(self, now: float) -> bool:
        return self.grow_at is not None and now >= self.grow_at and self.fault is None

    def note_growth(self, now: float, capacity: float) -> None:
        """Memory was taken back; `capacity` is the share that there is now."""
        self._grew = now
        self.grow_at = None if capacity >= 1 else now + self._calm

    def is_suspect(self, failures: int, capacity: float, *, lost: bool) -> bool:
        """Whether a self-test is due: `failures` in a row, `capacity` as a share, `lost` where a row ended for lack of
        memory.
        """
        return lost or failures >= MOST_FAILURES or capacity < LEAST_CAPACITY

    def note_proof(self, now: float, error: str | None) -> None:
        """A self-test is over; `error`: what was wrong."""
        self.fault = error
        self._rest = min(max(2 * self._rest, FIRST_REST), LONGEST_REST) if error is not None else 0.0
        self.resume = now + self._rest

    def wakes_at(self, *, idle: bool) -> float | None:
        """When an executor must act without a command; None for never. `idle`: it has no rows."""
        if self.fault is not None or not idle:
            return self.resume
        return self.grow_at


LEAST_LENGTH = 4  # tokens of the shortest prompt of a self-test


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows of a failed action, and tokens of its longest prompt (0 for decode steps)."""

    rows: int = 1
    length: int = 0

    @classmethod
    def from_rows(cls, action: Action, rows: Collection[RowT]) -> Shape:
        return cls(len(rows), max((row.length for row in rows), default=0) if action is Action.PREFILL else 0)

    def proof(self, most_tokens: int, scope: str) -> list[RowSpec]:
        """Self-test rows of this shape: prefilled, joined and decoded."""
        prompt = (0,) * max(LEAST_LENGTH, min(self.length, most_tokens))
        sampling = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
        return [RowSpec(-1 - row, prompt, sampling, cache_scope=scope) for row in range(self.rows)]
