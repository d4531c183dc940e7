"""A request's features for the forest: a few numbers made of two embeddings and a length (Magnus, section III-B).

It knows neither how texts are embedded nor how the numbers are used.

A request's features made of the served model's own token embeddings: a look into a table, no second model.

It knows neither where the embeddings come from nor how the numbers are used.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatMatrix: TypeAlias = NDArray[np.float32]

INSTRUCTION_GROUPS = 4
INPUT_GROUPS = 16
"""Numbers that an instruction's and a user input's embedding are compressed to (section III-B)."""

FEATURES = INSTRUCTION_GROUPS + INPUT_GROUPS + 1


class Ablation(StrEnum):
    """Which of the features a predictor sees (Table II)."""

    UILO = "UILO"
    """The user input length is the prediction; nothing is learned."""
    RAFT = "RAFT"
    """The user input length alone, and a forest for each task."""
    INST = "INST"
    """The instruction's embedding besides."""
    USIN = "USIN"
    """The user input's embedding besides: Magnus itself."""


@dataclass(frozen=True, slots=True)
class LengthQuery:
    """The texts and numbers that the length of an answer is predicted from."""

    instruction: str
    user_input: str
    user_input_length: int
    """UIL: tokens of `user_input`, as the served model counts them."""
    max_tokens: int
    """Tokens after which the answer is cut off: no prediction exceeds it."""
    tokens: tuple[int, ...] = ()
    """Tokens of both texts, without what the chat template puts around them."""
    scope: str = ""
    """Whose request it is: answers of one scope tell nothing of those of another."""

    @property
    def conversation(self) -> str:
        """All earlier prompts and answers and the new prompt as one text, of which SSJF's proxy reads the end (3.1)."""
        return f"{self.instruction}\n{self.user_input}" if self.instruction else self.user_input


def compress(embeddings: FloatMatrix, groups: int) -> FloatMatrix:
    """Embeddings (n, dim) -> (n, groups): sums of neighbouring values, each divided by the root of its group's size.

    Groups differ by one value in size where `groups` does not divide `dim`. Raises ValueError when there are fewer
    values than groups.
    """
    dim = embeddings.shape[1]
    if dim < groups:
        raise ValueError(f"an embedding of {dim} values cannot be cut into {groups} groups")
    edges = np.linspace(0, dim, groups + 1).round().astype(np.intp)
    sums = np.add.reduceat(embeddings, edges[:-1], axis=1)
    return np.asarray(sums / np.sqrt(np.diff(edges)), dtype=np.float32)


def assemble(instructions: FloatMatrix, inputs: FloatMatrix, user_input_lengths: NDArray[np.float32]) -> FloatMatrix:
    """Two embeddings (n, dim) and UIL (n,) of each request -> its features, (n, FEATURES), in that order."""
    parts = (compress(instructions, INSTRUCTION_GROUPS), compress(inputs, INPUT_GROUPS))
    return np.ascontiguousarray(np.column_stack((*parts, user_input_lengths)), dtype=np.float32)


def select(features: FloatMatrix, ablation: Ablation) -> FloatMatrix:
    """The columns that an ablation sees, the user input length last."""
    if ablation is Ablation.USIN:
        return features
    if ablation is Ablation.INST:
        return np.ascontiguousarray(np.delete(features, np.s_[INSTRUCTION_GROUPS:-1], axis=1))
    return np.ascontiguousarray(features[:, -1:])


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

    @property
    def width(self) -> int:
        """Number of features that `read` gives."""
        return int(2 * self.table.shape[1] + 1)

    @classmethod
    def of(cls, embeddings: Iterable[FloatMatrix]) -> TokenFeatures:
        """Compress token embeddings, parts of (tokens, hidden) in the order of their ids."""
        parts = [compress(part, min(GROUPS, part.shape[1])) for part in embeddings]
        table = np.ascontiguousarray(np.concatenate(parts))
        return cls(table, float(zlib.crc32(table.tobytes()) & 0xFFFFFF))

    @classmethod
    def hashed(cls, size: int) -> TokenFeatures:
        """Random numbers, always the same, for `size` hashes of words, where no model's embeddings are known."""
        table = np.random.default_rng(0).standard_normal((size, GROUPS), dtype=np.float32)
        return cls(table, float(zlib.crc32(table.tobytes()) & 0xFFFFFF))

    def read(self, tokens: Sequence[int]) -> tuple[float, ...]:
        """Features of a request whose text, without the chat template, has these tokens.

        Compressing is linear, so the mean of compressed embeddings is the compressed mean. Raises IndexError for a
        token that has no embedding.
        """
        if not tokens:
            return (0.0,) * self.width
        rows = self.table[np.array(tokens, dtype=np.intp)]
        return (*rows.mean(axis=0).tolist(), *rows[:OPENING].mean(axis=0).tolist(), float(len(tokens)))
