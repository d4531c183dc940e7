"""`lengthwise simulate --validate`: one trace on the real engine and in the simulator, with this machine's profile,
and how far apart they are, as a table and as JSON.

The composition root of that: model, executors, strategy, load, simulated twin.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import fmean, pstdev
from types import MappingProxyType

from rich.table import Table

from engine.simulated.machine import Machine
from loadgen.compare.machine import describe_machine
from loadgen.console import COLUMNS, table_console
from loadgen.experiments.validation.play import Engine, RunSpeed, Speedometer, load_engine, play, random_prompts
from loadgen.result_file import Json, require_writable, save_json
from loadgen.simulate.flags import ValidateFlags
from loadgen.simulate.load import draw_arrivals, simulated_load
from loadgen.simulate.prediction import Predict
from loadgen.simulate.simulation import Figures, Simulation, measure_latencies, simulate
from loadgen.workload.lengths import Lengths
from models.errors import INTERRUPTED, UserError
from models.progress import Bars
from models.threads import run_in_own_thread
from scheduler.assembly import find_strategies
from scheduler.learner import inline
from scheduler.length.oracle import true_length
from scheduler.strategy import STRATEGIES, Length
from server.cli.config import ServeConfig, load_config
from server.composition.scheduling import parts_for

MEAN_BOUND, P99_BOUND = 0.05, 0.10
"""Within these shares of what was measured, the simulator is trusted."""

LEAST = 1e-3
"""A difference that is not above this is none: batches that return as a whole have a TPOT of nothing."""

QUANTITIES: Mapping[str, float] = MappingProxyType(
    {
        **{f"mean_{name}_ms": MEAN_BOUND for name in ("ttft", "tpot", "jct")},
        **{f"p99_{name}_ms": P99_BOUND for name in ("ttft", "tpot", "jct")},
        "request_throughput": MEAN_BOUND,
    }
)
"""The figures that are compared, and the bounds of their deviations."""

DRAWS = tuple(1 + 0.0005 * step for step in range(-8, 9))
"""Slowdowns of the simulations of a run, whose mean counts: where plans depend on milliseconds, as in SCLS, each is one
draw of many, and the run on the engine is another.
"""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One figure, measured on the engine and simulated."""

    real: float
    profiled: float
    """Simulated with the machine as fast as its profile says."""
    simulated: float
    """Simulated with the machine as fast as it was in this run."""
    bound: float = MEAN_BOUND
    spread: float = 0.0
    """Standard deviation of the simulations whose mean is `simulated`."""

    @property
    def deviation(self) -> float:
        """Deviation of the simulated from the real, as a share of the real; 0 where both are next to nothing."""
        return _deviate(self.simulated, self.real)

    @property
    def profile_deviation(self) -> float:
        """Deviation of the figure simulated at the profile's speed, as a share of the real."""
        return _deviate(self.profiled, self.real)

    @property
    def holds(self) -> bool:
        return abs(self.deviation) <= self.bound


def _deviate(simulated: float, real: float) -> float:
    return 0.0 if max(simulated, real) <= LEAST else simulated / real - 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one strategy at one load.

    A machine that others use too is not always as fast as when it was profiled, and near saturation a tenth more work
    is half as long again to wait. So the simulator is judged with the speed of the run, told by its own steps.
    """

    strategy: str
    rho: float | None
    """Requests that came, by those that the strategy serves; None where the rate was given."""
    requests: int
    slowdown: float
    """How much longer steps took than the profile says."""
    quantities: Mapping[str, Quantity]

    @property
    def holds(self) -> bool:
        return all(one.holds for one in self.quantities.values())


def compare(real: Figures, profiled: Figures, simulated: Sequence[Figures]) -> dict[str, Quantity]:
    """All quantities of a run, of its simulation by the profile and of those at the run's speed."""
    found = {}
    for column, bound in ((COLUMNS[key], bound) for key, bound in QUANTITIES.items()):
        engine, profile, *draws = (one[column.key] * column.scale for one in (real, profiled, *simulated))
        found[column.axis] = Quantity(engine, profile, fmean(draws), bound, pstdev(draws))
    return found


