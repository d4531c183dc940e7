"""The rows by which a device proves itself after a fault: shaped like those that failed. Torch-free."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from engine.device import Action, RowT
from engine.messages import RowSpec
from engine.sampling.params import SamplingParams

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
