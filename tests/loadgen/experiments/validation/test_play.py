"""Traces on a scripted dispatcher, and the speed of a run by its steps, by hand."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from engine.messages import BatchShape, ExecutorDied, FinishReason, RowUpdate, StepReport, StepStats
from engine.sampling.params import SamplingParams
from loadgen.experiments.validation.play import Speedometer, random_prompts, serve
from loadgen.simulate.prediction import Predict
from loadgen.simulate.simulation import Simulation, served
from loadgen.workload.lengths import RequestLengths
from models.errors import UserError
from scheduler.dispatcher import Dispatcher
from scheduler.length.oracle import true_length
from scheduler.request import Refused, Request, State, Times
from scheduler.serving_time.bilinear import Bilinear

TRACE = [RequestLengths(0.0, 3, 5), RequestLengths(1.0, 2, 9)]
PROMPTS = [(1, 2, 3), (4, 5)]


class Jumping:
    """A clock that is at once where somebody waits for it to be, and a little later."""

    LATE = 0.25

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    async def wait(self, event: asyncio.Event, until: float | None) -> None:
        assert until is not None
        self.time = until + self.LATE
        await asyncio.sleep(0)


class Scripted:
    """In a dispatcher's place: answers after as many seconds as a request may generate tokens."""

    def __init__(self, clock: Jumping, end: Callable[[Request], None]) -> None:
        self.clock = clock
        self.end = end
        self.taken: list[Request] = []

    def submit(self, prompt: Sequence[int], sampling: SamplingParams, **known: Any) -> Request:
        request = Request(len(self.taken), tuple(prompt), sampling, Times(known["arrival"]))
        request.predicted_length = known["predicted_length"]
        self.taken.append(request)
        asyncio.get_running_loop().call_soon(self.end, request)
        return request


def finish(request: Request) -> None:
    assert request.sampling.replay_tokens is not None
    request.stream.put(RowUpdate(request.row_id, finish_reason=FinishReason.STOP))
    request.state, request.times.end = State.FINISHED, request.times.arrival + request.sampling.replay_tokens


def fail(request: Request) -> None:
    request.stream.put(RowUpdate(request.row_id, finish_reason=FinishReason.ERROR, error="broken"))
    request.state, request.times.end = State.FAILED, 200.0


def run(end: Callable[[Request], None], predict: Predict | None = None) -> tuple[Simulation, Scripted, list[int]]:
    clock, ended = Jumping(), list[int]()
    scripted = Scripted(clock, end)
    done = asyncio.run(
        serve(cast(Dispatcher, scripted), clock, TRACE, PROMPTS, max_tokens=9, predict=predict, watch=ended.append)
    )
    return Simulation(tuple(served(one, done[0].times.arrival) for one in done), ()), scripted, ended


def test_requests_count_from_when_they_were_due() -> None:
    done, scripted, ended = run(finish)
    assert [(one.arrival, one.end - one.arrival) for one in done.requests] == [(0.0, 5.0), (1.0, 9.0)]
    assert (done.duration, done.throughput) == (10.0, 0.2)
    assert [request.prompt for request in scripted.taken] == PROMPTS
    assert [request.sampling.replay_tokens for request in scripted.taken] == [5, 9]
    assert ended == [1, 2]


@pytest.mark.parametrize(("predict", "known"), [(true_length, [5, 9]), (None, [None, None])])
def test_only_an_oracle_tells_the_lengths(predict: Predict | None, known: list[float | None]) -> None:
    _, scripted, _ = run(finish, predict)
    assert [request.predicted_length for request in scripted.taken] == known


def test_a_failed_request_is_told_with_its_error() -> None:
    with pytest.raises(UserError, match="3 tokens failed on the engine: broken"):
        run(fail)


def test_an_engine_that_takes_nothing_is_told() -> None:
    def refuse(*args: Any, **known: Any) -> Request:
        raise Refused("no executor is alive")

    scripted = Scripted(Jumping(), finish)
    scripted.submit = refuse  # type: ignore[method-assign]
    with pytest.raises(UserError, match="gave up: no executor is alive"):
        asyncio.run(serve(cast(Dispatcher, scripted), Jumping(), TRACE, PROMPTS, max_tokens=9))