def table(verdicts: Sequence[Verdict]) -> Table:
    """The table with a line a strategy, load and quantity."""
    shown = Table(
        title="The simulator beside the engine",
        title_style="bold",
        caption="slowdown: seconds of this run's steps, over what the profile says; spread: standard deviation of "
        f"{len(DRAWS)} simulations between which the speed differs by {DRAWS[-1] - DRAWS[0]:.1%}",
    )
    for head in ("strategy", "ρ", ""):
        shown.add_column(head, no_wrap=True)
    heads = ("engine", "by the profile", "deviation", "slowdown", "at that speed", "spread", "deviation")
    for head in (*heads, "bound", "within"):
        shown.add_column(head, justify="right")
    for one in verdicts:
        for place, (name, quantity) in enumerate(one.quantities.items()):
            whose = ("", "") if place else (one.strategy, "" if one.rho is None else f"{one.rho:g}")
            shown.add_row(*whose, name, *_cells(quantity, f"{one.slowdown:.2f}"))
    return shown


def _cells(one: Quantity, slowdown: str) -> tuple[str, ...]:
    engine = (f"{one.real:.3f}", f"{one.profiled:.3f}", f"{one.profile_deviation:+.1%}", slowdown)
    verdict = (f"{one.deviation:+.1%}", f"{one.bound:.0%}", "yes" if one.holds else "no")
    return (*engine, f"{one.simulated:.3f}", f"{one.spread:.3f}", *verdict)


def verdict_json(one: Verdict) -> Json:
    """A verdict with both figures and how far they are apart."""
    return {
        "strategy": one.strategy,
        "rho": one.rho,
        "requests": one.requests,
        "holds": one.holds,
        "slowdown": one.slowdown,
        "quantities": {
            name: asdict(value) | {"profile_deviation": value.profile_deviation, "deviation": value.deviation}
            for name, value in one.quantities.items()
        },
    }


PROBE = 64
"""Requests, all there from the start, that show what a strategy can serve."""


@dataclass(frozen=True, slots=True)
class Size:
    """Bounds of a run's duration and, unless flags say, of its lengths."""

    duration: float
    """Most seconds of arrivals."""
    max_input: int
    max_output: int
    least: int
    """Requests, however slow the machine is: a few say nothing."""


SHARED = (
    *("max_num_seqs", "max_model_len", "max_num_batched_tokens"),
    *("prefill_ahead", "max_batch_size", "slice_length", "min_interval"),
)
"""Flags of a simulation that the engine has too."""

FULL = Size(120.0, 512, 256, 40)
QUICK = Size(20.0, 256, 160, 10)


