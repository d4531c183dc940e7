"""A trace on the real engine, and the run's speed over time, from report to report."""

import asyncio
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import uvloop

from engine.executor import Executor
from engine.kv.host_store import HostStore
from engine.messages import Deliver, ExecutorInfo, Report, StepReport, StepStats
from engine.row import Row
from engine.sampling.params import SamplingParams
from loadgen.simulate.prediction import Predict, choose_prediction, split_forecast
from loadgen.simulate.simulation import Simulation, Watch, served
from loadgen.workload.lengths import RequestLengths
from models.catalog.catalog import default_cache
from models.errors import UserError
from models.network.loader import LoadedModel
from models.progress import Bars
from models.text import Text
from models.threads import run_in_own_thread
from scheduler.clock import Clock, MonotonicClock, background
from scheduler.dispatcher import Dispatcher
from scheduler.learner import inline
from scheduler.length.oracle import true_length
from scheduler.request import Refused, Request, State
from scheduler.serving_time.bilinear import Bilinear, FloatArray, fit_surfaces
from scheduler.serving_time.machine import Phase, Step, StepTimings
from scheduler.serving_time.profile_file import load_profile
from scheduler.strategy import STRATEGIES
from server.composition.app import Relay, run_executors
from server.composition.devices import conditions_of, swap_bytes
from server.composition.loading import build_executor, load_models
from server.composition.scheduling import parts_for
from server.config import ServeConfig

FOR_EVER = 1e9  # seconds for which the last speed holds


PHASES: tuple[Phase, Phase] = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class RunSpeed:
    """A run's prices, and the work that a never idle device has done by each moment; both ascend from 0, linear in
    between.
    """

    prices: Bilinear  # fitted; sums of prefills and of iterations are exact
    slowdown: float  # seconds over the profile's
    moments: FloatArray  # (moments,), seconds after the run's begin
    work: FloatArray  # (moments,), seconds by the prices

    def pace(self, now: float, seconds: float) -> float:
        """A machine as fast at each moment."""
        done = float(np.interp(now, self.moments, self.work))
        return float(np.interp(done + seconds, self.work, self.moments)) - now


@dataclass(slots=True)
class Speedometer:
    """Compares executors' reports with the profile."""

    profile: Bilinear
    _readers: dict[int, StepTimings] = field(default_factory=dict)
    _busy_since: dict[int, float] = field(default_factory=dict)  # end of the last step of each busy executor
    _steps: list[tuple[int, float, Step]] = field(default_factory=list)  # (executor, end, step)

    def hear(self, report: Report, now: float) -> None:
        """`now`: seconds after the run's begin."""
        if not isinstance(report, StepReport):
            return
        since = self._busy_since.get(report.executor, now - report.seconds)
        # a late report lengthens one step only, else each delay would count twice
        lasted = replace(report, seconds=max(report.seconds, now - since))
        end = since + lasted.seconds
        reader = self._readers.setdefault(report.executor, StepTimings(every=True))
        self._steps += [(report.executor, end, step) for step in reader.read(lasted, self.profile)]
        if not (report.shape.rows or report.shape.staged):
            self._busy_since.pop(report.executor, None)
        elif report.tally != StepStats():  # else rows only moved, as part of the next step
            self._busy_since[report.executor] = end

    def read(self) -> RunSpeed:
        """The profile's speed without steps."""
        if {step.phase for _, _, step in self._steps} != set(PHASES):
            even = np.array([0.0, FOR_EVER])
            return RunSpeed(self.profile, 1.0, even, even)
        prices = self._fit()
        measured = sum(step.timing.seconds for _, _, step in self._steps)
        profiled = sum(step.price(self.profile) for _, _, step in self._steps)
        return RunSpeed(prices, measured / profiled, *self._follow(prices))

    def _follow(self, prices: Bilinear) -> tuple[FloatArray, FloatArray]:
        """By the first executor: all share a machine."""
        moments, work = [0.0], [0.0]
        for executor, now, step in self._steps:
            if executor == self._steps[0][0]:
                began = max(moments[-1], now - step.timing.seconds)
                idle = began - moments[-1]
                moments += [began, max(began, now)]
                work += [work[-1] + idle, work[-1] + idle + step.price(prices)]
        return np.array([*moments, moments[-1] + FOR_EVER]), np.array([*work, work[-1] + FOR_EVER])

    def _fit(self) -> Bilinear:
        prefills, decodes = ([step for _, _, step in self._steps if step.phase == phase] for phase in PHASES)
        found = fit_surfaces([step.timing for step in prefills], [step.timing for step in decodes])
        read, decoded = (
            found.slowed(sum(step.timing.seconds for step in steps) / sum(step.price(found) for step in steps))
            for steps in (prefills, decodes)
        )
        iterations = {name: getattr(decoded, name) for name in ("d1", "d2", "d3", "d4")}
        return replace(read, **iterations, c1=self.profile.c1, c0=self.profile.c0)