def test_prompts_have_the_lengths_of_the_trace() -> None:
    prompts = random_prompts(TRACE, 50, seed=1)
    assert [len(prompt) for prompt in prompts] == [3, 2]
    assert all(0 <= token < 50 for prompt in prompts for token in prompt)
    assert prompts == random_prompts(TRACE, 50, seed=1) != random_prompts(TRACE, 50, seed=2)


PROFILE = Bilinear(p1=0.0, p2=0.0, p3=0.01, p4=0.0, d1=0.0, d2=0.0, d3=0.0, d4=0.1)
"""A prompt of 10 tokens takes 0.1 s, and so does an iteration."""

BUSY = BatchShape(rows=1, start=0, end=12)


def prefill(step: int, seconds: float) -> StepReport:
    update = RowUpdate(step, (7,))
    tally = StepStats(prompt=10, generated=1)
    return StepReport(0, step, (update,), BatchShape(staged=1), seconds, begun=(step,), tally=tally)


def iteration(step: int, seconds: float, shape: BatchShape = BUSY) -> StepReport:
    return StepReport(0, step, (RowUpdate(1, (7,)),), shape, seconds, tally=StepStats(generated=1, reads=12))


def test_steps_are_held_against_the_profile_and_the_machine_is_as_fast_at_each_moment_as_it_was() -> None:
    """A prefill of 0.2 s and two iterations of 0.1 and 0.3 s, where the profile says 0.1 of each.

    The iterations count for 0.2 s of work each; before and after them the speed is even.
    """
    speed = Speedometer(PROFILE)
    speed.hear(prefill(1, 0.2), 0.2)
    speed.hear(iteration(2, 0.1), 0.3)
    speed.hear(iteration(3, 0.3), 0.6)
    found = speed.read()
    assert found.slowdown == pytest.approx(0.6 / 0.3)
    assert found.prices.prefill(1.0, 10.0) == pytest.approx(0.2)
    assert found.prices.iteration(1.0, 12.0) == pytest.approx(0.2), "the sum of both is what they took"
    assert found.pace(0.2, 0.2) == pytest.approx(0.1)
    assert found.pace(0.3, 0.2) == pytest.approx(0.3)
    assert found.pace(0.2, 0.3) == pytest.approx(0.1 + 0.15), "a half of the slow one"
    assert found.pace(0.6, 5.0) == pytest.approx(5.0)


def test_what_is_done_between_two_steps_counts_while_there_are_rows() -> None:
    speed = Speedometer(PROFILE)
    speed.hear(prefill(1, 0.1), 0.1)
    speed.hear(iteration(2, 0.1, BatchShape()), 0.25)
    assert speed.read().prices.iteration(1.0, 12.0) == pytest.approx(0.15)
    speed.hear(prefill(3, 0.1), 5.0)
    assert speed.read().prices.prefill(1.0, 10.0) == pytest.approx(0.1), "it was idle before"
    assert speed.read().pace(1.0, 2.0) == pytest.approx(2.0)


def test_a_late_report_is_not_counted_twice() -> None:
    """Three iterations of 0.1 s, the second of which is heard 0.06 s late: 0.36 s at most, not 0.1 + 0.16 + 0.1."""
    speed = Speedometer(PROFILE)
    speed.hear(prefill(1, 0.1), 0.1)
    for step, now in ((2, 0.2), (3, 0.36), (4, 0.4), (5, 0.5), (6, 0.6)):
        speed.hear(iteration(step, 0.1), now)
    assert sum(step.timing.seconds for _, _, step in speed._steps if step.phase == "decode") == pytest.approx(0.56)


def test_without_steps_it_is_the_profiles() -> None:
    speed = Speedometer(PROFILE)
    speed.hear(ExecutorDied(0, "gone"), 1.0)
    found = speed.read()
    assert (found.prices, found.slowdown) == (PROFILE, 1.0)
    assert found.pace(3.0, 2.0) == pytest.approx(2.0)


def test_rows_that_only_move_belong_to_the_step_that_follows() -> None:
    speed = Speedometer(PROFILE)
    speed.hear(prefill(1, 0.1), 0.1)
    speed.hear(StepReport(0, 2, (), BUSY, 0.05), 0.15)
    speed.hear(iteration(3, 0.1), 0.25)
    assert speed.read().prices.iteration(1.0, 12.0) == pytest.approx(0.15)
