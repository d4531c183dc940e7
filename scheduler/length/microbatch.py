"""The way from the event loop to the predictor and back: requests that arrive while it works go to it together.

It owns the time limit, the fallback and the counts of both. No request waits in vain: one that cannot be answered in
time goes on with the fallback at once, and is answered while it queues. One that need not queue does not wait at all,
and is answered when the predictor has nothing else to do. It knows neither embeddings nor processes.
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
from scheduler.length.prediction import Answer, Estimate, LengthPredictor, Prediction, Source, prediction_of

log = logging.getLogger(__name__)

TIME_LIMIT = 0.01
"""Seconds that a request waits for its prediction before it goes on with the fallback. It will queue, and what comes
later finds it there: so this is no more than a fast predictor needs, for a first place that is right at once."""

MOST_URGENT = 16
"""Requests that must queue, from which on none is urgent any more: none of them could be in time."""

IDLE_BATCH = 4
"""Requests that the predictor is given at a time where none is urgent, so that one which comes then hardly waits."""

IDLE_SHARE = 0.25
"""Part of its time that the predictor spends on requests that are not urgent, where the model computes on the same
cores: running rows should not stand still while a thousand new requests are predicted."""

MOST_ASKED = 4096
"""Requests of either kind that are still to be predicted; more get the fallback."""

RECENT_BATCHES = 9
"""Batches whose median tells how fast the predictor is: one that was held up by a new process does not count."""

MOST_FAILURES = 2
"""Failures in a row before the predictor pauses: a process that cannot start costs seconds."""

LONGEST_PAUSE = 60.0
"""Seconds of the longest pause; pauses begin with one second and double with each failure."""

DOUBLINGS = 6
"""Times that a pause doubles at most."""


@dataclass(slots=True, eq=False)
class _Asked:
    query: LengthQuery
    answer: Answer


class MicroBatcher:
    """Predicts lengths in small batches. Event loop only; `run` must run as long as predictions are wanted."""

    def __init__(
        self,
        predictor: LengthPredictor,
        history: LengthHistory,
        *,
        time_limit: float = TIME_LIMIT,
        most_urgent: int = MOST_URGENT,
        idle_share: float = IDLE_SHARE,
        observe: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """`idle_share` is the part of its time, 1 at most, that the predictor spends on requests that are not urgent;
        `observe` is called with the seconds that each request waited here.
        """
        self._predictor = predictor
        self._history = history
        self._time_limit = time_limit
        self._most_urgent = most_urgent
        self._idle_share = idle_share
        self._observe = observe
        self._urgent: deque[_Asked] = deque()
        self._not_urgent: deque[_Asked] = deque()
        self._working: list[_Asked] = []  # what the predictor has at the moment,
        self._since = 0.0  # and from when; times are the event loop's, as timeouts are
        self._speeds: deque[float] = deque(maxlen=RECENT_BATCHES)  # seconds per request
        self._rest_until = 0.0  # requests that are not urgent are not predicted before,
        self._paused_until = 0.0  # and none is before that
        self._failures_in_row = 0
        self._arrived = asyncio.Event()
        self._sources: Counter[Source] = Counter()
        self._timeouts = 0
        self._failures = 0
        self._declined = 0
        self._deferred = 0

    @property
    def sources(self) -> Mapping[Source, int]:
        """Number of predictions from each source."""
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
        """Requests that did not wait, because they could start at once."""
        return self._deferred

    @property
    def failures(self) -> int:
        """Batches that the predictor failed to answer."""
        return self._failures

    async def predict(self, query: LengthQuery, *, queues: bool = True) -> Prediction:
        """The predicted length, after `time_limit` seconds at most; never raises what the predictor raises.

        A request that need not queue has no use for it yet, and does not wait.
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
            if 0 < len(self._urgent) < self._most_urgent:
                await self._serve(_take(self._urgent, self._most_urgent))
            elif not (self._urgent or self._not_urgent):
                await self._wait(None)
            elif rest > 0:
                await self._wait(rest)
            else:
                await self._serve_when_idle()

    async def _ask(self, query: LengthQuery, queues: bool) -> Answer | None:
        """The answer that is there or may come; None when the predictor is not asked."""
        loop = asyncio.get_running_loop()
        queue = self._urgent if queues else self._not_urgent
        if loop.time() < self._paused_until or len(queue) >= MOST_ASKED:
            self._declined += 1
            return None
        hopeless = self._hopeless()
        answer: Answer = loop.create_future()
        queue.append(_Asked(query, answer))
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
        ahead = len(self._urgent) + len(self._working)
        return bool(self._speeds) and (ahead + 1) * median(self._speeds) - worked > self._time_limit

    async def _wait(self, seconds: float | None) -> None:
        """Wait for a request to arrive, so many seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        self._arrived.clear()

    async def _serve_when_idle(self) -> None:
        """Serve a few requests that are not urgent, and then let the predictor rest."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await self._serve(_take(self._urgent or self._not_urgent, IDLE_BATCH))
        self._rest_until = loop.time() + (1 / self._idle_share - 1) * (loop.time() - begun)

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
        self._speeds.append((loop.time() - self._since) / len(batch))
        self._working = []
        for asked, estimate in zip(batch, estimates, strict=True):
            if not asked.answer.done():
                asked.answer.set_result(estimate)

    def _fail(self, error: Exception, now: float) -> None:
        if self._failures_in_row == 0:
            log.warning("the length predictor failed, requests go on with the fallback", exc_info=error)
        self._failures += 1
        self._failures_in_row += 1
        if self._failures_in_row > MOST_FAILURES:
            doublings = min(self._failures_in_row - MOST_FAILURES - 1, DOUBLINGS)
            self._paused_until = now + min(LONGEST_PAUSE, 2.0**doublings)

    def _predicted(self, query: LengthQuery, answer: Answer | None) -> Prediction:
        late = None if answer is None or answer.done() else answer
        estimate = answer.result() if answer is not None and answer.done() and not answer.cancelled() else None
        features = () if estimate is None else estimate.features
        prediction = None if estimate is None else prediction_of(query, estimate)
        if prediction is not None:
            return prediction
        usual = self._history.expect(query.instruction)
        if usual is None:
            return Prediction(query.max_tokens, Source.MAX_TOKENS, features, late=late)
        return Prediction(min(usual, query.max_tokens), Source.HISTORY, features, late=late)


def _take(queue: deque[_Asked], most: int) -> list[_Asked]:
    """The next batch, without requests that have been answered or cancelled."""
    batch: list[_Asked] = []
    while queue and len(batch) < most:
        asked = queue.popleft()
        if not asked.answer.done():
            batch.append(asked)
    return batch
