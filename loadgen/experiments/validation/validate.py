"""`lengthwise simulate --validate`: one trace on the real engine and in the simulator, compared."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import fmean, pstdev

from engine.simulated.machine import Machine
from loadgen.compare.machine import describe_machine
from loadgen.console import COLUMNS, Table, show_table, table_console
from loadgen.experiments.validation.play import Engine, load_engine, play
from loadgen.result_file import Json, require_writable, save_json
from loadgen.simulate.figures import Figures, measure_latencies
from loadgen.simulate.flags import ValidateFlags
from loadgen.simulate.load import draw_arrivals, simulated_load
from loadgen.simulate.prediction import choose_prediction
from loadgen.simulate.simulation import simulate
from loadgen.turns import collect
from loadgen.workload.lengths import RequestLengths
from models.errors import INTERRUPTED, UserError
from models.progress import Bars
from models.threads import run_in_own_thread
from scheduler.assembly import find_strategies
from scheduler.learner import inline
from scheduler.length.oracle import true_length
from scheduler.strategy import STRATEGIES
from server.composition.scheduling import parts_for
from server.config import ServeConfig, load_config

MEAN_BOUND, P99_BOUND = 0.05, 0.10  # relative errors within which the simulator is trusted

LEAST = 1e-3  # smaller differences are none: whole batches have a TPOT of 0

QUANTITIES: Mapping[str, float] = {
    **{f"mean_{name}_ms": MEAN_BOUND for name in ("ttft", "tpot", "jct")},
    **{f"p99_{name}_ms": P99_BOUND for name in ("ttft", "tpot", "jct")},
    "request_throughput": MEAN_BOUND,
}  # figures and bounds

# slowdowns of simulations whose mean counts: plans may depend on milliseconds, and the engine's run is one draw
DRAWS = tuple(1 + 0.0005 * step for step in range(-8, 9))


@dataclass(frozen=True, slots=True)
class Quantity:
    real: float
    profiled: float  # at the profile's speed
    simulated: float  # at this run's speed
    bound: float = MEAN_BOUND
    spread: float = 0.0  # standard deviation of the latter

    @property
    def deviation(self) -> float:
        """Relative; 0 where both are next to nothing."""
        return _deviate(self.simulated, self.real)

    @property
    def profile_deviation(self) -> float:
        return _deviate(self.profiled, self.real)

    @property
    def holds(self) -> bool:
        return abs(self.deviation) <= self.bound


def _deviate(simulated: float, real: float) -> float:
    return 0.0 if max(simulated, real) <= LEAST else simulated / real - 1


@dataclass(frozen=True, slots=True)
class ValidationVerdict:
    """One strategy at one load, at the run's own speed, as other load slows a machine."""

    strategy: str
    rho: float | None  # of what the strategy serves; None with a given rate
    requests: int
    slowdown: float  # of steps against the profile
    quantities: Mapping[str, Quantity]

    @property
    def holds(self) -> bool:
        return all(one.holds for one in self.quantities.values())


def compare(real: Figures, profiled: Figures, simulated: Sequence[Figures]) -> dict[str, Quantity]:
    found = {}
    for column, bound in ((COLUMNS[key], bound) for key, bound in QUANTITIES.items()):
        engine, profile, *draws = (one[column.key] * column.scale for one in (real, profiled, *simulated))
        found[column.axis] = Quantity(engine, profile, fmean(draws), bound, pstdev(draws))
    return found


HEADS = (
    *("", "engine", "by the profile", "deviation", "slowdown", "at that speed", "spread", "deviation"),
    *("bound", "within"),
)


def tabulate(verdicts: Sequence[ValidationVerdict]) -> Table:
    caption = (
        "The simulator beside the engine; slowdown: seconds of this run's steps, over what the profile says; spread: "
        f"standard deviation of {len(DRAWS)} simulations between which the speed differs by {DRAWS[-1] - DRAWS[0]:.1%}"
    )
    rows = (_cells(one, name, value) for one in verdicts for name, value in one.quantities.items())
    return Table(caption, HEADS, tuple(rows))


def _cells(verdict: ValidationVerdict, name: str, one: Quantity) -> tuple[str, ...]:
    load = "" if verdict.rho is None else f", ρ {verdict.rho:g}"
    engine = (f"{one.real:.3f}", f"{one.profiled:.3f}", f"{one.profile_deviation:+.1%}", f"{verdict.slowdown:.2f}")
    judged = (f"{one.deviation:+.1%}", f"{one.bound:.0%}", "yes" if one.holds else "no")
    return (f"{verdict.strategy}{load}: {name}", *engine, f"{one.simulated:.3f}", f"{one.spread:.3f}", *judged)


def verdict_json(one: ValidationVerdict) -> Json:
    quantities = {
        name: asdict(value) | {"profile_deviation": value.profile_deviation, "deviation": value.deviation}
        for name, value in one.quantities.items()
    }
    return asdict(one) | {"holds": one.holds, "quantities": quantities}


