"""A request's features made of the served model's own token embeddings: a look into a table, no second model.

It knows neither where the embeddings come from nor how the numbers are used.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.length.features import FloatMatrix, compress

GROUPS = 16
"""Numbers that a token's embedding is compressed to, at most."""

OPENING = 8
"""Tokens at the beginning of a request that count by themselves: they name the task."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenFeatures:
    """A table of compressed token embeddings, and the features that requests have by it.

    features, (2 groups + 1,):  | mean of all tokens | mean of the opening | number of tokens |
    """

    table: FloatMatrix
    """(vocabulary, groups)"""
    digest: float
    """A number of 24 bits that tells tables apart, which a journal can keep as one more feature."""

    @classmethod
    def of(cls, embeddings: Iterable[FloatMatrix]) -> TokenFeatures:
        """Compress token embeddings, parts of (tokens, hidden) in the order of their ids."""
        parts = [compress(part, min(GROUPS, part.shape[1])) for part in embeddings]
        table = np.ascontiguousarray(np.concatenate(parts))
        return cls(table, float(zlib.crc32(table.tobytes()) & 0xFFFFFF))

    def read(self, tokens: Sequence[int]) -> tuple[float, ...]:
        """Features of a request whose text, without the chat template, has these tokens.

        Compressing is linear, so the mean of compressed embeddings is the compressed mean. Raises IndexError for a
        token that has no embedding.
        """
        if not tokens:
            return (0.0,) * int(2 * self.table.shape[1] + 1)
        rows = self.table[np.array(tokens, dtype=np.intp)]
        return (*rows.mean(axis=0).tolist(), *rows[:OPENING].mean(axis=0).tolist(), float(len(tokens)))
