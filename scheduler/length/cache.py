"""Lengths of answers to prompts that came before: a near-duplicate of one needs no predictor (SSJF, section 6).

A cache belongs to one served model, since another model's answers have other lengths. It knows neither how prompts are
embedded nor how lengths are predicted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from scheduler.length.features import FloatMatrix, LengthQuery
from scheduler.length.prediction import Estimate, LengthDistribution, LengthPredictor, Source
from scheduler.recent import Recent

CAPACITY = 4096
"""Prompts that are remembered: 19 MB of three of MiniLM's embeddings each."""

THRESHOLD = 0.98
"""Least cosine similarity of near-duplicates."""

TOLERANCE = 0.1
"""Most difference in prompt length, as a share of the longer: embedders do not read all of a long text."""

LEAST_NORM = 1e-12
"""Norm that an embedding counts for at least, so that none divides by zero."""

END = 200
"""Characters of the end of a prompt that are embedded by themselves: embedders read the beginning of a text only, and
rounds of one conversation begin alike."""

MOST_ASKED = 8192
"""Prompts whose embeddings are kept until their answers end; the oldest go first."""


class LengthCache:
    """The prompts looked up or answered last, and the true lengths of their answers. Event loop only."""

    def __init__(self, capacity: int = CAPACITY, threshold: float = THRESHOLD) -> None:
        """Raises ValueError for a capacity below 1 or a threshold outside (0, 1]."""
        if capacity < 1 or not 0 < threshold <= 1:
            raise ValueError(f"no length cache has capacity {capacity}, threshold {threshold}")
        self._capacity = capacity
        self._threshold = threshold
        self._directions: NDArray[np.float32] = np.empty((0, 0), dtype=np.float32)  # (capacity, dim), of length 1
        # By place in these, the one used last at the end: length of the prompt and of the answer, and the scope.
        self._answers: OrderedDict[int, tuple[int, int, str]] = OrderedDict()
        self.lookups = self.hits = 0

    def __len__(self) -> int:
        return len(self._answers)

    def find(self, embedding: NDArray[np.float32], prompt_length: int, scope: str = "") -> int | None:
        """The length in tokens of the latest answer to the scope's most similar prompt; None when none is similar
        enough.

        `embedding` (dim,) has any norm but zero; `prompt_length` is in a unit of the caller's choice, always the same.
        """
        place = self._nearest(_direction(embedding), prompt_length, scope)
        self.lookups, self.hits = self.lookups + 1, self.hits + (place is not None)
        if place is None:
            return None
        self._answers.move_to_end(place)
        return self._answers[place][1]

    def add(self, embedding: NDArray[np.float32], prompt_length: int, length: int, scope: str = "") -> None:
        """Remember an answer that has ended by itself after `length` tokens, in place of a near-duplicate's of the same
        scope."""
        direction = _direction(embedding)
        place = self._nearest(direction, prompt_length, scope)
        if place is not None:
            prompt_length, *_ = self._answers[place]
        else:
            if not self._answers:  # the first tells their dimension
                self._directions = np.zeros((self._capacity, len(direction)), dtype=np.float32)
            full = len(self._answers) == self._capacity
            place = self._answers.popitem(last=False)[0] if full else len(self._answers)
            self._directions[place] = direction
        self._answers[place] = prompt_length, length, scope
        self._answers.move_to_end(place)

    def _nearest(self, direction: NDArray[np.float32], prompt_length: int, scope: str) -> int | None:
        if not self._answers:
            return None
        similarities = self._directions[: len(self)] @ direction
        # Rounding must not tell a prompt from itself.
        near = np.flatnonzero(similarities >= self._threshold - 1e-6).tolist()
        alike = (place for place in near if self._is_alike(place, prompt_length, scope))
        return max(alike, key=similarities.__getitem__, default=None)

    def _is_alike(self, place: int, prompt_length: int, scope: str) -> bool:
        """Whether a prompt is one of this scope, and about as long as this."""
        other, _, its_scope = self._answers[place]
        return its_scope == scope and abs(other - prompt_length) <= TOLERANCE * max(other, prompt_length)


def _direction(embedding: NDArray[np.float32]) -> NDArray[np.float32]:
    norm = float(np.linalg.norm(embedding))
    if not norm > 0:
        raise ValueError("an embedding of length zero points nowhere")
    return np.asarray(embedding / norm, dtype=np.float32)


Embed: TypeAlias = Callable[[Sequence[str]], Awaitable[FloatMatrix]]
"""Embeds texts elsewhere, a batch at a time: texts -> (n, dim), in order; may raise anything."""


class CachedPredictor:
    """A LengthPredictor with a cache before it, so that near-duplicates never reach the predictor. Event loop only."""

    def __init__(self, predictor: LengthPredictor, embed: Embed, cache: LengthCache) -> None:
        self._predictor = predictor
        self._embed = embed
        self.cache = cache
        self._asked = Recent[LengthQuery, NDArray[np.float32]](MOST_ASKED)  # their embeddings

    async def estimate(self, queries: Sequence[LengthQuery]) -> Sequence[Estimate]:
        """One estimate for each query, in order; raises what the embedder and the predictor raise."""
        embeddings = await self._embeddings(queries)
        found = [self._look_up(query, vector) for query, vector in zip(queries, embeddings, strict=True)]
        unknown = [query for query, length in zip(queries, found, strict=True) if length is None]
        predicted = iter(await self._predictor.estimate(unknown) if unknown else ())
        return [next(predicted) if length is None else _known(length) for length in found]

    async def _embeddings(self, queries: Sequence[LengthQuery]) -> FloatMatrix:
        """(n, 3 dim): the instruction, and beginning and end of the user input, all of equal weight."""
        texts = [text for query in queries for text in (query.instruction, query.user_input, query.user_input[-END:])]
        vectors = await self._embed(texts)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.maximum(norms, LEAST_NORM), dtype=np.float32).reshape(len(queries), -1)

    def ended(self, query: LengthQuery, length: int) -> None:
        """Remember the answer to a query, which has ended by itself after `length` tokens."""
        embedding = self._asked.get(query)
        if embedding is not None:  # else it was asked too long ago
            self.cache.add(embedding, _prompt_length(query), length, query.scope)

    def _look_up(self, query: LengthQuery, embedding: NDArray[np.float32]) -> int | None:
        self._asked[query] = embedding
        return self.cache.find(embedding, _prompt_length(query), query.scope)


def _known(length: int) -> Estimate:
    return Estimate((), LengthDistribution.certain(length), Source.CACHE)


def _prompt_length(query: LengthQuery) -> int:
    """A measure of how long the prompt is; the cache compares it with others' only."""
    return len(query.instruction) + len(query.user_input)
