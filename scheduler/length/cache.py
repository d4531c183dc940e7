"""Lengths of answers to earlier prompts: a near-duplicate needs no predictor (SSJF, 6)."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from models.recent import Recent
from scheduler.length.features import FloatMatrix, LengthQuery
from scheduler.length.prediction import Estimate, LengthDistribution, LengthPredictor, Source

CAPACITY = 4096  # prompts: 19 MB with three MiniLM embeddings each

THRESHOLD = 0.98  # least cosine similarity of near-duplicates

TOLERANCE = 0.1  # relative, in prompt length: embedders truncate long texts

LEAST_NORM = 1e-12

END = 200  # last characters, embedded separately: embedders truncate, and turns of a conversation begin alike

MOST_ASKED = 8192  # embeddings kept until answers end


class LengthCache:
    """Of one served model. Event loop only."""

    def __init__(self, capacity: int = CAPACITY, threshold: float = THRESHOLD) -> None:
        self._capacity = capacity
        self._threshold = threshold
        self._directions: NDArray[np.float32] = np.empty((0, 0), dtype=np.float32)  # (capacity, dim), of length 1
        # by row: prompt length, answer length and scope; least recently used first
        self._answers: OrderedDict[int, tuple[int, int, str]] = OrderedDict()
        self.lookups = self.hits = 0

    def __len__(self) -> int:
        return len(self._answers)

    def find(self, embedding: NDArray[np.float32], prompt_length: int, scope: str = "") -> int | None:
        """Tokens of the latest answer to the scope's most similar prompt, or None; `embedding` is (dim,)."""
        place = self._nearest(_direction(embedding), prompt_length, scope)
        self.lookups, self.hits = self.lookups + 1, self.hits + (place is not None)
        if place is None:
            return None
        self._answers.move_to_end(place)
        return self._answers[place][1]

    def add(self, embedding: NDArray[np.float32], prompt_length: int, length: int, scope: str = "") -> None:
        """Replaces a near-duplicate of the same scope."""
        direction = _direction(embedding)
        place = self._nearest(direction, prompt_length, scope)
        if place is not None:
            prompt_length, *_ = self._answers[place]
        else:
            if not self._answers:
                self._directions = np.zeros((self._capacity, len(direction)), dtype=np.float32)
            place = self._answers.popitem(last=False)[0] if len(self) == self._capacity else len(self)
            self._directions[place] = direction
        self._answers[place] = prompt_length, length, scope
        self._answers.move_to_end(place)

    def _nearest(self, direction: NDArray[np.float32], prompt_length: int, scope: str) -> int | None:
        if not self._answers:
            return None
        similarities = self._directions[: len(self)] @ direction
        # a prompt must not differ from itself by rounding
        near = np.flatnonzero(similarities >= self._threshold - 1e-6).tolist()
        answers = ((place, *self._answers[place]) for place in near)
        alike = (
            place
            for place, other, _, its_scope in answers
            if its_scope == scope and abs(other - prompt_length) <= TOLERANCE * max(other, prompt_length)
        )
        return max(alike, key=similarities.__getitem__, default=None)


def _direction(embedding: NDArray[np.float32]) -> NDArray[np.float32]:
    norm = float(np.linalg.norm(embedding))
    if not norm > 0:
        raise ValueError("an embedding of length zero points nowhere")
    return np.asarray(embedding / norm, dtype=np.float32)


Embed = Callable[[Sequence[str]], Awaitable[FloatMatrix]]  # texts -> (n, dim), in order; may raise anything


class CachedPredictor:
    """Near-duplicates never reach the predictor. Event loop only."""

    def __init__(self, predictor: LengthPredictor, embed: Embed, cache: LengthCache) -> None:
        self._predictor = predictor
        self._embed = embed
        self.cache = cache
        self._asked = Recent[LengthQuery, NDArray[np.float32]](MOST_ASKED)

    async def estimate(self, queries: Sequence[LengthQuery]) -> Sequence[Estimate]:
        """Raises what the embedder and the predictor raise."""
        # instruction, beginning and end of the user input, equally weighted: (n, 3 dim)
        texts = [text for query in queries for text in (query.instruction, query.user_input, query.user_input[-END:])]
        vectors = await self._embed(texts)
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), LEAST_NORM)
        embeddings = np.asarray(vectors, dtype=np.float32).reshape(len(queries), -1)
        self._asked.update(zip(queries, embeddings, strict=True))
        asked = zip(queries, embeddings, map(_prompt_length, queries), strict=True)
        found = [self.cache.find(vector, length, query.scope) for query, vector, length in asked]
        unknown = [query for query, length in zip(queries, found, strict=True) if length is None]
        predicted = iter(await self._predictor.estimate(unknown) if unknown else ())
        return [
            next(predicted) if length is None else Estimate((), LengthDistribution.certain(length), Source.CACHE)
            for length in found
        ]

    def ended(self, query: LengthQuery, length: int) -> None:
        """An answer ended by itself."""
        embedding = self._asked.get(query)
        if embedding is not None:
            self.cache.add(embedding, _prompt_length(query), length, query.scope)


def _prompt_length(query: LengthQuery) -> int:
    return len(query.instruction) + len(query.user_input)