@dataclass(frozen=True, slots=True)
class Engine:
    """Models, text, profile and sizes, shared by all strategies."""

    config: ServeConfig
    models: tuple[LoadedModel, ...]
    text: Text
    profile: Bilinear
    infos: tuple[ExecutorInfo, ...] = ()  # as this engine builds them

    def new_executors(self, deliver: Deliver) -> tuple[Executor, ...]:
        store: HostStore[Row] = HostStore(swap_bytes(self.config))
        return tuple(
            run_in_own_thread(partial(build_executor, self.config, index, model, self.text, store, deliver))
            for index, model in enumerate(self.models)
        )


def load_engine(config: ServeConfig) -> Engine:
    models, text = load_models(config)
    if (profile := load_profile(default_cache(), conditions_of(config, models[0]))) is None:
        executors = f" --executors {config.executors}" if config.executors > 1 else ""
        command = f"lengthwise profile {config.model}{executors}"
        raise UserError(f"there is no profile under these settings: run `{command}` first, with the same settings")
    engine = Engine(config, models, text, profile.model)
    return replace(engine, infos=tuple(one.info for one in engine.new_executors(lambda report: None)))


def random_prompts(trace: Sequence[RequestLengths], vocabulary: int, seed: int) -> list[tuple[int, ...]]:
    rng = random.Random(f"{seed}, prompts")
    return [tuple(rng.choices(range(vocabulary), k=request.input_length)) for request in trace]


WARM_UP = 4  # requests before a run, not recorded
WARM_UP_TOKENS = 8


def play(
    engine: Engine, config: ServeConfig, trace: Sequence[RequestLengths], seed: int, bars: Bars
) -> tuple[Simulation, RunSpeed]:
    """On new executors, warmed up on parts of their own. Raises UserError when a request fails."""
    clock, speed, most = MonotonicClock(), Speedometer(engine.profile), max(one.output_length for one in trace)
    watch = bars.watch(f"{config.strategy} on the engine: {len(trace)} requests", len(trace))
    prompts = random_prompts(trace, engine.models[0].vocab_size, seed)
    predict = choose_prediction(STRATEGIES[config.strategy], true_length)
    few = [replace(one, arrival=0.0, output_length=min(one.output_length, WARM_UP_TOKENS)) for one in trace[:WARM_UP]]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        relay = Relay(runner.get_loop())
        executors = engine.new_executors(relay.deliver)

        async def serve_apart(requests: Sequence[RequestLengths], watch: Watch, hear: Deliver) -> list[Request]:
            parts = parts_for(config, engine.infos, engine.profile, inline)
            dispatcher = Dispatcher(parts, executors, clock)
            with relay.send_to(hear, dispatcher.receive):
                async with background(dispatcher.run(), "dispatcher"):
                    return await serve(dispatcher, clock, requests, prompts, most, predict, watch)

        with run_executors(executors):
            runner.run(serve_apart(few, lambda ended: None, lambda report: None))
            begin = clock.now()
            done = runner.run(serve_apart(trace, watch, lambda report: speed.hear(report, clock.now() - begin)))
    origin = done[0].times.arrival - trace[0].arrival
    return Simulation(tuple(served(request, origin) for request in done), ()), speed.read()


async def serve(
    dispatcher: Dispatcher,
    clock: Clock,
    trace: Sequence[RequestLengths],
    prompts: Sequence[tuple[int, ...]],
    max_tokens: int,
    predict: Predict | None = None,
    watch: Watch = lambda ended: None,
) -> list[Request]:
    """Returns when all are finished, counted from when they were due. Raises UserError when one fails."""
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
