"""The way from the event loop to the predictor and back: what arrives while it works goes to it together.

It owns the time limit, the fallback and the counts of both. It knows neither embeddings nor processes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from scheduler.length.distribution import LengthDistribution
from scheduler.length.features import LengthQuery
from scheduler.length.history import LengthHistory

log = logging.getLogger(__name__)

TIME_LIMIT = 1.0
"""Seconds that a request waits for its prediction before it goes on with the fallback."""

MAX_BATCH = 16
"""Requests that the predictor is given at a time: small enough that one that arrives meanwhile need not wait long."""


class Source(StrEnum):
    """What a predicted length comes from."""

    FOREST = "forest"
    PROXY = "proxy"
    CACHE = "cache"
    """The answer to a near-duplicate that came before."""
    HISTORY = "history"
    """A quantile of the answers that ended lately."""
    MAX_TOKENS = "max_tokens"
    """The longest that the answer may become: nothing is known."""
    ORACLE = "oracle"
    """The length that the request brought along (design 7.3)."""


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """What the predictor makes of one request."""

    features: tuple[float, ...]
    """For the journal, which learning reads."""
    distribution: LengthDistribution | None
    """None as long as there is no forest."""
    source: Source = Source.FOREST
    """What the distribution comes from."""


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """G'(p) in tokens, the end token included, and where it comes from."""

    length: float
    source: Source
    features: tuple[float, ...] = ()
    """Empty where the predictor did not answer in time."""
    distribution: LengthDistribution | None = None


class LengthPredictor(Protocol):
    """Works elsewhere, a batch at a time; may raise anything."""

    async def estimate(self, queries: Sequence[LengthQuery]) -> Sequence[Estimate]:
        """One estimate for each query, in order."""
        ...


class Front:
    """Event loop only. `run` is to run as long as predictions are wanted."""

    def __init__(
        self,
        predictor: LengthPredictor,
        history: LengthHistory,
        *,
        time_limit: float = TIME_LIMIT,
        max_batch: int = MAX_BATCH,
    ) -> None:
        self._predictor = predictor
        self._history = history
        self._time_limit = time_limit
        self._max_batch = max_batch
        self._pending: deque[tuple[LengthQuery, asyncio.Future[Estimate]]] = deque()
        self._arrived = asyncio.Event()
        self._sources: Counter[Source] = Counter()
        self._timeouts = 0
        self._failures = 0

    @property
    def sources(self) -> Mapping[Source, int]:
        """How many predictions came from where."""
        return self._sources

    @property
    def timeouts(self) -> int:
        """Requests that went on without a prediction because it took too long."""
        return self._timeouts

    @property
    def failures(self) -> int:
        """Batches that the predictor failed to answer."""
        return self._failures

    async def predict(self, query: LengthQuery) -> Prediction:
        """The predicted length, after `time_limit` seconds at most; never raises for the predictor's sake."""
        prediction = self._predicted(query, await self._ask(query))
        self._sources[prediction.source] += 1
        return prediction

    async def run(self) -> None:
        """Serve the predictor with batches until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while batch := self._take():
                await self._serve(batch)

    async def _ask(self, query: LengthQuery) -> Estimate | None:
        future: asyncio.Future[Estimate] = asyncio.get_running_loop().create_future()
        self._pending.append((query, future))
        self._arrived.set()
        try:
            async with asyncio.timeout(self._time_limit):
                return await future
        except TimeoutError:
            self._timeouts += 1
        except PredictorFailed:
            pass
        return None

    def _take(self) -> list[tuple[LengthQuery, asyncio.Future[Estimate]]]:
        """The next batch, without those that nobody waits for any more."""
        batch: list[tuple[LengthQuery, asyncio.Future[Estimate]]] = []
        while self._pending and len(batch) < self._max_batch:
            query, future = self._pending.popleft()
            if not future.done():
                batch.append((query, future))
        return batch

    async def _serve(self, batch: list[tuple[LengthQuery, asyncio.Future[Estimate]]]) -> None:
        waiting = [future for _, future in batch]
        try:
            estimates = await self._predictor.estimate([query for query, _ in batch])
            answered = list(zip(waiting, estimates, strict=True))
        except Exception as error:
            self._fail(waiting, error)
            return
        for future, estimate in answered:
            if not future.done():
                future.set_result(estimate)

    def _fail(self, waiting: Sequence[asyncio.Future[Estimate]], error: Exception) -> None:
        if self._failures == 0:
            log.warning("the length predictor failed, requests go on with the fallback", exc_info=error)
        self._failures += 1
        for future in waiting:
            if not future.done():
                future.set_exception(PredictorFailed())

    def _predicted(self, query: LengthQuery, estimate: Estimate | None) -> Prediction:
        features = () if estimate is None else estimate.features
        if estimate is not None and estimate.distribution is not None:
            length = min(max(1.0, estimate.distribution.mean), query.max_tokens)
            return Prediction(length, estimate.source, features, estimate.distribution)
        usual = self._history.expect(query.instruction)
        if usual is None:
            return Prediction(query.max_tokens, Source.MAX_TOKENS, features)
        return Prediction(min(usual, query.max_tokens), Source.HISTORY, features)


class PredictorFailed(Exception):
    """The predictor gave no answer to a batch."""
