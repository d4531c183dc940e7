"""A trace played through a dispatcher: every request at its time, until the last is answered. Starts no engine."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence

from engine.messages import RowUpdate
from engine.sampling.params import SamplingParams
from loadgen.simulate.prediction import Predict, split_forecast
from loadgen.simulate.simulation import Watch
from loadgen.workload.lengths import Lengths
from models.errors import UserError
from scheduler.clock import Clock
from scheduler.dispatcher import Dispatcher
from scheduler.request import Refused, Request, State
from scheduler.stream import TokenStream


def random_prompts(trace: Sequence[Lengths], vocabulary: int, seed: int) -> list[tuple[int, ...]]:
    """Prompts of the trace's lengths; which tokens they are does not bear on how long they take."""
    rng = random.Random(f"{seed}, prompts")
    return [tuple(rng.choices(range(vocabulary), k=request.input_length)) for request in trace]


async def serve(
    dispatcher: Dispatcher,
    clock: Clock,
    trace: Sequence[Lengths],
    prompts: Sequence[tuple[int, ...]],
    *,
    max_tokens: int,
    predict: Predict | None = None,
    watch: Watch = lambda ended: None,
) -> list[Request]:
    """Submit every request at its time and wait for the last; all have finished then.

    Requests are counted from when they were due, though the event loop be late. Raises UserError when one fails.
    """
    begin, requests = clock.now(), list[Request]()
    numbers, all_ended = itertools.count(1), asyncio.Event()

    def note_end() -> None:
        watch(number := next(numbers))
        if number == len(trace):
            all_ended.set()

    for one, prompt in zip(trace, prompts, strict=True):
        due = begin + one.arrival
        if due > clock.now():
            await clock.wait(asyncio.Event(), due)
        sampling = SamplingParams(max_tokens, temperature=0.0, replay_tokens=one.output_length)
        predicted, known = split_forecast(None if predict is None else predict(sampling))
        try:
            request = dispatcher.submit(prompt, sampling, predicted_length=predicted, distribution=known, arrival=due)
        except Refused as error:
            raise UserError(f"the engine gave up: {error}") from error
        request.stream = _Sink(note_end)
        requests.append(request)
    if requests:
        await all_ended.wait()
    for request in requests:
        _require_finished(request)
    return requests


class _Sink(TokenStream):
    """Notes the end of an answer; its tokens are not kept."""

    def __init__(self, note_end: Callable[[], None]) -> None:
        self._note_end = note_end
        self._error: str | None = None

    @property
    def error(self) -> str | None:
        return self._error

    def put(self, update: RowUpdate) -> None:
        if update.finish_reason is not None:
            self._error = update.error
            asyncio.get_running_loop().call_soon(self._note_end)  # once the request has its end


def _require_finished(request: Request) -> None:
    if request.state is not State.FINISHED:
        stream = request.stream
        said = stream.error if isinstance(stream, _Sink) else None
        raise UserError(f"a request of {request.input_length} tokens failed on the engine: {said or request.state}")