PROBE = 64  # requests at once that show what a strategy serves


@dataclass(frozen=True, slots=True)
class RunSize:
    """Bounds of a run's duration and, by default, of its lengths."""

    duration: float  # of arrivals, at most
    max_input: int
    max_output: int
    least: int  # requests, however slow the machine


SHARED = (
    *("max_num_seqs", "max_model_len", "max_num_batched_tokens"),
    *("prefill_ahead", "max_batch_size", "slice_length", "min_interval"),
)  # flags of both

FULL = RunSize(120.0, 512, 256, 40)
QUICK = RunSize(20.0, 256, 160, 10)


def lengths(asked: ValidateFlags, context_length: int) -> list[RequestLengths]:
    """At --rate, or all at the start; clipped to the engine's context. Raises UserError."""
    size = QUICK if asked.quick else FULL
    clipped = replace(
        asked,
        duration=min(asked.duration, size.duration),
        max_input_len=min(asked.max_input_len or size.max_input, context_length // 2),
        max_output_len=min(asked.max_output_len or size.max_output, context_length // 2),
    )
    if asked.rate is not None:
        return simulated_load(clipped)
    return [replace(one, arrival=0.0) for one in simulated_load(replace(clipped, rate=float(PROBE), duration=1.0))]


def paced(asked: ValidateFlags, probe: Sequence[RequestLengths], rate: float) -> list[RequestLengths]:
    size = QUICK if asked.quick else FULL
    duration = min(asked.duration, size.duration)
    count = asked.num_requests or max(size.least, round(rate * duration))
    return draw_arrivals([probe[place % len(probe)] for place in range(count)], rate, asked.burstiness, asked.seed)


def validate(asked: ValidateFlags) -> int:
    """The exit code is 1 when they differ too much, 130 after Ctrl-C, which keeps what was judged."""
    find_strategies(asked.chosen)
    require_writable(asked.save_result)
    engine = run_in_own_thread(partial(load_engine, _config(asked)))
    machine = describe_machine()

    def keep(found: list[ValidationVerdict]) -> None:
        save_json(asked.save_result, {"machine": machine, "verdicts": [verdict_json(one) for one in found]})

    found, whole = collect(_judge(asked, engine), keep)
    table_console().print(show_table(tabulate(found)))
    return int(not all(one.holds for one in found)) if whole else INTERRUPTED


def _config(asked: ValidateFlags) -> ServeConfig:
    given = {name: getattr(asked, name) for name in SHARED}
    given |= {"model": asked.validate or None, "executors": asked.workers, "recompute": asked.recompute or None}
    return load_config({name: value for name, value in given.items() if value is not None}, os.environ, None)


def _judge(asked: ValidateFlags, engine: Engine) -> Iterator[ValidationVerdict]:
    twin = _twin(engine)
    with Bars() as bars:
        for name in asked.chosen:
            config = replace(engine.config, strategy=name)
            for rho, trace in _traces(asked, config, engine, bars):
                real, speed = play(engine, config, trace, asked.seed, bars)
                paces = (replace(twin, cost=speed.prices.slowed(one), pace=speed.pace) for one in DRAWS)
                profiled, *draws = (_simulate(config, engine, one, trace) for one in (twin, *paces))
                compared = compare(measure_latencies(real.requests), profiled, draws)
                yield ValidationVerdict(name, rho, len(trace), speed.slowdown, compared)


def _traces(
    asked: ValidateFlags, config: ServeConfig, engine: Engine, bars: Bars
) -> Iterator[tuple[float | None, list[RequestLengths]]]:
    """At --rate, else at shares of what it just served."""
    wanted = lengths(asked, min(info.context_length for info in engine.infos))
    if asked.rate is not None:
        yield None, wanted
        return
    served = play(engine, config, wanted, asked.seed, bars)[0].throughput
    for rho in asked.rhos:
        yield rho, paced(asked, wanted, rho * served)


# the simulated twin


def _twin(engine: Engine) -> Machine:
    infos, model = engine.infos, engine.models[0]
    return Machine(
        cost=engine.profile,
        capacity_tokens=min(info.capacity_tokens for info in infos),
        max_num_seqs=min(info.max_rows for info in infos),
        context_length=min(info.context_length for info in infos),
        workers=len(infos),
        max_prefill_tokens=engine.config.chunk_tokens(infos[0].device),
        reads_padding=not (model.reads_exactly or model.device.type == "cuda"),
        runs_ahead=True,
    )


def _simulate(config: ServeConfig, engine: Engine, twin: Machine, trace: Sequence[RequestLengths]) -> Figures:
    """The scheduler believes in the profile, as on the engine."""
    parts = parts_for(config, engine.infos, engine.profile, inline)
    done = simulate(parts, twin, trace, predict=choose_prediction(STRATEGIES[config.strategy], true_length))
    if failed := sum(not one.completed for one in done.requests):
        raise UserError(f"{failed} requests failed in the simulation of {config.strategy}")
    return measure_latencies(done.requests)
