"""A profile as people read it: what was measured, what was fitted, and how far apart they are."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.table import Table

from engine.measure.timing import Timing
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.profile_file import Profile

PUBLISHED_PREFILL = "SCLS: 160 ms with transformers, less than 40 ms with DeepSpeed"
PUBLISHED_SLICE = "SCLS: 2300 ms, less than 400 ms"
"""Figures 10a and 10b, on an A100 with LLaMA2-13B."""


def print_report(profile: Profile, console: Console | None = None) -> None:
    """Tables and lines on standard output."""
    console = console or Console()
    conditions, timings, model, errors = profile.conditions, profile.timings, profile.model, profile.errors
    place = (
        f"{conditions.threads} thread{'s' * (conditions.threads > 1)} of {conditions.device}"
        if conditions.threads
        else conditions.device
    )
    _say(console, f"{conditions.model}, {conditions.dtype}, on {place}")
    _say(console, "prefill in ms, by rows and prompt tokens")
    console.print(_grid(timings.prefill))
    _say(console, "one decode iteration in ms, by rows and columns read")
    console.print(_grid(timings.decode))
    _say(console, "K and V of a row to host memory and back in ms, by tokens")
    console.print(_copies(timings.copies))
    for line in equations(model):
        _say(console, line)
    _say(console, kept(model))
    _say(console, "root-mean-square errors, beside the mean of what was measured:")
    _say(console, _error("prefill", errors.prefill, [cell.seconds for cell in timings.prefill], PUBLISHED_PREFILL))
    _say(console, _error("one iteration", errors.iteration, [cell.seconds for cell in timings.decode]))
    if errors.copies is not None:
        _say(console, _error("a row's copies", errors.copies, [cell.seconds / cell.rows for cell in timings.copies]))
    if errors.slices is None:
        _say(console, "  whole slices were not measured for lack of time or context: raise --time-limit")
        return
    iterations = timings.slices[0].iterations
    served = [cell.seconds for cell in timings.slices]
    _say(console, _error(f"slice of {iterations}", errors.slices, served, PUBLISHED_SLICE))
    console.print(_slices(profile))


def equations(model: Bilinear) -> tuple[str, str, str]:
    """The fit in the paper's notation (SCLS, equations 3 and 4), in seconds, and that of copies."""
    prefill = f"{model.p1:.3g}·N·L + {model.p2:.3g}·N + {model.p3:.3g}·L + {model.p4:.3g} + {model.p5:.3g}·N·L²"
    decode = f"{model.d1:.3g}·N·l + {model.d2:.3g}·N + {model.d3:.3g}·l + {model.d4:.3g}"
    copies = f"{model.c1:.3g}·L + {model.c0:.3g}"
    return f"T_prefill(N, L) = {prefill}", f"τ_decode(l, N)  = {decode}", f"T_copy(L)       = {copies}"


def compare_learned(learned: Profile, measured: Profile) -> Iterator[str]:
    """Lines that tell how far the prices which a server has learned are from what was measured.

    Only cells within the rows and lengths that it has learned from count; others are prices that it never needed.
    """
    yield f"prices learned while serving, up to {learned.measured_at}, beside what was measured:"
    yield _deviation("prefill", learned.model.prefill, learned.timings.prefill, measured.timings.prefill)
    yield _deviation("one iteration", learned.model.iteration, learned.timings.decode, measured.timings.decode)


def _deviation(
    what: str, price: Callable[[float, float], float], served: Sequence[Timing], measured: Sequence[Timing]
) -> str:
    rows, lengths = {one.rows for one in served}, {one.length for one in served}
    errors = [
        (price(float(one.rows), float(one.length)) / one.seconds - 1, one)
        for one in measured
        if min(rows) <= one.rows <= max(rows) and min(lengths) <= one.length <= max(lengths)
    ]
    of = f"{len(errors)} of {len(measured)} cells"
    if not errors:
        return f"  {what:<14} no step of these sizes was served ({of})"
    middle = statistics.median(abs(error) for error, _ in errors)
    worst, cell = max(errors, key=lambda one: abs(one[0]))
    return f"  {what:<14} median {middle:.1%}, worst {worst:+.1%} at {cell.rows} x {cell.length} tokens ({of})"


def kept(model: Bilinear) -> str:
    """Which rows the fit lets keep their K and V when they are handed back."""
    lengths = model.kept_lengths()
    if not lengths:
        return "rows that are handed back are read again, which takes less than copying, whatever their length"
    if lengths.start <= 1 and lengths.stop == sys.maxsize:
        return (
            "rows that are handed back keep their K and V, which takes less than reading again, whatever their length"
        )
    bound = f"from {lengths.start} tokens on" if lengths.stop == sys.maxsize else f"up to {lengths.stop - 1} tokens"
    return f"rows that are handed back keep their K and V {bound}, where that takes less than reading again"


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _error(what: str, error: float, measured: Sequence[float], published: str = "") -> str:
    told = f"  {what:<14} {1e3 * error:9.2f} ms of {1e3 * statistics.mean(measured):9.2f} ms ({len(measured)} measured"
    return f"{told}; {published})" if published else f"{told})"


def _grid(timings: Sequence[Timing]) -> Table:
    lengths = sorted({cell.length for cell in timings})
    found = {(cell.rows, cell.length): f"{1e3 * cell.seconds:.1f}" for cell in timings}
    table = Table("rows", *map(str, lengths))
    for rows in sorted({cell.rows for cell in timings}):
        table.add_row(str(rows), *(found.get((rows, length), "-") for length in lengths))
    return table


def _copies(timings: Sequence[Timing]) -> Table:
    table = Table(*(str(cell.length) for cell in timings))
    table.add_row(*(f"{1e3 * cell.seconds / cell.rows:.2f}" for cell in timings))
    return table


def _slices(profile: Profile) -> Table:
    table = Table("rows", "prompt tokens", "measured, s", "estimated, s")
    for cell in profile.timings.slices:
        estimated = profile.model.serve(cell.rows, cell.length, cell.iterations)
        table.add_row(str(cell.rows), str(cell.length), f"{cell.seconds:.2f}", f"{estimated:.2f}")
    return table
