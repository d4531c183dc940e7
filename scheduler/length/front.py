"""The way from the event loop to the predictor and back: what arrives while it works goes to it together.

It owns the time limit, the fallback and the counts of both. A request that could not be answered in time does not
wait in vain: it goes on with the fallback at once, and is predicted when nobody waits who still can be in time. It
knows neither embeddings nor processes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

from scheduler.length.features import LengthQuery
from scheduler.length.history import LengthHistory
from scheduler.length.prediction import Answer, Estimate, LengthPredictor, Prediction, Source, foreseen

log = logging.getLogger(__name__)

TIME_LIMIT = 0.25
"""Seconds that a request waits for its prediction before it goes on with the fallback. A lone request needs a few
hundredths, so this is for bursts: the time in which some dozens of them are predicted, and which nobody notices who has
to queue anyway."""

MAX_BATCH = 16
"""Requests that the predictor is given at a time: small enough that one that arrives meanwhile need not wait long."""

OVERDUE_BATCH = 4
"""The same of requests that have gone on: nobody waits for them, so one that arrives meanwhile should hardly."""

OVERDUE_SHARE = 0.25
"""Part of its time that the predictor spends on those. It computes where the model does, perhaps."""

MOST_OVERDUE = 4096
"""Requests that have gone on and are still to be predicted; of more, nothing but the fallback is known."""

PACES = 9
"""Batches whose median tells how fast the predictor is: one that was held up by a new process does not count."""

PATIENCE = 2
"""Failures in a row before the predictor is left alone for a while: a process that cannot start costs seconds."""

LONGEST_PAUSE = 60.0
"""Seconds; pauses grow from one second to this,"""

DOUBLINGS = 6
"""doubling so often."""


@dataclass(slots=True, eq=False)
class _Asked:
    query: LengthQuery
    answer: Answer
    overdue: bool = False
    """Whether the request has gone on."""


class Front:
    """Event loop only. `run` is to run as long as predictions are wanted."""

    def __init__(
        self,
        predictor: LengthPredictor,
        history: LengthHistory,
        *,
        time_limit: float = TIME_LIMIT,
        max_batch: int = MAX_BATCH,
        overdue_share: float = OVERDUE_SHARE,
        observe: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """`overdue_share` is the part of its time, 1 at most, that the predictor spends on requests that have gone on;
        `observe` is told how many seconds each request waited here.
        """
        self._predictor = predictor
        self._history = history
        self._time_limit = time_limit
        self._max_batch = max_batch
        self._overdue_share = overdue_share
        self._observe = observe
        self._pending: deque[_Asked] = deque()
        self._overdue: deque[_Asked] = deque()
        self._working: list[_Asked] = []  # what the predictor has at the moment,
        self._since = 0.0  # and from when; times are the event loop's, as timeouts are
        self._paces: deque[float] = deque(maxlen=PACES)  # seconds per request
        self._rest_until = 0.0  # requests that have gone on are not predicted before,
        self._paused_until = 0.0  # and nobody is before that
        self._failures_in_row = 0
        self._arrived = asyncio.Event()
        self._sources: Counter[Source] = Counter()
        self._timeouts = 0
        self._failures = 0
        self._declined = 0

    @property
    def sources(self) -> Mapping[Source, int]:
        """How many predictions came from where."""
        return self._sources

    @property
    def timeouts(self) -> int:
        """Requests that went on without a prediction because it took too long."""
        return self._timeouts

    @property
    def declined(self) -> int:
        """Requests that did not even wait, because it would have taken too long, or the predictor keeps failing."""
        return self._declined

    @property
    def failures(self) -> int:
        """Batches that the predictor failed to answer."""
        return self._failures

    async def predict(self, query: LengthQuery) -> Prediction:
        """The predicted length, after `time_limit` seconds at most; never raises for the predictor's sake."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        prediction = self._predicted(query, await self._ask(query))
        self._observe(loop.time() - asked)
        self._sources[prediction.source] += 1
        return prediction

    async def run(self) -> None:
        """Serve the predictor with batches until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            while batch := self._take():
                await self._serve(batch)
            resume = max(self._rest_until, self._paused_until)
            if self._overdue and loop.time() >= resume:
                await self._serve_overdue()
            else:
                await self._wait(resume - loop.time() if self._overdue else None)

    async def _ask(self, query: LengthQuery) -> Answer | None:
        """Where the answer is, or perhaps will be; None when nobody is asked."""
        loop = asyncio.get_running_loop()
        asked = _Asked(query, loop.create_future())
        if loop.time() < self._paused_until:
            self._declined += 1
            return None
        if self._hopeless():
            self._declined += 1
            self._postpone(asked)
            return asked.answer
        self._pending.append(asked)
        self._arrived.set()
        try:
            async with asyncio.timeout(self._time_limit):
                await asyncio.shield(asked.answer)
        except TimeoutError:
            self._timeouts += 1
            asked.overdue = True
        except asyncio.CancelledError:
            asked.answer.cancel()
            raise
        return asked.answer

    def _hopeless(self) -> bool:
        """Whether a request that came now would not have its prediction in time. One that is alone is always tried."""
        now = asyncio.get_running_loop().time()
        worked = now - self._since if self._working else 0.0
        if worked > self._time_limit:
            return True
        ahead = len(self._pending) + len(self._working)
        if not ahead or not self._paces:
            return False
        return (ahead + 1) * median(self._paces) - worked > self._time_limit

    def _postpone(self, asked: _Asked) -> None:
        """Predict it when nobody waits who can still be in time."""
        if len(self._overdue) < MOST_OVERDUE:
            self._overdue.append(asked)
            self._arrived.set()

    def _take(self) -> list[_Asked]:
        """The next batch, without those that nobody wants any more."""
        batch: list[_Asked] = []
        while self._pending and len(batch) < self._max_batch:
            asked = self._pending.popleft()
            if asked.overdue:
                self._postpone(asked)
            elif not asked.answer.done():
                batch.append(asked)
        return batch

    async def _wait(self, seconds: float | None) -> None:
        """For somebody who arrives, so many seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        self._arrived.clear()

    async def _serve_overdue(self) -> None:
        """A few of those that nobody waits for, and then let the predictor rest."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        if batch := self._take_overdue():
            await self._serve(batch)
        self._rest_until = loop.time() + (1 / self._overdue_share - 1) * (loop.time() - begun)

    def _take_overdue(self) -> list[_Asked]:
        batch: list[_Asked] = []
        while self._overdue and len(batch) < OVERDUE_BATCH:
            asked = self._overdue.popleft()
            if not asked.answer.done():
                batch.append(asked)
        return batch

    async def _serve(self, batch: list[_Asked]) -> None:
        loop = asyncio.get_running_loop()
        self._working, self._since = batch, loop.time()
        estimates: Sequence[Estimate | None]
        try:
            estimates = await self._predictor.estimate([asked.query for asked in batch])
            if len(estimates) != len(batch):
                raise ValueError(f"{len(estimates)} estimates for {len(batch)} requests")
            self._failures_in_row, self._paused_until = 0, 0.0
        except Exception as error:
            self._fail(error, loop.time())
            estimates = [None] * len(batch)
        self._paces.append((loop.time() - self._since) / len(batch))
        self._working = []
        for asked, estimate in zip(batch, estimates, strict=True):
            if not asked.answer.done():
                asked.answer.set_result(estimate)

    def _fail(self, error: Exception, now: float) -> None:
        if self._failures_in_row == 0:
            log.warning("the length predictor failed, requests go on with the fallback", exc_info=error)
        self._failures += 1
        self._failures_in_row += 1
        if self._failures_in_row > PATIENCE:
            doublings = min(self._failures_in_row - PATIENCE - 1, DOUBLINGS)
            self._paused_until = now + min(LONGEST_PAUSE, 2.0**doublings)

    def _predicted(self, query: LengthQuery, answer: Answer | None) -> Prediction:
        late = None if answer is None or answer.done() else answer
        estimate = answer.result() if answer is not None and answer.done() and not answer.cancelled() else None
        features = () if estimate is None else estimate.features
        prediction = None if estimate is None else foreseen(query, estimate)
        if prediction is not None:
            return prediction
        usual = self._history.expect(query.instruction)
        if usual is None:
            return Prediction(query.max_tokens, Source.MAX_TOKENS, features, late=late)
        return Prediction(min(usual, query.max_tokens), Source.HISTORY, features, late=late)
