"""A trace played on the real engine, without a server around it: every request at its time, until the last is answered,
recorded as a simulation of it is recorded; and the speed of that run, told by its own steps: what iterations and
prefills took, and how that changed while it ran.

Speed is not told by how long executors were at work altogether: how full batches are is an accident of the run as
well, and would seem to be a slow machine. A step lasts from the report before it to its own, so that what is done
between two steps counts: rows that join, copies, reports.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import uvloop

from engine.executor import Executor
from engine.kv.host_store import HostStore
from engine.messages import Deliver, ExecutorInfo, Report, StepReport, Tally
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
from scheduler.serving_time.bilinear import Bilinear, FloatArray, fit_surfaces
from scheduler.serving_time.machine import Phase, Step, StepTimings
from scheduler.serving_time.profile_file import load_profile
from server.cli.config import ServeConfig
from server.composition.app import Relay
from server.composition.devices import conditions_of, swap_bytes
from server.composition.loading import build_executor, load_models

FOR_EVER = 1e9
"""Seconds for which a machine keeps its last speed."""


@dataclass(frozen=True, slots=True)
class SpeedCurve:
    """Moments, and the work that a device which is never idle has done by then. Both ascend, from 0; between them the
    speed is even.
    """

    moments: FloatArray
    """(moments,), in seconds after the run's begin."""
    work: FloatArray
    """(moments,), in seconds by the prices."""

    def pace(self, now: float, seconds: float) -> float:
        """The Pace of a machine that is as fast at each moment as this one was."""
        done = float(np.interp(now, self.moments, self.work))
        return float(np.interp(done + seconds, self.work, self.moments)) - now


PHASES: tuple[Phase, Phase] = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class RunSpeed:
    """The prices of a run, and how its speed changed about them."""

    prices: Bilinear
    """Fitted to the run's steps; the sums of all prefills and of all iterations are what they took."""
    slowdown: float
    """Seconds of all steps, over what the profile says."""
    curve: SpeedCurve


@dataclass(slots=True)
class Speedometer:
    """Hears what executors report, and holds their steps against the profile."""

    profile: Bilinear
    _readers: dict[int, StepTimings] = field(default_factory=dict)
    _busy_since: dict[int, float] = field(default_factory=dict)
    """When the last step of each executor that still has rows ended, as counted here."""
    _steps: list[tuple[int, float, Step]] = field(default_factory=list)
    """Executors, and when these ended which steps."""

    def hear(self, report: Report, now: float) -> None:
        """Note a step that ended at `now`, in seconds after the run's begin."""
        if not isinstance(report, StepReport):
            return
        since = self._busy_since.get(report.executor, now - report.seconds)
        # A report that is heard late lengthens one step; those behind it begin where that one ended, or the delay of
        # every late report would be counted beside the seconds of the step that it delayed.
        lasted = replace(report, seconds=max(report.seconds, now - since))
        end = since + lasted.seconds
        reader = self._readers.setdefault(report.executor, StepTimings())
        self._steps += [(report.executor, end, step) for step in reader.read(lasted, self.profile)]
        if not (report.shape.rows or report.shape.staged):
            self._busy_since.pop(report.executor, None)
        elif report.tally != Tally():  # else rows were moved only, and that belongs to the next step
            self._busy_since[report.executor] = end

    def read(self) -> RunSpeed:
        """The speed of all that was heard; the profile's where it was nothing."""
        if {step.phase for _, _, step in self._steps} != set(PHASES):
            even = np.array([0.0, FOR_EVER])
            return RunSpeed(self.profile, 1.0, SpeedCurve(even, even))
        prices = self._fit()
        measured = sum(_seconds(step) for _, _, step in self._steps)
        profiled = sum(_price(self.profile, step) for _, _, step in self._steps)
        return RunSpeed(prices, measured / profiled, self._follow(prices))

    def _follow(self, prices: Bilinear) -> SpeedCurve:
        """The curve by the steps of the first executor: all share one machine."""
        moments, work = [0.0], [0.0]
        for executor, now, step in self._steps:
            if executor == self._steps[0][0]:
                began = max(moments[-1], now - _seconds(step))
                idle = began - moments[-1]
                moments += [began, max(began, now)]
                work += [work[-1] + idle, work[-1] + idle + _price(prices, step)]
        return SpeedCurve(np.array([*moments, moments[-1] + FOR_EVER]), np.array([*work, work[-1] + FOR_EVER]))

    def _fit(self) -> Bilinear:
        """The model of all steps, whose sums over those of a phase are what these took."""
        prefills, decodes = ([step for _, _, step in self._steps if step.phase == phase] for phase in PHASES)
        found = fit_surfaces([step.timing for step in prefills], [step.timing for step in decodes])
        read, decoded = (
            found.slowed(sum(map(_seconds, steps)) / sum(_price(found, step) for step in steps))
            for steps in (prefills, decodes)
        )
        iterations = {name: getattr(decoded, name) for name in ("d1", "d2", "d3", "d4")}
        return replace(read, **iterations, c1=self.profile.c1, c0=self.profile.c0)


def _seconds(step: Step) -> float:
    """Seconds that a step took; a step of the decode phase is one iteration."""
    return step.timing.seconds


def _price(prices: Bilinear, step: Step) -> float:
    price = prices.prefill if step.phase == "prefill" else prices.iteration
    return price(float(step.timing.rows), float(step.timing.length))


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
