"""Measures a profile: load, survey, fit, check on slices. Nothing else may compute meanwhile."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rich.console import Console
from rich.table import Table

from engine.measure.profiler import GridCell, Profiler, grid, survey
from engine.measure.timing import SliceTiming, Timing
from models.errors import UserError
from scheduler.serving_time.bilinear import Bilinear, fit
from scheduler.serving_time.profile_file import Profile
from server.composition import devices, scheduling
from server.composition.loading import load_models
from server.config import ServeConfig

LONGEST = 2048  # tokens of measured rows by default; beyond, attention dominates and the bilinear fit suffers

SLICE = 128  # decode steps (SCLS, 5.1)

SLICES_SHARE = 0.4  # of the time limit

COPIES = 3  # a prefill holds prompts three times: group, cut rows, arena

Watch = Callable[[str, int, int], None]  # (phase, steps done, steps)


@dataclass(frozen=True, slots=True)
class Effort:
    """`points` batch sizes by `points` lengths, and `slices`."""

    points: int
    slices: int


FULL = Effort(points=6, slices=6)
QUICK = Effort(points=3, slices=2)


def make_profile(
    config: ServeConfig, effort: Effort, time_limit: float, watch: Watch, clock: Callable[[], float] = time.perf_counter
) -> Profile:
    """For about `time_limit` seconds after loading. Raises UserError, also for too little time."""
    (model,), text = load_models(config, most=1)
    longest = min(devices.context_length(config, model.context_length), config.max_model_len or LONGEST)
    capacity = min(devices.capacity_tokens(config, model) // COPIES, config.expected_slots * (longest + SLICE))
    profiler = devices.open_profiler(config, model, text, config.expected_slots, capacity, clock)
    try:
        cells = grid(config.expected_slots, longest, points=effort.points)
        timings = survey(profiler, cells, time_limit * (1 - SLICES_SHARE), watch)
        fitted = fit(timings.prefill, timings.decode, timings.copies)
    except ValueError as error:
        raise UserError(f"{error}; with too little time, raise --time-limit") from error
    fit_in = (one for one in cells if one.length + SLICE <= longest and profiler.holds(one.rows, one.length + SLICE))
    wanted = slice_cells(fit_in, fitted, effort.slices, time_limit * SLICES_SHARE)
    timings = replace(timings, slices=_slices(profiler, wanted, watch))
    return scheduling.make_profile(devices.conditions_of(config, model), fitted, timings)


def slice_cells(cells: Iterable[GridCell], model: Bilinear, count: int, seconds: float) -> tuple[GridCell, ...]:
    """Up to `count` cells, evenly by cost, within the time."""
    costs = {cell: model.serve(cell.rows, cell.length, SLICE) for cell in cells}
    for steps in range(count, 0, -1):
        affordable = sorted((cell for cell in costs if costs[cell] <= seconds / steps), key=lambda cell: costs[cell])
        if len(affordable) >= steps:
            last = len(affordable) - 1
            return tuple(affordable[last * step // steps] for step in range(1, steps + 1))
    return ()


def _slices(profiler: Profiler, cells: tuple[GridCell, ...], watch: Watch) -> tuple[SliceTiming, ...]:
    timings = []
    for done, cell in enumerate(cells, start=1):
        timings.append(SliceTiming(*cell, SLICE, profiler.slice(*cell, SLICE)))
        watch(f"slices of {SLICE}", done, len(cells))
    return tuple(timings)


PUBLISHED: Mapping[str, str] = {
    "prefill": "; SCLS: 160 ms with transformers, less than 40 ms with DeepSpeed",
    f"slice of {SLICE}": "; SCLS: 2300 ms, less than 400 ms",
}  # SCLS's A100 with LLaMA2-13B (Figures 10a and 10b)


def print_report(profile: Profile) -> None:
    console = Console()
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    conditions, timings, model, errors = profile.conditions, profile.timings, profile.model, profile.errors
    threads = f"{conditions.threads} thread{'s' * (conditions.threads > 1)} of " if conditions.threads else ""
    say(f"{conditions.model}, {conditions.dtype}, on {threads}{conditions.device}")
    copies = [replace(cell, rows=1, seconds=cell.seconds / cell.rows) for cell in timings.copies]
    for title, cells in (
        ("prefill in ms, by rows and prompt tokens", timings.prefill),
        ("one decode iteration in ms, by rows and columns read", timings.decode),
        ("KV cache of a row to host memory and back in ms, by tokens", copies),
    ):
        say(title)
        console.print(_grid(cells))
    # in SCLS's notation (equations 3 and 4), seconds
    prefill = f"{model.p1:.3g}·N·L + {model.p2:.3g}·N + {model.p3:.3g}·L + {model.p4:.3g} + {model.p5:.3g}·N·L²"
    say(f"T_prefill(N, L) = {prefill}")
    say(f"τ_decode(l, N)  = {model.d1:.3g}·N·l + {model.d2:.3g}·N + {model.d3:.3g}·l + {model.d4:.3g}")
    say(f"T_copy(L)       = {model.c1:.3g}·L + {model.c0:.3g}")
    say("root-mean-square errors, beside the mean of what was measured:")
    for what, error, measured in (
        ("prefill", errors.prefill, timings.prefill),
        ("one iteration", errors.iteration, timings.decode),
        ("a row's copies", errors.copies, copies),
        (f"slice of {SLICE}", errors.slices, timings.slices),
    ):
        if error is not None:
            mean, published = statistics.mean(cell.seconds for cell in measured), PUBLISHED.get(what, "")
            say(f"  {what:<14} {1e3 * error:9.2f} ms of {1e3 * mean:9.2f} ms ({len(measured)} measured{published})")
    if errors.slices is None:
        say("  whole slices were not measured for lack of time or context: raise --time-limit")


def _grid(timings: Sequence[Timing]) -> Table:
    lengths = sorted({cell.length for cell in timings})
    found = {(cell.rows, cell.length): f"{1e3 * cell.seconds:.2f}" for cell in timings}
    table = Table("rows", *map(str, lengths))
    for rows in sorted({cell.rows for cell in timings}):
        table.add_row(str(rows), *(found.get((rows, length), "-") for length in lengths))
    return table