def lengths(asked: ValidateFlags, context_length: int) -> list[Lengths]:
    """The requests that the flags ask for, at --rate or, without it, all at the start; raises UserError.

    Lengths are clipped, so that an engine of this context can hold each.
    """
    size = QUICK if asked.quick else FULL
    clipped = replace(
        asked,
        duration=min(asked.duration, size.duration),
        max_input_len=min(asked.max_input_len or size.max_input, context_length // 2),
        max_output_len=min(asked.max_output_len or size.max_output, context_length // 2),
    )
    if asked.rate is not None:
        return simulated_load(clipped)
    probe = replace(clipped, rate=float(PROBE), duration=1.0)
    return [replace(one, arrival=0.0) for one in simulated_load(probe)]


def paced(asked: ValidateFlags, probe: Sequence[Lengths], rate: float) -> list[Lengths]:
    """Requests of the probe's kind, so many a second."""
    size = QUICK if asked.quick else FULL
    duration = min(asked.duration, size.duration)
    count = asked.num_requests or max(size.least, round(rate * duration))
    return draw_arrivals([probe[place % len(probe)] for place in range(count)], rate, asked.burstiness, asked.seed)


def validate(asked: ValidateFlags) -> int:
    """Play, simulate, print and save; returns the exit code: 1 when they are too far apart, or it cannot be done, 130
    after Ctrl-C, which leaves what was judged until then."""
    find_strategies(asked.chosen)
    require_writable(asked.save_result)
    engine = run_in_own_thread(partial(load_engine, _config(asked)))
    machine, found = describe_machine(), list[Verdict]()
    interrupted = False
    try:
        for verdict in _judge(asked, engine):
            found.append(verdict)
            document = {"machine": machine, "verdicts": [verdict_json(one) for one in found]}
            save_json(asked.save_result, document)
    except KeyboardInterrupt:
        interrupted = True
    table_console().print(table(found))
    if interrupted:
        return INTERRUPTED
    return 0 if all(one.holds for one in found) else 1


def _config(asked: ValidateFlags) -> ServeConfig:
    """Settings of the engine; flags of the simulation that mean the same win over the environment."""
    given = {name: getattr(asked, name) for name in SHARED}
    given |= {"model": asked.validate or None, "executors": asked.workers, "recompute": asked.recompute or None}
    return load_config({name: value for name, value in given.items() if value is not None}, os.environ, None)


def _judge(asked: ValidateFlags, engine: Engine) -> Iterator[Verdict]:
    """The verdicts on each strategy at each load, as they come."""
    twin = _twin(engine)
    with Bars() as bars:
        for name in asked.chosen:
            config = replace(engine.config, strategy=name)
            for rho, trace in _traces(asked, config, engine, bars):
                real, speed = _play(asked, config, engine, trace, bars)
                paces = (replace(twin, cost=speed.prices.slowed(one), pace=speed.curve.pace) for one in DRAWS)
                profiled, *draws = (_simulate(config, engine, one, trace) for one in (twin, *paces))
                compared = compare(measure_latencies(real.requests), profiled, draws)
                yield Verdict(name, rho, len(trace), speed.slowdown, compared)


def _play(
    asked: ValidateFlags, config: ServeConfig, engine: Engine, trace: Sequence[Lengths], bars: Bars
) -> tuple[Simulation, RunSpeed]:
    """A trace on new executors, and how fast these were."""
    speed = Speedometer(engine.profile)
    watch = bars.watch(f"{config.strategy} on the engine: {len(trace)} requests", len(trace))
    prompts = random_prompts(trace, engine.vocabulary, asked.seed)
    parts = partial(parts_for, config, engine.infos, engine.profile, inline)
    real = play(engine, parts, trace, prompts, _predict(config), watch, speed.hear)
    return real, speed.read()


def _traces(
    asked: ValidateFlags, config: ServeConfig, engine: Engine, bars: Bars
) -> Iterator[tuple[float | None, list[Lengths]]]:
    """The loads of a strategy: at --rate, else at shares of what it serves just now where all come at once."""
    wanted = lengths(asked, min(info.context_length for info in engine.infos))
    if asked.rate is not None:
        yield None, wanted
        return
    served = _play(asked, config, engine, wanted, bars)[0].throughput
    for rho in asked.rhos:
        yield rho, paced(asked, wanted, rho * served)


# The simulated twin


def _twin(engine: Engine) -> Machine:
    """The executors as a simulation has them: all like the smallest."""
    infos, model = engine.infos, engine.models[0]
    return Machine(
        cost=engine.profile,
        capacity_tokens=min(info.capacity_tokens for info in infos),
        max_num_seqs=min(info.max_rows for info in infos),
        context_length=min(info.context_length for info in infos),
        workers=len(infos),
        max_prefill_tokens=engine.config.chunk_tokens(infos[0].device),
        reads_padding=not (model.batch_invariant or model.device.type == "cuda"),
        runs_ahead=True,
    )


def _simulate(config: ServeConfig, engine: Engine, twin: Machine, trace: Sequence[Lengths]) -> Figures:
    """The figures of the trace on simulated executors; the scheduler believes in the profile, as beside the engine."""
    parts = parts_for(config, engine.infos, engine.profile, inline)
    done = simulate(parts, twin, trace, max(one.output_length for one in trace), predict=_predict(config))
    if failed := sum(not one.completed for one in done.requests):
        raise UserError(f"{failed} requests failed in the simulation of {config.strategy}")
    return measure_latencies(done.requests)


def _predict(config: ServeConfig) -> Predict | None:
    """The oracle for strategies that ask for lengths, on both sides; None for others."""
    return None if STRATEGIES[config.strategy].length == Length.NONE else true_length
