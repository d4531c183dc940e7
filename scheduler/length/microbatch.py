"""The way from the event loop to the predictor and back: what arrives while it works goes to it together.

It owns the time limit, the fallback and the counts of both. Nobody waits in vain: who cannot be answered in time goes
on with the fallback at once, and is answered while it queues. Who need not queue does not wait at all, and is answered
when nobody else asks. It knows neither embeddings nor processes.
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

TIME_LIMIT = 0.01
"""Seconds that a request waits for its prediction before it goes on with the fallback. It will queue, and what comes
later finds it there: so this is no more than a fast predictor needs, for a first place that is right at once."""

CROWD = 16
"""Requests that must queue, from which on nobody is in a hurry any more: none of them could be in time."""

LEISURE_BATCH = 4
"""Requests that the predictor is given at a time where none is: so that one who comes then should hardly notice."""

LEISURE_SHARE = 0.25
"""Part of its time that the predictor spends on those, where the model computes on the same cores: rows that run should
not stand still while a thousand that have come are predicted."""

MOST_ASKED = 4096
"""Requests of either kind that are still to be predicted; of more, nothing but the fallback is known."""

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


class Front:
    """Event loop only. `run` is to run as long as predictions are wanted."""

    def __init__(
        self,
        predictor: LengthPredictor,
        history: LengthHistory,
        *,
        time_limit: float = TIME_LIMIT,
        crowd: int = CROWD,
        leisure_share: float = LEISURE_SHARE,
        observe: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """`leisure_share` is the part of its time, 1 at most, that the predictor spends on those that are in no hurry;
        `observe` is told how many seconds each request waited here.
        """
        self._predictor = predictor
        self._history = history
        self._time_limit = time_limit
        self._crowd = crowd
        self._leisure_share = leisure_share
        self._observe = observe
        self._pending: deque[_Asked] = deque()
        self._leisurely: deque[_Asked] = deque()
        self._working: list[_Asked] = []  # what the predictor has at the moment,
        self._since = 0.0  # and from when; times are the event loop's, as timeouts are
        self._paces: deque[float] = deque(maxlen=PACES)  # seconds per request
        self._rest_until = 0.0  # who is in no hurry is not predicted before,
        self._paused_until = 0.0  # and nobody is before that
        self._failures_in_row = 0
        self._arrived = asyncio.Event()
        self._sources: Counter[Source] = Counter()
        self._timeouts = 0
        self._failures = 0
        self._declined = 0
        self._deferred = 0

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
    def deferred(self) -> int:
        """Requests that did not wait, because nothing keeps them from starting."""
        return self._deferred

    @property
    def failures(self) -> int:
        """Batches that the predictor failed to answer."""
        return self._failures

    async def predict(self, query: LengthQuery, *, queues: bool = True) -> Prediction:
        """The predicted length, after `time_limit` seconds at most; never raises for the predictor's sake.

        One that need not queue has no use for it yet, and does not wait.
        """
        loop = asyncio.get_running_loop()
        asked = loop.time()
        prediction = self._predicted(query, await self._ask(query, queues))
        self._observe(loop.time() - asked)
        self._sources[prediction.source] += 1
        return prediction

    async def run(self) -> None:
        """Serve the predictor with batches until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            rest = max(self._rest_until, self._paused_until) - loop.time()
            if 0 < len(self._pending) < self._crowd:
                await self._serve(_take(self._pending, self._crowd))
            elif not (self._pending or self._leisurely):
                await self._wait(None)
            elif rest > 0:
                await self._wait(rest)
            else:
                await self._serve_at_leisure()

    async def _ask(self, query: LengthQuery, queues: bool) -> Answer | None:
        """Where the answer is, or perhaps will be; None when nobody is asked."""
        loop = asyncio.get_running_loop()
        line = self._pending if queues else self._leisurely
        if loop.time() < self._paused_until or len(line) >= MOST_ASKED:
            self._declined += 1
            return None
        hopeless = self._hopeless()
        answer: Answer = loop.create_future()
        line.append(_Asked(query, answer))
        self._arrived.set()
        if not queues:
            self._deferred += 1
        elif hopeless:
            self._declined += 1
        else:
            await self._wait_for(answer)
        return answer

    async def _wait_for(self, answer: Answer) -> None:
        try:
            async with asyncio.timeout(self._time_limit):
                await asyncio.shield(answer)
        except TimeoutError:
            self._timeouts += 1
        except asyncio.CancelledError:
            answer.cancel()
            raise

    def _hopeless(self) -> bool:
        """Whether a request that came now would not have its prediction in time."""
        now = asyncio.get_running_loop().time()
        worked = now - self._since if self._working else 0.0
        if worked > self._time_limit:
            return True
        ahead = len(self._pending) + len(self._working)
        return bool(self._paces) and (ahead + 1) * median(self._paces) - worked > self._time_limit

    async def _wait(self, seconds: float | None) -> None:
        """For somebody who arrives, so many seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        self._arrived.clear()

    async def _serve_at_leisure(self) -> None:
        """A few of those that are in no hurry, and then let the predictor rest."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await self._serve(_take(self._pending or self._leisurely, LEISURE_BATCH))
        self._rest_until = loop.time() + (1 / self._leisure_share - 1) * (loop.time() - begun)

    async def _serve(self, batch: list[_Asked]) -> None:
        if not batch:
            return
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


def _take(line: deque[_Asked], most: int) -> list[_Asked]:
    """The next batch, without those that nobody wants any more."""
    batch: list[_Asked] = []
    while line and len(batch) < most:
        asked = line.popleft()
        if not asked.answer.done():
            batch.append(asked)
    return batch
