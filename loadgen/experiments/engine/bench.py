"""Carries out `lengthwise bench engine`: loads, lets engines take turns at one part after another, prints a table."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from rich.console import Console
from rich.table import Table

from loadgen.experiments.engine.measure import Floor, apart, measure_bandwidth, weight_bytes
from loadgen.experiments.engine.options import ROWS, EngineBench
from loadgen.experiments.engine.runners import (
    Generate,
    Job,
    Lengthwise,
    Runner,
    Shape,
    Standing,
    contest,
    draw_jobs,
    draw_ragged_shapes,
    longest,
)
from loadgen.experiments.engine.setup import describe_machine, load_beside, load_plain, load_subject
from models.progress import Bars

OURS, PLAIN = "lengthwise", "generate"
MIB = 2**20
HEADS = ("rows", "", "tokens/s (min-max)", "to generate", "ms a step", "to floor")
SETTING = ("model", "rounds", "seed", "input_len", "output_len", "num_requests", "min_len", "max_len", "slots")


@dataclass(frozen=True, slots=True)
class Part:
    """Jobs at which all engines took turns."""

    name: str
    slots: int
    standings: tuple[Standing, ...]
    floor_step: float | None = None  # seconds that a step takes at least, where all rows have one shape

    def ratio(self, standing: Standing) -> float | None:
        """A standing's tokens a second to those of `generate`."""
        [plain] = (one for one in self.standings if one.name == PLAIN)
        return standing.rate / plain.rate if standing.rates and plain.rates else None


@dataclass(frozen=True, slots=True)
class Results:
    """All results of a run."""

    setting: Mapping[str, object]
    floor: Floor
    parts: Sequence[Part]

    @property
    def troubles(self) -> dict[str, str]:
        """Reasons that kept an engine from running, by its name."""
        return {one.name: one.trouble for part in self.parts for one in part.standings if one.trouble}


def show(results: Results, console: Console) -> None:
    """Print a table with all parts."""
    floor, setting = results.floor, results.setting
    console.print(
        f"memory bandwidth {floor.bandwidth / 1e9:.1f} GB/s, weights {floor.weight_bytes / MIB:.0f} MiB, "
        f"K and V {floor.kv_bytes_per_token / 1024:.1f} KiB a token",
        highlight=False,
    )
    title = (
        f"output tokens/s, prefill included, {setting['input_len']} in / {setting['output_len']} out; ragged: "
        f"{setting['num_requests']} requests of {setting['min_len']}-{setting['max_len']}; {setting['model']}, "
        f"{setting['dtype']}, {setting['device']}, {setting['threads']} threads"
    )
    table = Table(*HEADS, title=title)
    for part in results.parts:
        for standing in part.standings:
            table.add_row(part.name, standing.name, *_cells(part, standing))
        if part.floor_step is not None:
            rate, step = f"{part.slots / part.floor_step:.1f}", f"{part.floor_step * 1000:.1f}"
            table.add_row(part.name, "floor", rate, "", step, "1.00")
        table.add_section()
    console.print(table)
    for name, trouble in results.troubles.items():
        console.print(f"{name} cannot run here: {trouble}", markup=False, highlight=False)


def _cells(part: Part, one: Standing) -> tuple[str, ...]:
    if not one.rates:
        return ("cannot run here", *"---")
    ratio, floor = part.ratio(one), part.floor_step
    return (
        f"{one.rate:.1f} ({min(one.rates):.1f}-{max(one.rates):.1f})",
        "-" if ratio is None else f"{ratio:.2f}",
        f"{one.step * 1000:.1f}",
        "-" if floor is None else f"{one.step / floor:.2f}",
    )


def results_json(results: Results) -> dict[str, object]:
    """Seconds, bytes, tokens a second."""
    parts = [
        {"name": part.name, "slots": part.slots, "floor_step": part.floor_step}
        | {"standings": [asdict(one) | {"ratio_to_generate": part.ratio(one)} for one in part.standings]}
        for part in results.parts
    ]
    return {"setting": results.setting, "floor": asdict(results.floor), "parts": parts}


def run_bench(asked: EngineBench) -> Results:
    """Load the model and measure one part after another. Raises UserError."""
    with Bars() as bars:
        bars.begin(f"loading {asked.model}")
        subject = apart(lambda _: load_subject(asked))
        beside = apart(lambda _: {f"{OURS} {kind}": load_beside(subject, kind) for kind in asked.beside})
        subjects = {OURS: subject} | beside
        planned = _plan_parts(asked)
        for _, _, shapes in planned:
            subject.require_context(longest(shapes))
        plain = apart(lambda _: load_plain(subject))
        bars.begin("memory bandwidth")
        bandwidth = measure_bandwidth(subject.device)
        floor = Floor(bandwidth, weight_bytes(subject.model.network), subject.model.kv.bytes_per_token)
        parts = []
        for name, slots, shapes in planned:
            every: list[Runner] = [Lengthwise(one, slots, name=called) for called, one in subjects.items()]
            every.append(Generate(plain, slots))
            bars.begin(name, len(every) * (asked.rounds + 1))
            draw = partial(_draw, asked.seed, subject.vocab, shapes)
            standings = contest(every, draw, asked.rounds, bars.advance)
            step = None if name == "ragged" else floor.step(slots, asked.input_len, asked.output_len)
            parts.append(Part(name.removesuffix(" rows"), slots, tuple(standings), step))
        setting = {name: getattr(asked, name) for name in SETTING} | {"dtype": subject.weights}
        return Results(setting | describe_machine(subject.device), floor, parts)


def _draw(seed: int, vocab: int, shapes: Sequence[Shape], number: int) -> list[Job]:
    """Jobs of a round. Their lengths are those of all rounds, else rounds could not be compared; tokens differ."""
    return draw_jobs(random.Random(f"{seed} {number}"), vocab, shapes)


def _plan_parts(asked: EngineBench) -> list[tuple[str, int, list[Shape]]]:
    """The name of each part, its rows at a time, and the shapes of its jobs."""
    parts = [
        (f"{rows} rows", rows, [(asked.input_len, asked.output_len)] * rows)
        for rows in asked.rows or (() if asked.ragged else ROWS)
    ]
    if asked.ragged:
        shapes = draw_ragged_shapes(random.Random(asked.seed), asked.num_requests, asked.min_len, asked.max_len)
        parts.append(("ragged", asked.slots, shapes))
    return parts
