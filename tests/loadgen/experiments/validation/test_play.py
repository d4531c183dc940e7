"""Traces on a scripted dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from engine.messages import FinishReason, RowUpdate
from engine.sampling.params import SamplingParams
from loadgen.experiments.validation.play import random_prompts, serve
from loadgen.simulate.prediction import Predict
from loadgen.simulate.simulation import Simulation, served
from loadgen.workload.lengths import Lengths
from models.errors import UserError
from scheduler.dispatcher import Dispatcher
from scheduler.length.oracle import true_length
from scheduler.request import Refused, Request, State, Times

TRACE = [Lengths(0.0, 3, 5), Lengths(1.0, 2, 9)]
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
