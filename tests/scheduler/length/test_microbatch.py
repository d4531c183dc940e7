"""The asynchronous front with a predictor that a test plays: batches, the time limit, the fallback, their counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import numpy as np
import pytest

from scheduler.length import microbatch as module
from scheduler.length.distribution import LengthDistribution
from scheduler.length.features import LengthQuery
from scheduler.length.history import LengthHistory
from scheduler.length.microbatch import MOST_FAILURES, MicroBatcher
from scheduler.length.prediction import Estimate, Prediction, Source

LONG = 60.0


def query(name: str = "input", *, max_tokens: int = 1000) -> LengthQuery:
    return LengthQuery("translate", name, 3, max_tokens)


def always(length: float) -> LengthDistribution:
    return LengthDistribution.of(np.array([length], dtype=np.float32), np.ones(1, dtype=np.float32))


class FakePredictor:
    """Answers once it may; every answer is 7 tokens long, and its features are its number."""

    def __init__(self, *, known: bool = True) -> None:
        self.batches: list[list[str]] = []
        self.may = asyncio.Event()
        self.error: Exception | None = None
        self.known = known
        self.short = 0
        """Estimates too few in each answer."""

    async def estimate(self, queries: Sequence[LengthQuery]) -> Sequence[Estimate]:
        self.batches.append([one.user_input for one in queries])
        await self.may.wait()
        if self.error is not None:
            raise self.error
        found = [Estimate((float(place),), always(7) if self.known else None) for place, _ in enumerate(queries)]
        return found[: len(found) - self.short]


@asynccontextmanager
async def running(front: MicroBatcher) -> AsyncIterator[None]:
    task = asyncio.create_task(front.run())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def settle() -> None:
    """Let everybody who can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_arrives_while_the_predictor_works_goes_to_it_together() -> None:
    predictor, waits = FakePredictor(), list[float]()
    front = MicroBatcher(predictor, LengthHistory(), time_limit=LONG, observe=waits.append)
    async with running(front):
        first = asyncio.create_task(front.predict(query("a")))
        await settle()
        others = [asyncio.create_task(front.predict(query(name))) for name in "bcdef"]
        await settle()
        assert predictor.batches == [["a"]]
        predictor.may.set()
        answers = await asyncio.gather(first, *others)
    assert predictor.batches == [["a"], ["b", "c", "d", "e", "f"]]
    assert [(one.length, one.source, one.features) for one in answers[:4]] == [
        (7, Source.FOREST, (0.0,)),
        (7, Source.FOREST, (0.0,)),
        (7, Source.FOREST, (1.0,)),
        (7, Source.FOREST, (2.0,)),
    ]
    assert front.sources == {Source.FOREST: 6}
    assert len(waits) == 6 and all(0 < wait < LONG for wait in waits)
    assert answers[0].distribution is not None and answers[0].distribution.remaining(2) == 5


async def test_after_the_time_limit_a_request_goes_on_with_the_fallback() -> None:
    predictor, history = FakePredictor(), LengthHistory()
    history.add("translate", 42)
    front = MicroBatcher(predictor, history, time_limit=0, idle_share=1)
    async with running(front):
        late = await front.predict(query())
        assert (late.length, late.source, late.features) == (42, Source.HISTORY, ())
    assert (front.timeouts, front.failures, front.sources) == (1, 0, {Source.HISTORY: 1})


async def test_requests_that_have_gone_on_are_not_predicted_any_more() -> None:
    predictor = FakePredictor()
    front = MicroBatcher(predictor, LengthHistory(), time_limit=LONG)
    async with running(front):
        busy = asyncio.create_task(front.predict(query("busy")))
        await settle()
        gone, kept = (asyncio.create_task(front.predict(query(name))) for name in ("gone", "kept"))
        await settle()
        gone.cancel()
        await settle()
        predictor.may.set()
        await asyncio.gather(busy, kept)
    assert predictor.batches == [["busy"], ["kept"]]


