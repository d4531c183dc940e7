"""Device health: pauses, self-tests, growing memory back. Pure; seconds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from engine.device import Action, RowT
from engine.messages import RowSpec
from engine.sampling.params import SamplingParams

MOST_FAILURES = 3  # in a row, before a self-test

LEAST_CAPACITY = 0.1  # least share of KV memory without one

FIRST_CAPACITY = 0.25  # share for a self-test

FIRST_PAUSE, LONGEST_PAUSE = 0.01, 1.0  # after running out of memory, doubling

FIRST_REST, LONGEST_REST = 1.0, 30.0  # after a failed self-test, doubling

FIRST_CALM, LONGEST_CALM = 5.0, 300.0  # until memory grows back, doubling after a shortage


class DeviceHealth:
    def __init__(self) -> None:
        self.fault: str | None = None
        self.resume = 0.0  # next turn or self-test
        self.grow_at: float | None = None  # None while none is missing
        self._pause = 0.0
        self._rest = 0.0
        self._calm = FIRST_CALM
        self._grew: float | None = None  # until a shortage follows

    def note_turn(self, now: float, *, short: bool) -> None:
        """`short`: out of memory."""
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
        self._grew = now
        self.grow_at = None if capacity >= 1 else now + self._calm

    def is_suspect(self, failures: int, capacity: float, *, lost: bool) -> bool:
        """Self-test due, for `failures`, low `capacity`, or a row `lost` to a lack of memory."""
        return lost or failures >= MOST_FAILURES or capacity < LEAST_CAPACITY

    def note_proof(self, now: float, error: str | None) -> None:
        self.fault = error
        self._rest = min(max(2 * self._rest, FIRST_REST), LONGEST_REST) if error is not None else 0.0
        self.resume = now + self._rest

    def wakes_at(self, *, idle: bool) -> float | None:
        """None for never; `idle`: no rows."""
        return self.grow_at if idle and self.fault is None else self.resume


LEAST_LENGTH = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a failed action; 0 for decode."""

    rows: int = 1
    length: int = 0

    @classmethod
    def from_rows(cls, action: Action, rows: Collection[RowT]) -> Shape:
        return cls(len(rows), max((row.length for row in rows), default=0) if action is Action.PREFILL else 0)

    def proof(self, most_tokens: int, scope: str) -> list[RowSpec]:
        prompt = (0,) * max(LEAST_LENGTH, min(self.length, most_tokens))
        sampling = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
        return [RowSpec(-1 - row, prompt, sampling, cache_scope=scope) for row in range(self.rows)]
