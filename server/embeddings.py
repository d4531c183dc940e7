"""Clients' embeddings from a process of its own, in pieces, so that calls take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from server.api.errors import ApiError, busy
from server.worker_process import Refusal, WorkerProcess

if TYPE_CHECKING:
    from models.embedder import Embedder

Ids = tuple[int, ...]
FloatMatrix = NDArray[np.float32]


class EmbeddingRefused(Refusal):
    """The client's error at the input `place`; None concerns all, or another `param`."""

    def __init__(self, message: str, place: int | None = None, code: str | None = None, param: str = "input") -> None:
        super().__init__(message, place, code, param)  # for pickling
        self.message, self.place, self.code, self.param = message, place, code, param


class EmbeddingWorker:
    def __init__(self, network: Embedder, name: str) -> None:
        self._network = network
        self._name = name

    def read(self, inputs: Sequence[str | Ids], begin: int = 0) -> tuple[Ids, ...]:
        """`begin`: the first one's place. Raises Refused."""
        texts = [one for one in inputs if isinstance(one, str)]
        split = iter(self._network.tokenize(texts) if texts else ())
        found = tuple(tuple(next(split)) if isinstance(one, str) else one for one in inputs)
        most, last = self._network.max_tokens, self._network.vocab_size - 1
        for place, (ids, given) in enumerate(zip(found, inputs, strict=True), begin):
            if len(ids) > most:
                message = f"has {len(ids)} tokens, but {self._name} reads {most}; shorten it"
                raise EmbeddingRefused(message, place, "context_length_exceeded")
            if min(ids, default=0) < 0 or max(ids, default=0) > last:
                told = f"has the token {max(ids)}, but " if isinstance(given, str) else ""
                raise EmbeddingRefused(f"{told}token ids of {self._name} go from 0 to {last}", place)
        return found

    def embed(self, ids: Sequence[Ids], dimensions: int | None) -> FloatMatrix:
        """Token ids -> (n, dim). Raises Refused."""
        if (dimensions or 0) > self._network.dimensions:
            raise EmbeddingRefused(f"{self._name} has {self._network.dimensions}; ask for fewer", param="dimensions")
        return self._network.encode_ids(ids, dimensions)


def make_embedding_worker(model: str, device: str) -> EmbeddingWorker:
    """`device` is the executors' --device."""
    from models.catalog.catalog import Catalog  # torch in this process only
    from server.lengths.process import load_embedder
    from server.predictor_cores import run_beside_executors

    run_beside_executors(device)
    return EmbeddingWorker(load_embedder(Catalog().resolve(model), WHOLE), Path(model).name)


WHOLE = 2**31  # beyond any network's limit


TIMEOUT = 60.0  # seconds for a piece

# inputs, letters and padded tokens of a piece, unless one input is larger
PIECE, PIECE_LETTERS, PIECE_TOKENS = 16, 2**16, 2048

MOST_LETTERS = 2**24  # letters or token ids that wait, except a lone call's

T = TypeVar("T", bound=Sized)


class TextEmbedder:
    """Event loop only."""

    def __init__(self, name: str, process: WorkerProcess, fetched: Callable[[], bool] = lambda: True) -> None:
        """`fetched` says whether the embedder is in the cache."""
        self.name = name
        self._fetched = fetched
        self._process = process
        self._waiting = 0

    async def embed(
        self, inputs: Sequence[str | Ids], dimensions: int | None, most_tokens: int
    ) -> tuple[FloatMatrix, int]:
        """Rows (n, dim), and tokens, `most_tokens` at most. Raises Refused, ApiError 429 and 503, and ProcessFailed."""
        if not self._process.running and not await asyncio.to_thread(self._fetched):
            message = f"{self.name} is not on this machine: run `lengthwise models pull {self.name}`, then try again"
            raise ApiError(503, message, code="model_not_fetched")
        with self._counted(sum(map(len, inputs))):
            ids = list[Ids]()
            for begin, piece in _pieces(inputs, PIECE_LETTERS):
                ids += await self._process.ask("read", piece, begin)
            tokens = sum(map(len, ids))
            if tokens > most_tokens:
                message = f"has {tokens} tokens, and a request may have {most_tokens}; send fewer at a time"
                raise EmbeddingRefused(message, code="too_many_tokens")
            order = sorted(range(len(ids)), key=lambda place: len(ids[place]))  # little padding
            pieces = _pieces([ids[place] for place in order], PIECE_TOKENS)
            rows = [await self._process.ask("embed", piece, dimensions) for _, piece in pieces]
            return np.concatenate(rows)[np.argsort(order)], tokens

    async def aclose(self) -> None:
        await asyncio.to_thread(self._process.close)

    @contextmanager
    def _counted(self, letters: int) -> Iterator[None]:
        if self._waiting and self._waiting + letters > MOST_LETTERS:
            raise busy("too many texts wait to be embedded; try again later", "queue_full", 1.0)
        self._waiting += letters
        try:
            yield
        finally:
            self._waiting -= letters


def _pieces(items: Sequence[T], most: int) -> Iterator[tuple[int, list[T]]]:
    """(first index, items), up to `most` with padding, one item at least."""
    begin, longest = 0, 0
    for place, item in enumerate(items):
        longest = max(longest, len(item))
        if place > begin and (place - begin == PIECE or (place - begin + 1) * longest > most):
            yield begin, list(items[begin:place])
            begin, longest = place, len(item)
    yield begin, list(items[begin:])
