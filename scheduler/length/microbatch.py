"""The way from the event loop to a predictor and back: requests that arrive while it works go to it together.

It owns the time limit and what stands in for a prediction. A request that is not answered in time goes on with the
fallback, and gets its estimate while it queues or runs. It knows neither embeddings nor processes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

from scheduler.length.features import LengthQuery
from scheduler.length.learning import LengthHistory
from scheduler.length.prediction import Answer, Estimate, LengthPredictor, Prediction, Source, prediction_of

log = logging.getLogger(__name__)

TIME_LIMIT = 0.01
"""Seconds that a request waits for its prediction before it goes on with the fallback."""

BATCH = 16
"""Requests that the predictor is given at a time. When more are still to be predicted, a new one does not wait."""

IDLE_BATCH = 4
"""Requests that the predictor is given at a time when none waits for it, so that one which comes then hardly waits."""

IDLE_SHARE = 0.25
"""Part of its time that the predictor spends on requests that do not wait, where the model computes on the same cores:
running rows should not stand still while a thousand new requests are predicted."""

MOST_ASKED = 4096
"""Requests that are still to be predicted; more get the fallback."""

MOST_FAILURES = 2
"""Failures in a row before the predictor pauses: a process that cannot start costs seconds."""

LONGEST_PAUSE = 60.0
"""Seconds of the longest pause; pauses begin with one second and double with each failure."""

DOUBLINGS = 6
"""Times that a pause doubles at most."""


_Asked: TypeAlias = tuple[LengthQuery, Answer]


class MicroBatcher:
    """Predicts lengths in small batches. Event loop only; `run` must run as long as predictions are wanted."""

    def __init__(
        self,
        predictor: LengthPredictor,
        history: LengthHistory,
        *,
        time_limit: float = TIME_LIMIT,
        idle_share: float = IDLE_SHARE,
        observe: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """`idle_share` is the part of its time, 1 at most, that the predictor spends on requests that do not wait;
        `observe` is called with the seconds that each request waited here.
        """
        self.sources: Counter[Source] = Counter()
        """Number of predictions from each source."""
        self.timeouts = 0
        """Requests that went on without a prediction because it took too long, or the predictor keeps failing."""
        self.failures = 0
        """Times that the predictor failed to answer."""
        self._failures_in_row = 0
        self._history = history
        self._observe = observe
        self._predictor = predictor
        self._time_limit = time_limit
        self._idle_share = idle_share
        self._asked: list[_Asked] = []  # of these the newest are served first: they may be in time yet
        self._waiting = 0  # requests that have not gone on
        self._rest_until = 0.0  # requests that do not wait are not predicted before; times are the event loop's,
        self._paused_until = 0.0  # and none is before that
        self._arrived = asyncio.Event()

    async def predict(self, query: LengthQuery) -> Prediction:
        """The predicted length, after `time_limit` seconds at most; never raises what the predictor raises."""
        loop = asyncio.get_running_loop()
        begun, answer = loop.time(), None
        if begun >= self._paused_until and len(self._asked) < MOST_ASKED:
            answer = loop.create_future()
            self._asked.append((query, answer))
            self._arrived.set()
        if answer is None or len(self._asked) > BATCH:
            self.timeouts += 1
        else:
            await self._wait_for(answer)
        estimate, late = (answer.result(), None) if answer is not None and answer.done() else (None, answer)
        prediction = self._conclude(query, estimate, late)
        self._observe(loop.time() - begun)
        self.sources[prediction.source] += 1
        return prediction

    async def run(self) -> None:
        """Serve the predictor with batches until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            hurries = self._waiting > 0 and len(self._asked) <= BATCH
            rest = max(self._paused_until, 0.0 if hurries else self._rest_until) - loop.time()
            if not self._asked or rest > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(rest if self._asked else None):
                        await self._arrived.wait()
                self._arrived.clear()
                continue
            begun = loop.time()
            await self._serve(self._take(BATCH if hurries else IDLE_BATCH))
            self._rest_until = loop.time() + (1 / self._idle_share - 1) * (loop.time() - begun)

    async def _wait_for(self, answer: Answer) -> None:
        self._waiting += 1
        try:
            await asyncio.wait((answer,), timeout=self._time_limit)
        except asyncio.CancelledError:
            answer.cancel()
            raise
        finally:
            self._waiting -= 1
        self.timeouts += not answer.done()

    def _take(self, most: int) -> list[_Asked]:
        """The newest requests, in the order of their arrival, without those that have ended."""
        batch: list[_Asked] = []
        while self._asked and len(batch) < most:
            query, answer = self._asked.pop()
            if not answer.done():
                batch.append((query, answer))
        return batch[::-1]

    async def _serve(self, batch: list[_Asked]) -> None:
        if not batch:
            return
        estimates: Sequence[Estimate | None]
        try:
            found = await self._predictor.estimate([query for query, _ in batch])
            estimates = _check(found, len(batch))
            self._failures_in_row, self._paused_until = 0, 0.0
        except Exception as error:
            self._fail(error)
            estimates = [None] * len(batch)
        for (_, answer), estimate in zip(batch, estimates, strict=True):
            if not answer.done():
                answer.set_result(estimate)

    def _fail(self, error: Exception) -> None:
        """Count a failure, and pause after some in a row."""
        if self._failures_in_row == 0:
            log.warning("the length predictor failed, requests go on with the fallback", exc_info=error)
        self.failures += 1
        self._failures_in_row += 1
        if self._failures_in_row > MOST_FAILURES:
            doublings = min(self._failures_in_row - MOST_FAILURES - 1, DOUBLINGS)
            self._paused_until = asyncio.get_running_loop().time() + min(LONGEST_PAUSE, 2.0**doublings)

    def _conclude(self, query: LengthQuery, estimate: Estimate | None, late: Answer | None) -> Prediction:
        """The prediction that an estimate means, or else the usual length of answers, or else the longest."""
        if estimate is not None and (prediction := prediction_of(query, estimate)) is not None:
            return prediction
        features = () if estimate is None else estimate.features
        usual = self._history.expect(query.scope, query.instruction)
        length, source = (query.max_tokens, Source.MAX_TOKENS) if usual is None else (usual, Source.HISTORY)
        return Prediction(min(length, query.max_tokens), source, features, late=late)


def _check(estimates: Sequence[Estimate], asked: int) -> Sequence[Estimate]:
    """The estimates, if there are as many as were asked for and their lengths can be; raises ValueError."""
    if len(estimates) != asked:
        raise ValueError(f"{len(estimates)} estimates for {asked} requests")
    for one in estimates:
        if one.distribution is not None and not one.distribution.is_possible:
            raise ValueError(f"no answer can have these lengths: {one.distribution}")
    return estimates
