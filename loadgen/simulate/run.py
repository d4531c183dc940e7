"""`lengthwise simulate` from flags to table and files."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from engine.simulated.machine import Machine
from loadgen.console import show_table, table_console
from loadgen.plot import require_report
from loadgen.result_file import Json, require_writable, save, save_json
from loadgen.simulate import report
from loadgen.simulate.figures import Figures, measure_simulation
from loadgen.simulate.flags import SimulateFlags
from loadgen.simulate.load import RATE, fit_load, is_timed, simulated_load
from loadgen.simulate.node import ROUTERS
from loadgen.simulate.prediction import choose_prediction, read_lengths
from loadgen.simulate.simulation import Simulation, fit_parts, prices_of, simulate
from loadgen.turns import collect
from loadgen.workload.lengths import RequestLengths
from models.catalog.catalog import default_cache
from models.errors import INTERRUPTED, UsageError, UserError
from models.progress import Bars, say
from models.signals import stoppable
from scheduler.assembly import find_strategies
from scheduler.batching.batcher import BatchLimits
from scheduler.serving_time.presets import PRESETS
from scheduler.serving_time.profile_file import latest_profile, read_profile
from scheduler.strategy import STRATEGIES

GROUP_TOKENS = 8192  # cells of a prefill group by default

MAX_NUM_SEQS = 32  # by default, as in `serve`

FLAGS = {"context_length": "max_model_len", "max_prefill_tokens": "max_num_batched_tokens"}  # of other names
SIZES = ("workers", "capacity_tokens", "max_num_seqs", *FLAGS)  # of a machine

SEEDS = 5  # at each point of a sweep by default
LONG = 10.0  # seconds from which an estimate is printed


@dataclass(frozen=True, slots=True)
class Trace:
    flags: SimulateFlags
    machine: Machine
    load: list[RequestLengths]
    answers_cut: int  # by the machine's size
    prompts_left_out: int  # no room for an answer

    @property
    def note(self) -> str:
        """On what was cut; may be empty."""
        if not (self.answers_cut or self.prompts_left_out):
            return ""
        return (
            f"Of {len(self.load) + self.prompts_left_out} requests, {self.prompts_left_out} are dropped and "
            f"{self.answers_cut} cut: at most {self.machine.longest} tokens fit (--max-model-len, --capacity-tokens)."
        )


def run_simulate(flags: SimulateFlags) -> int:
    """The exit code: 1 when a request failed, 130 when interrupted. Raises UserError."""
    axes, usual = report.read_axes(flags.sweep), SimulateFlags()
    for one in axes:
        if str(getattr(flags, one.flag)) != str(getattr(usual, one.flag)):
            raise UsageError(f"--sweep {one.name} and --{one.flag.replace('_', '-')} set the same: leave one out")
    seeds = _count_seeds(flags, axes)
    if flags.save_result is not None and (axes or seeds > 1):
        raise UsageError("--save-result is for one simulation: with --sweep or --seeds give --csv")
    require_writable(flags.save_result)
    require_writable(flags.csv, "--csv")
    require_report(flags.report)
    _refuse_impossible(flags.chosen)
    caption = _write_caption(flags, machine_of(flags), axes, seeds)
    with stoppable(), Bars(threaded=True, lines=False, latest_only=bool(axes)) as bars:
        runs, whole = collect(_run_all(flags, axes, seeds, bars))
    _publish(flags, runs, caption)
    if not whole:
        say(f"interrupted: these are the {len(runs)} simulations that had ended")
        return INTERRUPTED
    return 1 if any(one.figures["failed"] for one in runs) else 0


def _count_seeds(flags: SimulateFlags, axes: Sequence[report.Axis]) -> int:
    swept = any(axis.flag == "seed" for axis in axes)
    if swept and (flags.seeds or 1) > 1:
        raise UsageError("--seeds: leave it out where --sweep varies the seed")
    return flags.seeds or (SEEDS if axes and not swept else 1)


def _run_all(flags: SimulateFlags, axes: Sequence[report.Axis], seeds: int, bars: Bars) -> Iterator[report.Ran]:
    points, begun, ended = list(report.list_points(flags, axes)), time.monotonic(), 0
    total = len(points) * seeds * len(flags.chosen)
    for point, swept in points:
        for seed in range(swept.seed, swept.seed + seeds):
            trace = _prepare(replace(swept, seed=seed))
            done: dict[str, tuple[Figures, Simulation]] = {}
            for name in flags.chosen:
                simulation = _simulate(trace, name, bars)
                found = measure_simulation(simulation, trace.machine.cost)
                done[name] = found, simulation
                yield report.Ran(point, seed, name, found, trace.note)
                ended += 1
                left, each = total - ended, (time.monotonic() - begun) / ended
                if ended == len(flags.chosen) and left * each >= LONG:
                    bars.say(f"{left} more simulations take about {left * each:.0f} s; Ctrl-C keeps those that ended")
            save_json(flags.save_result, _document(trace, done) if flags.save_result else {})


def _publish(flags: SimulateFlags, runs: Sequence[report.Ran], caption: str) -> None:
    if not runs:
        return
    console = table_console()
    console.print(show_table(report.make_table(runs, everything=flags.all)))
    notes = sorted({one.note for one in runs if one.note})
    for line in (caption, *notes, *(() if flags.all else ("All figures: --all",))):
        console.print(line, highlight=False, markup=False)
    if flags.csv is not None:
        save(flags.csv, report.write_csv(runs).encode(), "--csv")
    if flags.report is not None:
        save(flags.report, report.make_page(runs, caption).encode(), "--report")


def _prepare(flags: SimulateFlags) -> Trace:
    """The machine, and requests cut to it unless flags clip them."""
    machine = machine_of(flags)
    requests = simulated_load(flags)
    clipped = flags.max_input_len is not None or flags.max_output_len is not None
    load, cut, left_out = (requests, 0, 0) if clipped else fit_load(requests, machine.longest)
    file, wanted = flags.prediction.file, len(load)
    if file is not None and (told := len(read_lengths(file))) != wanted:
        raise UserError(f"{file}: holds {told} lengths for {wanted} requests: one each is wanted")
    return Trace(flags, machine, load, cut, left_out)


def machine_of(flags: SimulateFlags) -> Machine:
    """Raises UserError."""
    if flags.cost in PRESETS:
        machine = PRESETS[flags.cost]
    else:
        cost = read_profile(_find_profile(flags.cost)).model
        if flags.capacity_tokens is None:
            raise UsageError("a profile does not say how much memory there is: give --capacity-tokens")
        machine = Machine(cost, flags.capacity_tokens, MAX_NUM_SEQS, flags.capacity_tokens, reads_padding=False)
    given = {name: getattr(flags, FLAGS.get(name, name)) for name in (*SIZES, "prefix_cache_tokens")}
    return replace(machine, **{name: value for name, value in given.items() if value is not None})


def _refuse_impossible(names: Sequence[str]) -> None:
    for name, strategy in find_strategies(names).items():
        if (kept := strategy.quantization) is not None:
            raise UsageError(f"--strategies: {name} keeps weights in {kept}, which only a real engine can do")


def _find_profile(cost: str) -> Path:
    if cost != "profile":
        path = Path(cost)
        if not path.exists():
            raise UsageError(f"--cost {cost}: is no file, and none of profile, {', '.join(PRESETS)}")
        return path
    latest = latest_profile(default_cache())
    say(f"profile: {latest}")
    return latest


def _simulate(trace: Trace, name: str, bars: Bars) -> Simulation:
    flags, machine, load, strategy = trace.flags, trace.machine, trace.load, STRATEGIES[name]
    limits = BatchLimits.of(flags, flags.max_num_batched_tokens or GROUP_TOKENS, machine.max_num_seqs)
    prices = prices_of(machine) if flags.profile else None
    parts, *others = (fit_parts(strategy, limits, machine, prices) for _ in range(flags.nodes))
    return simulate(
        parts,
        machine,
        load,
        flags.max_output_len,
        bars.watch(name, len(load)),
        choose_prediction(strategy, flags.prediction.source(flags.seed)),
        turns=flags.turns,
        think_time=flags.think_time,
        others=[(one, machine) for one in others],
        # with one node a router chooses nothing
        router=ROUTERS[flags.router]() if others else None,
    )


def _write_caption(flags: SimulateFlags, machine: Machine, axes: Sequence[report.Axis], seeds: int) -> str:
    swept = {axis.flag for axis in axes}
    rate = "a trace's own times" if flags.rate is None and is_timed(flags) else f"{flags.rate or RATE:g} requests/s"
    if flags.programs:
        rate = f"{flags.programs} runs" + (f", {rate}" if flags.rate is not None or is_timed(flags) else "")
    nodes = f"{flags.nodes} nodes, router {flags.router}, each " if flags.nodes > 1 else ""
    last = flags.seed + seeds - 1
    fixed = {
        "rate": rate,
        "seed": f"seed {flags.seed}" if seeds == 1 else f"seeds {flags.seed} to {last}, means (lowest to highest)",
        "prediction": f"prediction {flags.prediction}",
    }
    told = [*(text for name, text in fixed.items() if name not in swept), *flags.sweep]
    return (
        f"{flags.cost}{'' if flags.profile else ', no profile'}: {nodes}"
        f"{machine.workers} x {machine.max_num_seqs} rows, {machine.capacity_tokens} tokens; {', '.join(told)}"
    )


def _document(trace: Trace, done: Mapping[str, tuple[Figures, Simulation]]) -> Json:
    return {
        **{name: one if isinstance(one, int | float | None) else str(one) for name, one in vars(trace.flags).items()},
        "cost_model": trace.machine.cost,
        "machine": {name: getattr(trace.machine, name) for name in SIZES},
        "answers_cut": trace.answers_cut,
        "prompts_left_out": trace.prompts_left_out,
        "strategies": {name: found | asdict(one) for name, (found, one) in done.items()},
    }
