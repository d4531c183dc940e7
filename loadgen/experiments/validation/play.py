"""A trace played on the real engine, without a server around it: every request at its time, until the last is answered,
recorded as a simulation of it is recorded.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import uvloop

from engine.executor import Executor
from engine.kv.host_store import HostStore
from engine.messages import Deliver, ExecutorInfo, Report
from engine.row import Row
from engine.sampling.params import SamplingParams
from loadgen.simulate.prediction import Predict, split_forecast
from loadgen.simulate.simulation import Simulation, Watch, served
from loadgen.workload.lengths import Lengths
from models.catalog.catalog import default_cache
from models.errors import UserError
from models.network.loader import LoadedModel
from models.text import Text
from models.threads import run_in_own_thread
from scheduler.assembly import Parts
from scheduler.clock import Clock, MonotonicClock, background
from scheduler.dispatcher import Dispatcher
from scheduler.request import Refused, Request, State
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.profile_file import load_profile
from server.cli.config import ServeConfig
from server.composition.app import Relay
from server.composition.devices import conditions_of, swap_bytes
from server.composition.loading import build_executor, load_models

STOP_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Engine:
    """Models, text, profile and the sizes of executors, which all strategies share."""

    config: ServeConfig
    models: tuple[LoadedModel, ...]
    text: Text
    profile: Bilinear
    infos: tuple[ExecutorInfo, ...] = ()  # of executors as this engine builds them

    @property
    def vocabulary(self) -> int:
        return min(self.text.vocab_size, self.models[0].vocab_size)

    def new_executors(self, deliver: Deliver) -> tuple[Executor, ...]:
        """Executors that are not started yet."""
        store: HostStore[Row] = HostStore(swap_bytes(self.config))
        return tuple(
            run_in_own_thread(partial(build_executor, self.config, index, model, self.text, store, deliver))
            for index, model in enumerate(self.models)
        )


def load_engine(config: ServeConfig) -> Engine:
    """Load the model for each executor and find its profile; raises what `open_service` raises."""
    models, text = load_models(config)
    profile = load_profile(default_cache(), conditions_of(config, models[0]))
    if profile is None:
        executors = f" --executors {config.executors}" if config.executors > 1 else ""
        raise UserError(
            f"there is no profile of {config.model} under these settings: run `lengthwise profile "
            f"{config.model}{executors}` first, with the same settings"
        )
    engine = Engine(config, models, text, profile.model)
    return replace(engine, infos=tuple(one.info for one in engine.new_executors(lambda report: None)))


def random_prompts(trace: Sequence[Lengths], vocabulary: int, seed: int) -> list[tuple[int, ...]]:
    """Prompts of the trace's lengths; which tokens they are does not bear on how long they take."""
    rng = random.Random(f"{seed}, prompts")
    return [tuple(rng.choices(range(vocabulary), k=request.input_length)) for request in trace]


WARM_UP = 4
"""Requests that are played before a run and not recorded."""
WARM_UP_TOKENS = 8


def play(
    engine: Engine,
    new_parts: Callable[[], Parts],
    trace: Sequence[Lengths],
    prompts: Sequence[tuple[int, ...]],
    predict: Predict | None,
    watch: Watch,
    hear: Callable[[Report, float], None],
) -> Simulation:
    """The record of all requests on new executors, in order of arrival; a few short ones are played before, so that a
    run finds the executors as later ones do, on parts of their own, since parts keep state. Raises UserError when a
    request fails.

    `hear` is called with every report of the run and the seconds since its begin.
    """
    clock, most = MonotonicClock(), max(one.output_length for one in trace)
    few = [replace(one, arrival=0.0, output_length=min(one.output_length, WARM_UP_TOKENS)) for one in trace[:WARM_UP]]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        relay = Relay(runner.get_loop())
        executors = engine.new_executors(relay.deliver)

        async def serve_apart(requests: Sequence[Lengths], watch: Watch, hear: Deliver) -> list[Request]:
            dispatcher = Dispatcher(new_parts(), executors, clock)
            with relay.send_to(hear, dispatcher.receive):
                async with background(dispatcher.run(), "dispatcher"):
                    return await serve(
                        dispatcher, clock, requests, prompts, max_tokens=most, predict=predict, watch=watch
                    )

        try:
            for executor in executors:
                executor.start()
            runner.run(serve_apart(few, lambda ended: None, lambda report: None))
            begin = clock.now()
            done = runner.run(serve_apart(trace, watch, lambda report: hear(report, clock.now() - begin)))
        finally:
            for executor in executors:
                if executor.alive:
                    executor.stop(STOP_TIMEOUT)
    origin = done[0].times.arrival - trace[0].arrival
    return Simulation(tuple(served(request, origin) for request in done), ())


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
    begin, requests, tasks = clock.now(), list[Request](), list[asyncio.Task[None]]()
    numbers = itertools.count(1)

    async def read(request: Request) -> None:
        error = [update.error async for update in request.stream][-1]
        if request.state is not State.FINISHED:
            told = error or request.state
            raise UserError(f"a request of {request.input_length} tokens failed on the engine: {told}")
        watch(next(numbers))

    for one, prompt in zip(trace, prompts, strict=False):
        due = begin + one.arrival
        if due > clock.now():
            await clock.wait(asyncio.Event(), due)
        sampling = SamplingParams(max_tokens, temperature=0.0, replay_tokens=one.output_length)
        predicted, known = split_forecast(None if predict is None else predict(sampling))
        try:
            request = dispatcher.submit(prompt, sampling, predicted_length=predicted, distribution=known, arrival=due)
        except Refused as error:
            raise UserError(f"the engine gave up: {error}") from error
        requests.append(request)
        tasks.append(asyncio.create_task(read(request)))
    await asyncio.gather(*tasks)
    return requests
