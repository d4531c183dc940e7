"""Lengths of answers to prompts that came before: a near-duplicate of one needs no predictor (SSJF, section 6).

It knows vectors and lengths; who embeds a prompt, and when, is the caller's business. One cache belongs to one served
model, since another model's answers have other lengths.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

CAPACITY = 4096
"""Prompts that are remembered: 19 MB of three of MiniLM's embeddings each."""

THRESHOLD = 0.98
"""Least cosine similarity of near-duplicates."""

TOLERANCE = 0.1
"""Most difference in prompt length, as a share of the longer: embedders do not read all of a long text."""


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """What became of lookups, and how far the remembered lengths were from what came."""

    lookups: int = 0
    hits: int = 0
    checked: int = 0
    """Hits whose answer has ended by itself since."""
    error: float = 0.0
    """Sum of their absolute errors, in tokens."""

    @property
    def hit_rate(self) -> float:
        """Share of lookups that found something; 0 before the first."""
        return self.hits / self.lookups if self.lookups else 0.0

    @property
    def mean_error(self) -> float | None:
        """Tokens; None before the first hit was checked."""
        return self.error / self.checked if self.checked else None


class LengthCache:
    """The prompts that were asked for or answered last, and the true lengths of their answers. Event loop only."""

    def __init__(self, capacity: int = CAPACITY, threshold: float = THRESHOLD, tolerance: float = TOLERANCE) -> None:
        """Raises ValueError for a capacity below 1, a threshold outside (0, 1] or a tolerance outside [0, 1]."""
        if capacity < 1 or not 0 < threshold <= 1 or not 0 <= tolerance <= 1:
            raise ValueError(f"no length cache has capacity {capacity}, threshold {threshold}, tolerance {tolerance}")
        self._capacity = capacity
        self._threshold = threshold
        self._tolerance = tolerance
        self._directions: NDArray[np.float32] = np.empty((0, 0), dtype=np.float32)  # (capacity, dim), of length 1
        self._prompts: NDArray[np.float32] = np.zeros(capacity, dtype=np.float32)
        self._answers: NDArray[np.float32] = np.zeros(capacity, dtype=np.float32)
        self._used: NDArray[np.int64] = np.zeros(capacity, dtype=np.int64)  # when each was used last, in uses
        self._uses = 0
        self._size = 0
        self._counts = CacheCounts()

    def __len__(self) -> int:
        return self._size

    @property
    def counts(self) -> CacheCounts:
        return self._counts

    def find(self, embedding: NDArray[np.float32], prompt_length: int) -> int | None:
        """The length in tokens of the latest answer to the most similar prompt; None when none is similar enough.

        `embedding` (dim,) has any norm but zero; `prompt_length` is in a unit of the caller's choice, always the same.
        """
        place = self._nearest(_direction(embedding), prompt_length)
        counts = self._counts
        self._counts = replace(counts, lookups=counts.lookups + 1, hits=counts.hits + (place is not None))
        if place is None:
            return None
        self._use(place)
        return int(self._answers[place])

    def add(self, embedding: NDArray[np.float32], prompt_length: int, length: int) -> None:
        """An answer has ended by itself after `length` tokens. It takes the place of a near-duplicate's."""
        direction = _direction(embedding)
        place = self._nearest(direction, prompt_length)
        if place is None:
            place = self._free()
            self._place_for(direction)[place] = direction
            self._prompts[place] = prompt_length
        self._answers[place] = length
        self._use(place)

    def check(self, remembered: int, length: int) -> None:
        """An answer whose length was taken from here has ended by itself after `length` tokens."""
        counts = self._counts
        error = counts.error + abs(remembered - length)
        self._counts = replace(counts, checked=counts.checked + 1, error=error)

    def _nearest(self, direction: NDArray[np.float32], prompt_length: int) -> int | None:
        if not self._size:
            return None
        similarities = self._place_for(direction)[: self._size] @ direction
        prompts = self._prompts[: self._size]
        alike = np.abs(prompts - prompt_length) <= self._tolerance * np.maximum(prompts, prompt_length)
        similarities = np.where(alike, similarities, -1.0)
        place = int(similarities.argmax())
        # Rounding must not tell a prompt from itself.
        return place if similarities[place] >= self._threshold - 1e-6 else None

    def _free(self) -> int:
        """A place for a new prompt: the next, or that of the one that was not used for longest."""
        if self._size < self._capacity:
            self._size += 1
            return self._size - 1
        return int(self._used.argmin())

    def _use(self, place: int) -> None:
        self._uses += 1
        self._used[place] = self._uses

    def _place_for(self, direction: NDArray[np.float32]) -> NDArray[np.float32]:
        """The table of directions, made when the first one tells their dimension."""
        if self._directions.shape[1] == 0:
            self._directions = np.zeros((self._capacity, len(direction)), dtype=np.float32)
        return self._directions


def _direction(embedding: NDArray[np.float32]) -> NDArray[np.float32]:
    norm = float(np.linalg.norm(embedding))
    if not norm > 0:
        raise ValueError("an embedding of length zero points nowhere")
    return np.asarray(embedding / norm, dtype=np.float32)