async def test_a_batch_whose_requests_are_gone_harms_nobody() -> None:
    predictor = FakePredictor()
    front = MicroBatcher(predictor, LengthHistory(), time_limit=LONG)
    async with running(front):
        gone = asyncio.create_task(front.predict(query("gone")))
        await settle()
        gone.cancel()
        predictor.may.set()
        assert (await front.predict(query())).source is Source.FOREST


@pytest.mark.parametrize("short", [0, 1])
async def test_a_predictor_that_fails_is_counted_and_asked_again(short: int, caplog: pytest.LogCaptureFixture) -> None:
    """With `short`, it does not raise, but answers fewer requests than it was asked about."""
    predictor = FakePredictor()
    predictor.may.set()
    predictor.short = short
    predictor.error = None if short else RuntimeError("broken")
    front = MicroBatcher(predictor, LengthHistory(), time_limit=LONG)
    async with running(front):
        answers = await asyncio.gather(front.predict(query(max_tokens=9)), front.predict(query(max_tokens=8)))
        assert [(one.length, one.source) for one in answers] == [(9, Source.MAX_TOKENS), (8, Source.MAX_TOKENS)]
        await front.predict(query())
        assert (front.failures, front.timeouts) == (2, 0)
        predictor.error, predictor.short = None, 0
        assert (await front.predict(query())).source is Source.FOREST
    assert caplog.text.count("the length predictor failed") == 1


async def test_what_comes_too_late_but_was_under_way_is_still_good_for_the_journal() -> None:
    predictor = FakePredictor()
    front = MicroBatcher(predictor, LengthHistory(), time_limit=0, idle_share=1)
    async with running(front):
        late = await front.predict(query())
        assert (late.source, late.features_by_now) == (Source.MAX_TOKENS, ())
        predictor.may.set()
        await settle()
        assert (late.features, late.features_by_now) == ((), (0.0,))


async def test_a_late_answer_that_never_comes_harms_nobody() -> None:
    predictor = FakePredictor()
    predictor.error = RuntimeError("broken")
    front = MicroBatcher(predictor, LengthHistory(), time_limit=0, idle_share=1)
    async with running(front):
        late = await front.predict(query())
        predictor.may.set()
        await settle()
    assert (late.features_by_now, front.failures) == ((), 1)


async def test_behind_a_batch_that_is_late_itself_nobody_waits() -> None:
    predictor = FakePredictor()
    front = MicroBatcher(predictor, LengthHistory(), time_limit=0)
    async with running(front):
        await front.predict(query("first"))
        assert (await front.predict(query("second"))).source is Source.MAX_TOKENS
        assert (front.timeouts, front.declined) == (1, 1)
        predictor.may.set()
        await settle()
        await front.predict(query("third"))
        await settle()
    assert predictor.batches == [["first"], ["second"], ["third"]]


async def test_who_need_not_queue_does_not_wait_and_is_predicted_when_nobody_does() -> None:
    """Of seven, the first is under way and five need not queue: they come last, and four at most at a time."""
    predictor = FakePredictor()
    front = MicroBatcher(predictor, LengthHistory(), time_limit=LONG, idle_share=1)
    async with running(front):
        busy = asyncio.create_task(front.predict(query("busy")))
        await settle()
        guesses = [await front.predict(query(name), queues=False) for name in "abcde"]
        assert {one.source for one in guesses} == {Source.MAX_TOKENS}
        assert (front.deferred, front.declined, front.timeouts) == (5, 0, 0)
        urgent = asyncio.create_task(front.predict(query("urgent")))
        await settle()
        predictor.may.set()
        await asyncio.gather(busy, urgent)
        await settle()
    assert predictor.batches == [["busy"], ["urgent"], ["a", "b", "c", "d"], ["e"]]
    answers = [one.late.result() for one in guesses if one.late is not None]
    assert len(answers) == 5 and all(answer is not None and answer.distribution is not None for answer in answers)


