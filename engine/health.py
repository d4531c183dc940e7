"""The health of one device, judged by what its turns brought: when it pauses, when its rows must go, when it takes
memory back; and the rows by which it proves itself. Pure: time is passed in, in seconds of any clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from engine.device import Action, RowT
from engine.messages import RowSpec
from engine.sampling.params import SamplingParams

MOST_FAILURES = 3
"""Actions of one kind that may fail in a row before the device must prove itself."""

LEAST_CAPACITY = 0.1
"""Part of its memory for K and V below which a device must prove itself."""

FIRST_CAPACITY = 0.25
"""Part of its memory for K and V with which a device proves itself."""

FIRST_PAUSE, LONGEST_PAUSE = 0.01, 1.0
"""Seconds from a shortage of memory to the next turn, twice as many after each further one in a row."""

FIRST_REST, LONGEST_REST = 1.0, 30.0
"""Seconds from a failed proof to the next, twice as many after each further one."""

FIRST_CALM, LONGEST_CALM = 5.0, 300.0
"""Seconds without a shortage after which memory is taken back, twice as many where that led to the next shortage."""


class Health:
    """Judges a device by its turns: whether it takes rows, and how much memory for K and V it may have."""

    def __init__(self) -> None:
        self.fault: str | None = None
        """Why the device takes no rows; None while it does."""
        self.resume = 0.0
        """When the next turn, or the next proof, may begin."""
        self.grow_at: float | None = None
        """When memory shall be taken back; None while none is missing."""
        self._pause = 0.0
        self._rest = 0.0
        self._calm = FIRST_CALM
        self._grew: float | None = None  # when memory was taken back last, until a shortage follows

    def note_turn(self, now: float, *, short: bool) -> None:
        """A turn is over; `short`: the device ran out of memory in it."""
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
        """Whether memory is missing that shall be taken back now."""
        return self.grow_at is not None and now >= self.grow_at and self.fault is None

    def note_growth(self, now: float, capacity: float) -> None:
        """Memory was taken back, and `capacity` is the part of it that there is now."""
        self._grew = now
        self.grow_at = None if capacity >= 1 else now + self._calm

    def is_suspect(self, failures: int, capacity: float, *, lost: bool) -> bool:
        """Whether a device must prove itself, after so many failures in a row and with this part of its memory left;
        `lost`: a row has ended for lack of memory."""
        return lost or failures >= MOST_FAILURES or capacity < LEAST_CAPACITY

    def note_proof(self, now: float, error: str | None) -> None:
        """A proof is over; `error`: what was wrong."""
        self.fault = error
        self._rest = min(max(2 * self._rest, FIRST_REST), LONGEST_REST) if error is not None else 0.0
        self.resume = now + self._rest

    def wakes_at(self, *, idle: bool) -> float | None:
        """When an executor has something to do though no command comes; None for never. `idle`: it has no rows."""
        if self.fault is not None or not idle:
            return self.resume
        return self.grow_at


LEAST_LENGTH = 4
"""Tokens of the shortest prompt."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The rows of an action that failed, and the tokens of its longest prompt, where prompts were read."""

    rows: int = 1
    length: int = 0

    @classmethod
    def from_rows(cls, action: Action, rows: Collection[RowT]) -> Shape:
        """The shape of an action on these rows. A decode step computes one column of each, however long that is."""
        return cls(len(rows), max((row.length for row in rows), default=0) if action is Action.PREFILL else 0)

    def proof(self, most_tokens: int, scope: str) -> list[RowSpec]:
        """Rows of this shape, with prompts of at most `most_tokens`: they are read, join the batch, and are decoded."""
        prompt = (0,) * max(LEAST_LENGTH, min(self.length, most_tokens))
        sampling = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
        return [RowSpec(-1 - row, prompt, sampling, cache_scope=scope) for row in range(self.rows)]
