"""The results of an engine benchmark as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from loadgen.experiments.engine.contest import Standing
from loadgen.experiments.engine.floor import Floor
from loadgen.experiments.engine.overhead import Overhead

OURS, PLAIN = "lengthwise", "generate"
OVERHEAD_GOAL = 0.10

MIB = 2**20


@dataclass(frozen=True, slots=True)
class GridResult:
    """One number of rows, all of one shape."""

    rows: int
    floor_step: float
    """Seconds that a step takes at least."""
    standings: tuple[Standing, ...]


@dataclass(frozen=True, slots=True)
class Results:
    """All results of a run; those that were not asked for are None or empty."""

    setting: dict[str, object]
    floor: Floor | None = None
    grid: tuple[GridResult, ...] = ()
    ragged: tuple[Standing, ...] = ()
    overhead: Overhead | None = None

    @property
    def troubles(self) -> list[str]:
        """Reasons that kept this engine itself from running."""
        return [one.trouble for one in self.standings if one.name == OURS and one.trouble is not None]

    @property
    def standings(self) -> list[Standing]:
        """Every standing of grid and ragged."""
        return [*(one for result in self.grid for one in result.standings), *self.ragged]


def show(results: Results, console: Console) -> None:
    """Print the tables of all parts that were measured."""
    if results.floor is not None:
        floor = results.floor
        console.print(
            f"memory bandwidth {floor.bandwidth / 1e9:.1f} GB/s, weights {floor.weight_bytes / MIB:.0f} MiB, "
            f"K and V {floor.kv_bytes_per_token / 1024:.1f} KiB a token",
            highlight=False,
        )
        console.print(_grid_table(results))
    if results.ragged:
        console.print(_ragged_table(results))
    if results.overhead is not None:
        console.print(_overhead_line(results.overhead), highlight=False)
    for name, trouble in {
        one.name: one.trouble for one in results.standings if one.trouble and one.name != OURS
    }.items():
        console.print(f"{name} cannot run here: {trouble}", markup=False, highlight=False)


def results_json(results: Results) -> dict[str, object]:
    """Seconds, bytes, tokens a second."""
    return {
        "setting": results.setting,
        "floor": None if results.floor is None else asdict(results.floor),
        "grid": [
            {
                "rows": one.rows,
                "floor_step": one.floor_step,
                "floor_tokens_per_s": one.rows / one.floor_step,
                "standings": [_standing_json(standing, one.standings) for standing in one.standings],
            }
            for one in results.grid
        ],
        "ragged": [_standing_json(standing, results.ragged) for standing in results.ragged],
        "overhead": None if results.overhead is None else asdict(results.overhead),
    }


def _standing_json(standing: Standing, among: Sequence[Standing]) -> dict[str, object]:
    return {
        "name": standing.name,
        "tokens_per_s": standing.rates,
        "step_seconds": standing.steps,
        "peak_bytes": standing.peak_bytes,
        "trouble": standing.trouble,
        "median_tokens_per_s": standing.rate if standing.rates else None,
        "ratio_to_generate": _ratio(standing, among),
    }


def _grid_table(results: Results) -> Table:
    columns = ("rows", "", "tokens/s (min-max)", "to generate", "ms a step", "to floor", "peak memory, MiB")
    table = Table(*columns, title=_title("output tokens/s, prefill included", results.setting))
    for one in results.grid:
        for standing in one.standings:
            rate, ratio, memory = _cells(standing, one.standings)
            step = f"{standing.step * 1000:.1f}" if standing.rates else "-"
            to_floor = f"{standing.step / one.floor_step:.2f}" if standing.rates else "-"
            table.add_row(str(one.rows), standing.name, rate, ratio, step, to_floor, memory)
        floor = (f"{one.rows / one.floor_step:.1f}", "", f"{one.floor_step * 1000:.1f}", "1.00", "")
        table.add_row(str(one.rows), "floor", *floor, end_section=True)
    return table


def _ragged_table(results: Results) -> Table:
    setting = results.setting
    title = (
        f"useful output tokens/s, {setting['num_requests']} requests of {setting['min_len']}-{setting['max_len']} in "
        f"and out, {setting['slots']} slots"
    )
    table = Table("", "tokens/s (min-max)", "to generate", "peak memory, MiB", title=_title(title, setting))
    for standing in results.ragged:
        table.add_row(standing.name, *_cells(standing, results.ragged))
    return table


def _overhead_line(overhead: Overhead) -> str:
    met = "met" if overhead.share <= OVERHEAD_GOAL else "missed"
    return (
        f"a step of {overhead.rows} rows: {overhead.step * 1000:.1f} ms, {overhead.forward * 1000:.1f} ms of it in the "
        f"forward pass; {overhead.share:.1%} outside (goal: {OVERHEAD_GOAL:.0%} at most, {met}; {overhead.steps} steps)"
    )


def _cells(standing: Standing, among: Sequence[Standing]) -> tuple[str, str, str]:
    if not standing.rates:
        return "cannot run here", "-", "-"
    ratio = _ratio(standing, among)
    rate = f"{standing.rate:.1f} ({min(standing.rates):.1f}-{max(standing.rates):.1f})"
    memory = "unknown" if standing.peak_bytes is None else f"{standing.peak_bytes / MIB:.0f}"
    return rate, "-" if ratio is None else f"{ratio:.2f}", memory


def _ratio(standing: Standing, among: Sequence[Standing]) -> float | None:
    plain = next((one for one in among if one.name == PLAIN), None)
    return standing.rate / plain.rate if standing.rates and plain is not None and plain.rates else None


def _title(what: str, setting: dict[str, object]) -> str:
    lengths = f", {setting['input_len']} in / {setting['output_len']} out" if what.startswith("output") else ""
    return f"{what}{lengths}; {setting['model']}, {setting['dtype']}, {setting['device']}, {setting['threads']} threads"