async def test_of_a_crowd_a_few_are_predicted_at_a_time_and_the_predictor_rests_in_between() -> None:
    """A day after a batch that took any time at all; what is left of the crowd is then one no more."""
    predictor = FakePredictor()
    predictor.may.set()
    front = MicroBatcher(predictor, LengthHistory(), time_limit=0, most_urgent=5, idle_share=1e-12)
    for name in "abcde":
        await front.predict(query(name))
    async with running(front):
        await settle()
        assert predictor.batches == [["a", "b", "c", "d"], ["e"]]
        await asyncio.gather(*(front.predict(query(name)) for name in "fghij"))
        await settle()
        assert predictor.batches == [["a", "b", "c", "d"], ["e"]]
        front._rest_until = 0.0
        front._arrived.set()
        await settle()
    assert predictor.batches[2:] == [["f", "g", "h", "i"], ["j"]]


async def test_between_requests_that_need_not_queue_the_predictor_rests() -> None:
    """A day after a batch that took any time at all; who has to queue meanwhile is predicted at once."""
    predictor = FakePredictor()
    front = MicroBatcher(predictor, LengthHistory(), time_limit=LONG, idle_share=1e-12)
    for name in "abcde":
        await front.predict(query(name), queues=False)
    predictor.may.set()
    async with running(front):
        await settle()
        assert predictor.batches == [["a", "b", "c", "d"]]
        assert (await front.predict(query("urgent"))).source is Source.FOREST
        await settle()
    assert predictor.batches == [["a", "b", "c", "d"], ["urgent"]]


async def test_who_ran_out_of_time_in_line_is_predicted_all_the_same() -> None:
    predictor = FakePredictor()
    front = MicroBatcher(predictor, LengthHistory(), time_limit=0)
    one, other = await asyncio.gather(front.predict(query("one")), front.predict(query("other")))
    assert (front.timeouts, front.declined) == (2, 0)
    predictor.may.set()
    async with running(front):
        await settle()
    assert predictor.batches == [["one", "other"]]
    assert one.late is not None and one.late.done() and other.late is not None and other.late.done()


@pytest.mark.parametrize("queues", [True, False])
async def test_who_went_on_and_has_ended_is_not_predicted_any_more(queues: bool) -> None:
    predictor = FakePredictor()
    front = MicroBatcher(predictor, LengthHistory(), time_limit=0)
    ended, kept = [await front.predict(query(name), queues=queues) for name in ("ended", "kept")]
    assert ended.late is not None
    ended.late.cancel()
    predictor.may.set()
    async with running(front):
        await settle()
    assert predictor.batches == [["kept"]]


