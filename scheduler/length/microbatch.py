"""Micro-batches for a length predictor: a request without an answer in time takes the fallback, its estimate later."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field

from scheduler.length.features import LengthQuery
from scheduler.length.learning import LengthHistory
from scheduler.length.prediction import Answer, Estimate, LengthPredictor, Prediction, Source, prediction_of

log = logging.getLogger(__name__)

TIME_LIMIT = 0.01  # seconds that a request waits for its prediction

BATCH = 16  # with more pending a new request does not wait

IDLE_BATCH = 4  # small: who waits is soon served

IDLE_SHARE = 0.25  # of time for requests that do not wait, where cores are the model's too

MOST_ASKED = 4096  # pending requests; more get the fallback

MOST_FAILURES = 2  # in a row before a pause

LONGEST_PAUSE = 60.0  # seconds; from one, doubling with each failure

DOUBLINGS = 6


_Asked = tuple[LengthQuery, Answer]


@dataclass(eq=False)
class MicroBatcher:
    """Event loop only; requires `run`."""

    predictor: LengthPredictor
    history: LengthHistory
    _: KW_ONLY
    time_limit: float = TIME_LIMIT
    idle_share: float = IDLE_SHARE  # of time, 1 at most, for requests that do not wait
    observe: Callable[[float], None] = lambda seconds: None  # gets each request's seconds
    sources: Counter[Source] = field(default_factory=Counter)
    timeouts: int = 0  # requests without a prediction in time
    failures: int = 0
    _failures_in_row: int = 0
    _asked: list[_Asked] = field(default_factory=list)  # newest are served first: they may be in time
    _again: deque[_Asked] = field(default_factory=deque)  # when none is asked for the first time
    _waiting: int = 0
    _rest_until: float = 0.0  # event loop's time
    _paused_until: float = 0.0
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def predict(self, query: LengthQuery) -> Prediction:
        """Within `time_limit` seconds; never raises what the predictor raises."""
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
        self.observe(loop.time() - begun)
        self.sources[prediction.source] += 1
        return prediction

    def ask_again(self, query: LengthQuery) -> Answer:
        """The oldest beyond MOST_ASKED is given up."""
        if len(self._again) == MOST_ASKED:
            self._again.popleft()[1].cancel()
        self._again.append((query, answer := asyncio.get_running_loop().create_future()))
        self._arrived.set()
        return answer

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            hurries = self._waiting > 0 and len(self._asked) <= BATCH
            rest = max(self._paused_until, 0.0 if hurries else self._rest_until) - loop.time()
            asked = self._asked or self._again
            if not asked or rest > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(rest if asked else None):
                        await self._arrived.wait()
                self._arrived.clear()
                continue
            begun = loop.time()
            batch: list[_Asked] = []
            while asked and len(batch) < (BATCH if hurries else IDLE_BATCH):
                one = asked.pop()
                if not one[1].done():
                    batch.append(one)
            await self._serve(batch[::-1])
            self._rest_until = loop.time() + (1 / self.idle_share - 1) * (loop.time() - begun)

    async def _wait_for(self, answer: Answer) -> None:
        self._waiting += 1
        try:
            await asyncio.wait((answer,), timeout=self.time_limit)
        except asyncio.CancelledError:
            answer.cancel()
            raise
        finally:
            self._waiting -= 1
        self.timeouts += not answer.done()

    async def _serve(self, batch: list[_Asked]) -> None:
        if not batch:
            return
        estimates: Sequence[Estimate | None]
        try:
            estimates = found = await self.predictor.estimate([query for query, _ in batch])
            lengths = [one.distribution for one in found if one.distribution is not None]
            if len(found) != len(batch) or not all(one.is_possible for one in lengths):
                raise ValueError(f"{len(found)} estimates for {len(batch)} requests, or no answer can have: {lengths}")
            self._failures_in_row, self._paused_until = 0, 0.0
        except Exception as error:
            self._fail(error)
            estimates = [None] * len(batch)
        for (_, answer), estimate in zip(batch, estimates, strict=True):
            if not answer.done():
                answer.set_result(estimate)

    def _fail(self, error: Exception) -> None:
        if self._failures_in_row == 0:
            log.warning("the length predictor failed, requests go on with the fallback", exc_info=error)
        self.failures += 1
        self._failures_in_row += 1
        if self._failures_in_row > MOST_FAILURES:
            doublings = min(self._failures_in_row - MOST_FAILURES - 1, DOUBLINGS)
            self._paused_until = asyncio.get_running_loop().time() + min(LONGEST_PAUSE, 2.0**doublings)

    def _conclude(self, query: LengthQuery, estimate: Estimate | None, late: Answer | None) -> Prediction:
        if estimate is not None and (prediction := prediction_of(query, estimate)) is not None:
            return prediction
        features = () if estimate is None else estimate.features
        usual = self.history.expect(query.scope, query.instruction)
        length, source = (query.max_tokens, Source.MAX_TOKENS) if usual is None else (usual, Source.HISTORY)
        return Prediction(min(length, query.max_tokens), source, features, late=late)
