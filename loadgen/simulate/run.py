"""From the flags of `lengthwise simulate` to a table on the screen and a JSON file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from loadgen.console import table_console
from loadgen.html.plot import require_drawing
from loadgen.result_file import require_writable, save, save_json
from loadgen.simulate.figures import SimulatedFigures, figures
from loadgen.simulate.load import RATE, FittedLoad, fit_load, is_timed, simulated_load
from loadgen.simulate.node import Machine
from loadgen.simulate.prediction import Predict, Prediction, read_lengths
from loadgen.simulate.presets import PRESETS
from loadgen.simulate.report import details_json, figures_json, table
from loadgen.simulate.routers import ROUTERS
from loadgen.simulate.simulation import ALONE, Cluster, Conversations, Simulation, simulate
from loadgen.simulate.sweep.axes import list_points, name_values, read_axes
from loadgen.simulate.sweep.report import Swept, make_page, write_csv
from loadgen.workload.lengths import Lengths
from models.errors import UserError
from models.flags import read_options
from models.progress import Bars
from scheduler.assembly import assemble, find_strategies
from scheduler.batching.batcher import Limits
from scheduler.length.oracle import true_length
from scheduler.options import Scheduling
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.profile_file import latest_profile, read_profile
from scheduler.strategy import STRATEGIES, Length, Strategy

GROUP_TOKENS = 8192
"""Cells of a prefill group when nothing else is said."""

MAX_NUM_SEQS = 32
"""Rows that an executor runs at once, as in `lengthwise serve`."""

SAVED = (
    *("profile", "nodes", "router", "burstiness", "duration", "seed", "slice_length"),
    *("batch_wait_timeout", "aging_factor", "head_start", "boost_gamma", "recompute"),
)
"""Flags that are saved under their own names."""


def run_simulate(args: argparse.Namespace) -> int:
    """Simulate each strategy, print and save; returns the exit code: 1 when a request failed. Raises UserError."""
    axes = read_axes(args.sweep)
    if axes and args.save_result is not None:
        raise UserError("--save-result is for one simulation: with --sweep give --csv")
    for path, flag in ((args.save_result, "--save-result"), (args.csv, "--csv"), (args.report, "--report")):
        require_writable(path, flag)
    require_drawing(args.report, "--report")
    _refuse_impossible(args.strategies)
    caption, console = _caption(args, machine_of(args)[1]), table_console()
    if axes:
        caption += f"; but for {', '.join(args.sweep)}"
    points, notes = [], set()
    with Bars(threaded=True, lines=False, latest_only=bool(axes)) as bars:
        for point in list_points(args, axes):
            found, note = _play(point.args, bars)
            points.append((point, found))
            notes.add(note)
    named = {
        f"{name_values(axes, point.texts)} {name}".lstrip(): one
        for point, found in points
        for name, one in found.items()
    }
    console.print(table(named, caption))
    for line in sorted(filter(None, notes)):
        console.print(line, highlight=False)
    swept = Swept(axes, points)
    if args.csv is not None:
        save(args.csv, write_csv(swept).encode(), "--csv")
    if args.report is not None:
        save(args.report, make_page(swept, caption).encode(), "--report")
    return 1 if any(one.failed for one in named.values()) else 0


def _play(args: argparse.Namespace, bars: Bars) -> tuple[dict[str, SimulatedFigures], str | None]:
    """The figures of each strategy, and what became of requests that are too long. Saves all requests if that is asked
    for. Raises UserError."""
    cost, machine = machine_of(args)
    load = _load(args, machine)
    _check_predictions(args.prediction, load)
    done = _simulate_all(args, cost, machine, load.requests, bars)
    found = {name: figures(one) for name, one in done.items()}
    save_json(args.save_result, _document(args, machine, load, cost, found, done))
    return found, load.note


def _load(args: argparse.Namespace, machine: Machine) -> FittedLoad:
    """The requests, cut to what the machine can hold unless flags clip them; raises UserError."""
    requests = simulated_load(args)
    if args.max_input_len is not None or args.max_output_len is not None:
        return FittedLoad(requests, machine.longest)
    return fit_load(requests, machine.longest)


def machine_of(args: argparse.Namespace) -> tuple[Bilinear, Machine]:
    """The machine that the flags describe, and its serving-time model; raises UserError."""
    if args.cost in PRESETS:
        preset = PRESETS[args.cost]
        assert isinstance(preset.cost, Bilinear)
        cost, machine = preset.cost, preset
    else:
        cost = read_profile(_profile_path(args)).model
        if args.capacity_tokens is None:
            raise UserError("a profile does not say how much memory there is: give --capacity-tokens")
        machine = Machine(cost, args.capacity_tokens, MAX_NUM_SEQS, args.capacity_tokens)
    given = {
        "capacity_tokens": args.capacity_tokens,
        "max_num_seqs": args.max_num_seqs,
        "context_length": args.max_model_len,
        "workers": args.workers,
        "max_prefill_tokens": args.max_num_batched_tokens,
        "prefix_cache_tokens": args.prefix_cache_tokens,
    }
    return cost, replace(machine, **{name: value for name, value in given.items() if value is not None})


def limits_of(args: argparse.Namespace, machine: Machine) -> Limits:
    """The limits of batchers, as the server would set them."""
    options = read_options(args, Scheduling)
    limits = Limits.of(options, args.max_num_batched_tokens or GROUP_TOKENS, machine.max_num_seqs)
    return limits.within(machine.capacity_tokens, machine.context_length, machine.max_num_seqs)


def _refuse_impossible(names: tuple[str, ...]) -> None:
    for name, strategy in find_strategies(names).items():
        if (kept := strategy.quantization) is not None:
            raise UserError(f"--strategies: {name} keeps weights in {kept}, which only a real engine can do")


def _profile_path(args: argparse.Namespace) -> Path:
    if args.cost != "profile":
        path = Path(args.cost)
        if not path.exists():
            raise UserError(f"--cost {args.cost}: is no file, and none of profile, {', '.join(PRESETS)}")
        return path
    latest = latest_profile(args.cache())
    Console(stderr=True).print(f"profile: {latest}", highlight=False)
    return latest


def _simulate_all(
    args: argparse.Namespace, cost: Bilinear, machine: Machine, trace: list[Lengths], bars: Bars
) -> dict[str, Simulation]:
    """One strategy after another, each from the start."""
    limits = limits_of(args, machine)
    longest = args.max_output_len or max(one.output_length for one in trace)
    done: dict[str, Simulation] = {}
    for name in args.strategies:
        watch = bars.watch(name, len(trace))
        strategy = STRATEGIES[name]
        parts, *others = (assemble(strategy, limits, cost if args.profile else None) for _ in range(args.nodes))
        predict = _predict(strategy, args.prediction, args.seed)
        conversations = Conversations(args.turns, args.think_time)
        # A router weighs all that waits, every second: for one node it would choose nothing by that.
        cluster = Cluster(tuple((one, machine) for one in others), ROUTERS[args.router]) if others else ALONE
        done[name] = simulate(parts, machine, trace, longest, watch, predict, conversations, cluster)
    return done


def _predict(strategy: Strategy, prediction: Prediction, seed: int) -> Predict | None:
    """The predictor of a strategy; None for one that does not ask for lengths."""
    if strategy.length == Length.NONE:
        return None
    return true_length if strategy.length == Length.ORACLE else prediction.source(seed)


def _check_predictions(prediction: Prediction, load: FittedLoad) -> None:
    """Raises UserError where a file of predictions is not for these requests."""
    if prediction.file is not None and (found := len(read_lengths(prediction.file))) != len(load.requests):
        raise UserError(
            f"{prediction.file}: holds {found} lengths for {len(load.requests)} requests: one each is wanted"
        )


def _caption(args: argparse.Namespace, machine: Machine) -> str:
    """Settings that the figures depend on, so that a reader of the table can make it again."""
    rate = "a trace's own times" if args.rate is None and is_timed(args) else f"{args.rate or RATE:g} requests/s"
    known = "" if args.profile else ", no profile"
    nodes = f"{args.nodes} nodes, router {args.router}, each " if args.nodes > 1 else ""
    return (
        f"{args.cost}{known}: {nodes}"
        f"{machine.workers} x {machine.max_num_seqs} rows, {machine.capacity_tokens} tokens; "
        f"{rate}, seed {args.seed}, prediction {args.prediction}"
    )


def _document(
    args: argparse.Namespace,
    machine: Machine,
    load: FittedLoad,
    cost: Bilinear,
    found: Mapping[str, SimulatedFigures],
    done: Mapping[str, Simulation],
) -> dict[str, object]:
    return {
        "cost": args.cost,
        "cost_model": cost,
        "machine": {
            "workers": machine.workers,
            "capacity_tokens": machine.capacity_tokens,
            "max_num_seqs": machine.max_num_seqs,
            "max_model_len": machine.context_length,
            "max_num_batched_tokens": machine.max_prefill_tokens,
        },
        "dataset_name": " ".join(args.mix) if args.mix else args.dataset_name or "builtin",
        "answers_cut": load.answers_cut,
        "prompts_left_out": load.prompts_left_out,
        "request_rate": args.rate,
        "prediction": str(args.prediction),
        **{name: getattr(args, name) for name in SAVED},
        "strategies": {name: figures_json(found[name]) | details_json(done[name]) for name in done},
    }
