"""The asynchronous front with a predictor that a test plays: batches, the time limit, the fallback, their counts."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import InitVar, dataclass, field
from typing import Any

import pytest

from scheduler.length import microbatch as module
from scheduler.length.features import LengthQuery
from scheduler.length.learning import LengthHistory
from scheduler.length.microbatch import MOST_FAILURES, MicroBatcher
from scheduler.length.prediction import Estimate, LengthDistribution, Source
from tests.scheduler.fakes import settle

LONG = 60.0


def query(name: str = "input", *, max_tokens: int = 1000) -> LengthQuery:
    return LengthQuery("translate", name, 3, max_tokens)


@dataclass
class FakePredictor:
    """Answers once it may, if it is busy; every answer is 7 tokens long, and its features are its number."""

    busy: InitVar[bool] = False
    known: bool = True
    error: Exception | None = None
    length: float = 7.0
    short: int = 0  # estimates too few in each answer
    batches: list[list[str]] = field(default_factory=list)
    may: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self, busy: bool) -> None:
        if not busy:
            self.may.set()

    async def estimate(self, queries: Sequence[LengthQuery]) -> Sequence[Estimate]:
        self.batches.append([one.user_input for one in queries])
        await self.may.wait()
        if self.error is not None:
            raise self.error
        known = LengthDistribution.certain(self.length) if self.known else None
        return [Estimate((float(place),), known) for place in range(len(queries) - self.short)]


@asynccontextmanager
async def running(front: MicroBatcher) -> AsyncIterator[MicroBatcher]:
    task = asyncio.create_task(front.run())
    yield front
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_what_is_asked_again_waits_for_what_is_asked_first_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ASKED", 2)
    predictor = FakePredictor(busy=True)
    async with running(MicroBatcher(predictor, LengthHistory(), time_limit=LONG, idle_share=1.0)) as front:
        first = asyncio.create_task(front.predict(query("first")))
        await settle()
        again = [front.ask_again(query(name)) for name in "abc"]
        second = asyncio.create_task(front.predict(query("second")))
        await settle()
        predictor.may.set()
        await asyncio.gather(first, second, *again[1:])
    assert predictor.batches == [["first"], ["second"], ["b", "c"]] and again[0].cancelled()


async def test_what_arrives_while_the_predictor_works_goes_to_it_together() -> None:
    predictor, waits = FakePredictor(busy=True), list[float]()
    async with running(MicroBatcher(predictor, LengthHistory(), time_limit=LONG, observe=waits.append)) as front:
        first = asyncio.create_task(front.predict(query("a")))
        await settle()
        others = [asyncio.create_task(front.predict(query(name))) for name in "bcdef"]
        await settle()
        assert predictor.batches == [["a"]]
        predictor.may.set()
        answers = await asyncio.gather(first, *others)
    assert predictor.batches == [["a"], ["b", "c", "d", "e", "f"]]
    told = [(one.length, one.source, one.features) for one in answers[:4]]
    assert told == [(7, Source.FOREST, (place,)) for place in (0.0, 0.0, 1.0, 2.0)]
    assert front.sources == {Source.FOREST: 6}
    assert len(waits) == 6 and all(0 < wait < LONG for wait in waits)
    assert answers[0].distribution is not None and answers[0].distribution.remaining(2) == 5


@pytest.mark.parametrize(("error", "features"), [(None, (0.0,)), (RuntimeError("broken"), None)])
async def test_late_estimates_are_kept(error: Exception | None, features: tuple[float, ...] | None) -> None:
    """After the time limit a request goes on with the fallback."""
    predictor, history = FakePredictor(busy=True, error=error), LengthHistory()
    history.add("", "translate", 42)
    async with running(MicroBatcher(predictor, history, time_limit=0, idle_share=1)) as front:
        late = await front.predict(query())
        assert (late.length, late.source, late.features) == (42, Source.HISTORY, ())
        assert (front.timeouts, front.failures, front.sources) == (1, 0, {Source.HISTORY: 1})
        predictor.may.set()
        estimate = late.late and await late.late
    assert (estimate and estimate.features, front.failures) == (features, int(error is not None))


async def test_requests_that_are_gone_are_not_predicted_any_more_nor_harm_anybody() -> None:
    """One when it was asked for, one before."""
    predictor = FakePredictor(busy=True)
    async with running(MicroBatcher(predictor, LengthHistory(), time_limit=LONG)) as front:
        busy = asyncio.create_task(front.predict(query("busy")))
        await settle()
        gone, kept = (asyncio.create_task(front.predict(query(name))) for name in ("gone", "kept"))
        await settle()
        for one in (busy, gone):
            one.cancel()
        await settle()
        predictor.may.set()
        assert (await kept).source is Source.FOREST
    assert predictor.batches == [["busy"], ["kept"]]


@pytest.mark.parametrize("short", [0, 1])
async def test_a_predictor_that_fails_is_counted_and_asked_again(short: int, caplog: pytest.LogCaptureFixture) -> None:
    """With `short`, it does not raise, but answers fewer requests than it was asked about."""
    predictor = FakePredictor(short=short, error=None if short else RuntimeError("broken"))
    async with running(MicroBatcher(predictor, LengthHistory(), time_limit=LONG)) as front:
        answers = await asyncio.gather(front.predict(query(max_tokens=9)), front.predict(query(max_tokens=8)))
        assert [(one.length, one.source) for one in answers] == [(9, Source.MAX_TOKENS), (8, Source.MAX_TOKENS)]
        await front.predict(query())
        assert (front.failures, front.timeouts) == (2, 0)
        predictor.error, predictor.short = None, 0
        assert (await front.predict(query())).source is Source.FOREST
    assert caplog.text.count("the length predictor failed") == 1


async def test_of_a_burst_a_batch_waits_and_the_others_go_on_at_once() -> None:
    """None of a thousand waits for more than its time limit, and all but a few not at all, though nothing answers."""
    predictor, waits = FakePredictor(busy=True), list[float]()
    front = MicroBatcher(predictor, LengthHistory(), time_limit=LONG, observe=waits.append)
    burst = [asyncio.create_task(front.predict(query(str(place)))) for place in range(1000)]
    async with running(front):
        await settle()
        assert sum(one.done() for one in burst) == len(waits) == 1000 - module.BATCH
        for one in burst:
            one.cancel()


async def test_where_nobody_waits_the_newest_are_predicted_and_then_the_predictor_rests() -> None:
    """A day after a batch that took any time at all; one that waits meanwhile is predicted at once."""
    predictor = FakePredictor()
    front = MicroBatcher(predictor, LengthHistory(), time_limit=0, idle_share=1e-12)
    for name in "abcde":
        await front.predict(query(name))
    front.time_limit = LONG
    async with running(front):
        await settle()
        assert predictor.batches == [["b", "c", "d", "e"]]
        assert (await front.predict(query("urgent"))).source is Source.FOREST
    assert predictor.batches[1:] == [["a", "urgent"]]


async def test_of_a_crowd_a_few_are_predicted_at_a_time_with_rests_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 4)
    predictor = FakePredictor()
    front = MicroBatcher(predictor, LengthHistory(), time_limit=LONG, idle_share=1e-12)
    crowd = [asyncio.create_task(front.predict(query(name))) for name in "abcdef"]
    await settle()
    async with running(front):
        await settle()
        assert predictor.batches == [["c", "d", "e", "f"], ["a", "b"]]  # two that wait are no crowd
        await asyncio.gather(*crowd)


async def test_who_has_ended_is_not_predicted_nor_the_last_of_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ASKED", 2)
    predictor = FakePredictor()
    front = MicroBatcher(predictor, LengthHistory(), time_limit=0)
    ended, _, last = [await front.predict(query(name)) for name in ("ended", "kept", "last")]
    assert ended.late is not None and (last.late, front.timeouts) == (None, 3)
    ended.late.cancel()
    async with running(front):
        await settle()
    assert predictor.batches == [["kept"]]


async def test_a_predictor_that_keeps_failing_is_left_alone_for_a_while() -> None:
    predictor = FakePredictor(error=RuntimeError("broken"))
    async with running(MicroBatcher(predictor, LengthHistory(), time_limit=LONG)) as front:
        for _ in range(MOST_FAILURES + 1):
            await front.predict(query())
        assert (front.failures, front.timeouts) == (MOST_FAILURES + 1, 0)
        await front.predict(query())
        assert (front.failures, front.timeouts, len(predictor.batches)) == (MOST_FAILURES + 1, 1, MOST_FAILURES + 1)
        front._paused_until = 0.0  # the while is over
        predictor.error = None
        assert (await front.predict(query())).source is Source.FOREST


@pytest.mark.parametrize("known", [True, False])
async def test_no_prediction_exceeds_max_tokens(known: bool) -> None:
    predictor, history = FakePredictor(known=known), LengthHistory()
    history.add("", "translate", 7)
    async with running(MicroBatcher(predictor, history, time_limit=LONG)) as front:
        assert [(await front.predict(query(max_tokens=most))).length for most in (1000, 7, 3)] == [7, 7, 3]


WITHOUT = [
    *(({"length": length}, (), 1) for length in (float("nan"), float("inf"), -3.0)),  # cannot be: it has failed
    ({"known": False}, (0.0,), 0),  # the features still come back for the journal
]


@pytest.mark.parametrize(("answer", "features", "failures"), WITHOUT)
async def test_lengths_that_cannot_be(answer: dict[str, Any], features: tuple[float, ...], failures: int) -> None:
    """It is what may be instead."""
    async with running(MicroBatcher(FakePredictor(**answer), LengthHistory(), time_limit=LONG)) as front:
        found = await front.predict(query(max_tokens=50))
    assert (found.length, found.source, found.distribution) == (50, Source.MAX_TOKENS, None)
    assert (found.features, front.failures) == (features, failures)


async def test_pauses_end_with_the_first_success_and_never_become_too_long_to_reckon() -> None:
    predictor = FakePredictor(error=RuntimeError("broken"))
    front = MicroBatcher(predictor, LengthHistory(), time_limit=LONG)
    front._failures_in_row = 5000
    async with running(front):
        await front.predict(query())
        now = asyncio.get_running_loop().time()
        assert now < front._paused_until <= now + module.LONGEST_PAUSE
        front._paused_until, predictor.error = 0.0, None
        await front.predict(query())
        assert (front._failures_in_row, front._paused_until) == (0, 0.0)
