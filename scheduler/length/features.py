"""A request's features for the forest (Magnus, III-B), by a sentence embedder or the model's own embeddings."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

FloatMatrix = NDArray[np.float32]

INSTRUCTION_GROUPS = 4
INPUT_GROUPS = 16  # dimensions of a compressed embedding (III-B)

FEATURES = INSTRUCTION_GROUPS + INPUT_GROUPS + 1


class Ablation(StrEnum):
    """Features a predictor sees (Table II)."""

    UILO = "UILO"  # the user input length; nothing is learned
    RAFT = "RAFT"  # the user input length, and a forest for each task
    INST = "INST"  # and the instruction's embedding
    USIN = "USIN"  # and the user input's embedding: Magnus itself


@dataclass(frozen=True, slots=True)
class LengthQuery:
    instruction: str
    user_input: str
    user_input_length: int  # UIL, in tokens of the served model
    max_tokens: int
    tokens: tuple[int, ...] = ()  # of both texts, without the chat template
    scope: str = ""  # scopes share nothing
    answers: int = 1  # in one request; a length is of one of them

    @property
    def conversation(self) -> str:
        """All turns as one text; SSJF's proxy reads its end (3.1)."""
        return f"{self.instruction}\n{self.user_input}" if self.instruction else self.user_input


def compress(embeddings: FloatMatrix, groups: int) -> FloatMatrix:
    """(n, dim) -> (n, groups): sums of neighbours over the root of the group's size. Raises ValueError for few dim."""
    dim = embeddings.shape[1]
    if dim < groups:
        raise ValueError(f"an embedding of {dim} values cannot be cut into {groups} groups")
    edges = np.linspace(0, dim, groups + 1).round().astype(np.intp)
    return np.asarray(np.add.reduceat(embeddings, edges[:-1], axis=1) / np.sqrt(np.diff(edges)), dtype=np.float32)


def assemble(instructions: FloatMatrix, inputs: FloatMatrix, user_input_lengths: NDArray[np.float32]) -> FloatMatrix:
    """Two embeddings (n, dim) and UIL (n,) -> (n, FEATURES)."""
    parts = (compress(instructions, INSTRUCTION_GROUPS), compress(inputs, INPUT_GROUPS))
    return np.ascontiguousarray(np.column_stack((*parts, user_input_lengths)), dtype=np.float32)


def select(features: FloatMatrix, ablation: Ablation) -> FloatMatrix:
    """The user input length last."""
    if ablation is Ablation.USIN:
        return features
    if ablation is Ablation.INST:
        return np.ascontiguousarray(np.delete(features, np.s_[INSTRUCTION_GROUPS:-1], axis=1))
    return np.ascontiguousarray(features[:, -1:])


GROUPS = 16  # dimensions of a token's compressed embedding

OPENING = 8  # first tokens, which name the task


@dataclass(frozen=True, slots=True, eq=False)
class TokenFeatures:
    """(2 groups + 1,): mean of all tokens, of the opening, number of tokens."""

    table: FloatMatrix  # (vocabulary, groups)
    digest: float  # 24 bits of the table, one more feature in the journal

    @property
    def width(self) -> int:
        return int(2 * self.table.shape[1] + 1)

    @classmethod
    def of(cls, embeddings: Iterable[FloatMatrix]) -> TokenFeatures:
        """From parts of (tokens, hidden), ordered by id."""
        parts = [compress(part, min(GROUPS, part.shape[1])) for part in embeddings]
        table = np.ascontiguousarray(np.concatenate(parts))
        return cls(table, float(zlib.crc32(table.tobytes()) & 0xFFFFFF))

    @classmethod
    def hashed(cls, size: int) -> TokenFeatures:
        """Fixed random numbers for `size` word hashes, without a model."""
        return cls.of([np.random.default_rng(0).standard_normal((size, GROUPS), dtype=np.float32)])

    def read(self, tokens: Sequence[int]) -> tuple[float, ...]:
        """Means of compressed embeddings, as compressing is linear. Raises IndexError for an unknown token."""
        if not tokens:
            return (0.0,) * self.width
        rows = self.table[np.array(tokens, dtype=np.intp)]
        return (*rows.mean(axis=0).tolist(), *rows[:OPENING].mean(axis=0).tolist(), float(len(tokens)))