@pytest.mark.parametrize("queues", [True, False])
async def test_of_too_many_that_are_asked_for_the_last_are_not_predicted(
    queues: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_ASKED", 2)
    predictor = FakePredictor()
    front = MicroBatcher(predictor, LengthHistory(), time_limit=0)
    *_, last = [await front.predict(query(name), queues=queues) for name in "abc"]
    assert (last.late, front.declined) == (None, 1)
    predictor.may.set()
    async with running(front):
        await settle()
    assert predictor.batches == [["a", "b"]]


@pytest.mark.parametrize(("pace", "declined"), [(29.0, 0), (31.0, 1)])
async def test_a_request_that_cannot_be_predicted_in_time_does_not_wait(pace: float, declined: int) -> None:
    """One is being predicted: with it, this one would take twice the usual time of one, of 60 s that there are."""
    predictor = FakePredictor()
    front = MicroBatcher(predictor, LengthHistory(), time_limit=LONG)
    front._speeds.append(pace)
    async with running(front):
        first = asyncio.create_task(front.predict(query("first")))
        await settle()
        second = asyncio.create_task(front.predict(query("second")))
        await settle()
        assert (second.done(), front.declined) == (bool(declined), declined)
        predictor.may.set()
        assert (await first).source is Source.FOREST
        await second


async def test_a_predictor_that_keeps_failing_is_left_alone_for_a_while() -> None:
    predictor = FakePredictor()
    predictor.may.set()
    predictor.error = RuntimeError("broken")
    front = MicroBatcher(predictor, LengthHistory(), time_limit=LONG)
    async with running(front):
        for _ in range(MOST_FAILURES + 1):
            await front.predict(query())
        assert (front.failures, front.declined) == (MOST_FAILURES + 1, 0)
        await front.predict(query())
        assert (front.failures, front.declined, len(predictor.batches)) == (MOST_FAILURES + 1, 1, MOST_FAILURES + 1)
        front._paused_until = 0.0  # the while is over
        predictor.error = None
        assert (await front.predict(query())).source is Source.FOREST


async def test_without_a_forest_the_features_still_come_back_for_the_journal() -> None:
    predictor = FakePredictor(known=False)
    predictor.may.set()
    front = MicroBatcher(predictor, LengthHistory(), time_limit=LONG)
    async with running(front):
        found = await front.predict(query(max_tokens=50))
    assert (found.length, found.source, found.features) == (50, Source.MAX_TOKENS, (0.0,))


@pytest.mark.parametrize(("max_tokens", "length"), [(1000, 7), (7, 7), (3, 3)])
async def test_no_prediction_exceeds_max_tokens(max_tokens: int, length: int) -> None:
    predictor, history = FakePredictor(), LengthHistory()
    predictor.may.set()
    history.add("translate", 7)
    front = MicroBatcher(predictor, history, time_limit=LONG)
    async with running(front):
        found: Prediction = await front.predict(query(max_tokens=max_tokens))
        predictor.known = False
        fallback = await front.predict(query(max_tokens=max_tokens))
    assert (found.length, fallback.length) == (length, length)


@pytest.mark.parametrize("pace", [1.0, 2 * LONG])
async def test_one_that_is_alone_waits_only_for_a_predictor_that_can_be_in_time(pace: float) -> None:
    predictor = FakePredictor()
    predictor.may.set()
    front = MicroBatcher(predictor, LengthHistory(), time_limit=LONG)
    front._speeds.append(pace)
    async with running(front):
        found = await front.predict(query())
        assert (found.source, front.declined) == ((Source.FOREST, 0) if pace < LONG else (Source.MAX_TOKENS, 1))
        await settle()
    assert predictor.batches == [["input"]]


async def test_a_predictor_that_is_left_alone_is_not_asked_for_those_who_need_not_queue_either() -> None:
    predictor = FakePredictor()
    predictor.may.set()
    predictor.error = RuntimeError("broken")
    front = MicroBatcher(predictor, LengthHistory(), time_limit=LONG, idle_share=1)
    async with running(front):
        for _ in range(MOST_FAILURES):
            await front.predict(query())
        failing = asyncio.create_task(front.predict(query("last")))
        await asyncio.sleep(0)
        assert (await front.predict(query("leisure"), queues=False)).late is not None
        await failing
        assert (await front.predict(query("too late"), queues=False)).late is None
        await settle()
        assert predictor.batches[MOST_FAILURES:] == [["last"]]
        front._paused_until, predictor.error = 0.0, None
        assert (await front.predict(query("urgent"))).source is Source.FOREST
        await settle()
    assert predictor.batches[MOST_FAILURES + 1 :] == [["urgent"], ["leisure"]]


async def test_pauses_end_with_the_first_success_and_never_become_too_long_to_reckon() -> None:
    predictor = FakePredictor()
    predictor.may.set()
    predictor.error = RuntimeError("broken")
    front = MicroBatcher(predictor, LengthHistory(), time_limit=LONG)
    front._failures_in_row = 5000
    async with running(front):
        await front.predict(query())
        now = asyncio.get_running_loop().time()
        assert now < front._paused_until <= now + module.LONGEST_PAUSE
        front._paused_until, predictor.error = 0.0, None
        await front.predict(query())
        assert (front._failures_in_row, front._paused_until) == (0, 0.0)
