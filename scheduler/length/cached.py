"""A length predictor with a cache before it: near-duplicates of earlier prompts never reach the predictor.

It knows neither how prompts are embedded nor how lengths are predicted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scheduler.length.cache import LengthCache
from scheduler.length.distribution import LengthDistribution
from scheduler.length.features import FloatMatrix, LengthQuery
from scheduler.length.prediction import Estimate, LengthPredictor, Source

SHORTEST = 1e-12
"""So that no embedding of zero divides."""

END = 200
"""Characters of the end of a prompt that are embedded by themselves: embedders read the beginning of a text only, and
rounds of one conversation begin alike."""

UNDER_WAY = 8192
"""Prompts whose embeddings are kept until their answers end; the oldest go first."""


class TextEmbedder(Protocol):
    """Works elsewhere, a batch at a time; may raise anything."""

    async def embed(self, texts: Sequence[str]) -> FloatMatrix:
        """Texts -> (n, dim), in order."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    embedding: NDArray[np.float32]
    remembered: int | None


class CachedPredictor:
    """A LengthPredictor. Event loop only."""

    def __init__(self, predictor: LengthPredictor, embedder: TextEmbedder, cache: LengthCache) -> None:
        self._predictor = predictor
        self._embedder = embedder
        self._cache = cache
        self._asked: OrderedDict[LengthQuery, _Asked] = OrderedDict()

    async def estimate(self, queries: Sequence[LengthQuery]) -> Sequence[Estimate]:
        """One estimate for each query, in order; raises what the embedder and the predictor raise."""
        embeddings = await self._embeddings(queries)
        asked = [self._look_up(query, vector) for query, vector in zip(queries, embeddings, strict=True)]
        unknown = [query for query, one in zip(queries, asked, strict=True) if one.remembered is None]
        predicted = iter(await self._predictor.estimate(unknown) if unknown else ())
        return [next(predicted) if one.remembered is None else _known(one.remembered) for one in asked]

    async def _embeddings(self, queries: Sequence[LengthQuery]) -> FloatMatrix:
        """(n, 3 dim): the instruction, and beginning and end of the user input, all of equal weight."""
        texts = [text for query in queries for text in (query.instruction, query.user_input, query.user_input[-END:])]
        vectors = await self._embedder.embed(texts)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.maximum(norms, SHORTEST), dtype=np.float32).reshape(len(queries), -1)

    def ended(self, query: LengthQuery, length: int) -> None:
        """The answer to a query has ended by itself after `length` tokens."""
        asked = self._asked.get(query)
        if asked is None:  # too long ago
            return
        if asked.remembered is not None:
            self._cache.check(asked.remembered, length)
        self._cache.add(asked.embedding, _prompt_length(query), length)

    def _look_up(self, query: LengthQuery, embedding: NDArray[np.float32]) -> _Asked:
        asked = _Asked(embedding, self._cache.find(embedding, _prompt_length(query)))
        self._asked[query] = asked
        self._asked.move_to_end(query)
        while len(self._asked) > UNDER_WAY:
            self._asked.popitem(last=False)
        return asked


def _known(length: int) -> Estimate:
    return Estimate((), LengthDistribution.certain(length), Source.CACHE)


def _prompt_length(query: LengthQuery) -> int:
    """A measure of how long the prompt is; the cache compares it with others' only."""
    return len(query.instruction) + len(query.user_input)
