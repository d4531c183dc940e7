"""Carries out `lengthwise bench engine`: loads, measures one part after another, prints a table of each."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel

from loadgen.experiments.engine.feed import GREEDY, Job, draw_jobs, draw_ragged_shapes, longest
from loadgen.experiments.engine.measure import Floor, apart, measure_bandwidth, weight_bytes
from loadgen.experiments.engine.options import ROWS, EngineBench
from loadgen.experiments.engine.runners import (
    NEIGHBOUR,
    BesideNeighbour,
    Generate,
    GenerateBatch,
    Lengthwise,
    Runner,
    Standing,
    contest,
)
from loadgen.experiments.engine.setup import Subject, describe_machine, load_beside, load_plain, load_subject
from models.network.generation_config import SamplingDefaults
from models.progress import Bars

OURS, PLAIN = "lengthwise", "generate"
MIB = 2**20
HEADS = ("rows", "", "tokens/s (min-max)", "to generate", "ms a step", "to floor", "peak memory, MiB")
SETTING = (
    "input_len",
    "output_len",
    "sampling",
    "rounds",
    "seed",
    "num_requests",
    "min_len",
    "max_len",
    "slots",
    "model",
)

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Part:
    """Jobs at which all engines took turns."""

    name: str
    slots: int
    standings: tuple[Standing, ...]
    floor_step: float | None = None  # seconds that a step takes at least, where all rows have one shape

    def ratio(self, standing: Standing) -> float | None:
        """A standing's tokens a second to those of `generate`."""
        plain = next((one for one in self.standings if one.name == PLAIN), None)
        return standing.rate / plain.rate if standing.rates and plain is not None and plain.rates else None


@dataclass(frozen=True, slots=True)
class Results:
    """All results of a run."""

    setting: Mapping[str, object]
    floor: Floor
    parts: tuple[Part, ...]

    def troubles(self, *, ours: bool) -> dict[str, str]:
        """Reasons that kept an engine from running, by its name: of this engine itself, or of the others."""
        standings = (one for part in self.parts for one in part.standings)
        return {one.name: one.trouble for one in standings if one.trouble and (one.name == OURS) == ours}


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
            table.add_row(part.name, "floor", rate, "", step, "1.00", "")
        table.add_section()
    console.print(table)
    for part in results.parts:
        rates = {one.name: one.rates for one in part.standings}
        if NEIGHBOUR in rates:
            told = ", ".join(f"{here / alone:.2f}" for here, alone in zip(rates[NEIGHBOUR], rates[OURS], strict=False))
            console.print(f"{part.name}: tokens/s {NEIGHBOUR} to those alone, by round: {told}", highlight=False)
    for name, trouble in results.troubles(ours=False).items():
        console.print(f"{name} cannot run here: {trouble}", markup=False, highlight=False)


def _cells(part: Part, one: Standing) -> tuple[str, ...]:
    if not one.rates:
        return ("cannot run here", *"----")
    ratio, floor = part.ratio(one), part.floor_step
    return (
        f"{one.rate:.1f} ({min(one.rates):.1f}-{max(one.rates):.1f})",
        "-" if ratio is None else f"{ratio:.2f}",
        f"{one.step * 1000:.1f}",
        "-" if floor is None else f"{one.step / floor:.2f}",
        "unknown" if one.peak_bytes is None else f"{one.peak_bytes / MIB:.0f}",
    )


def results_json(results: Results) -> dict[str, object]:
    """Seconds, bytes, tokens a second."""
    parts = [
        {"name": part.name, "slots": part.slots, "floor_step": part.floor_step}
        | {"standings": [asdict(one) | {"ratio_to_generate": part.ratio(one)} for one in part.standings]}
        for part in results.parts
    ]
    return {"setting": results.setting, "floor": asdict(results.floor), "parts": parts}


def run_bench(options: EngineBench, clock: Clock = time.perf_counter) -> Results:
    """Load the model and measure what was asked for. Raises UserError."""
    with Bars() as bars:
        bars.begin(f"loading {options.model}")
        subject = apart(lambda _: load_subject(options))
        beside = {kind: apart(partial(_load_beside, subject, kind)) for kind in options.beside}
        return Bench(options, subject, bars, clock, beside).run()


def _load_beside(subject: Subject, kind: str, _: threading.Event) -> Subject:
    return load_beside(subject, kind)


@dataclass(frozen=True, slots=True)
class Bench:
    """One run on one model."""

    options: EngineBench
    subject: Subject
    bars: Bars
    clock: Clock
    beside: Mapping[str, Subject]  # the model with its weights kept otherwise, by the way of keeping them

    def run(self) -> Results:
        """Measure one part after another."""
        asked, subject = self.options, self.subject
        rows = asked.rows or (() if asked.ragged else ROWS)
        if rows:
            subject.require_context(asked.input_len + asked.output_len)
        if asked.ragged:
            subject.require_context(longest(self._draw_ragged(0)))
        plain = apart(lambda _: load_plain(subject))
        self.bars.begin("memory bandwidth")
        bandwidth = measure_bandwidth(subject.device, self.clock)
        floor = Floor(bandwidth, weight_bytes(subject.model.network), subject.model.kv.bytes_per_token)
        parts = [self._compare(plain, floor, count) for count in rows]
        if asked.ragged:
            parts.append(Part("ragged", asked.slots, self._contest(plain, "ragged", asked.slots, self._draw_ragged)))
        found = {name: getattr(asked, name) for name in SETTING}
        return Results(found | {"dtype": subject.weights} | describe_machine(subject.device), floor, tuple(parts))

    def _compare(self, plain: PreTrainedModel, floor: Floor, rows: int) -> Part:
        standings = self._contest(plain, f"{rows} rows", rows, partial(self._draw_even, rows))
        return Part(str(rows), rows, standings, floor.step(rows, self.options.input_len, self.options.output_len))

    def _contest(
        self, plain: PreTrainedModel, title: str, slots: int, draw: Callable[[int], Sequence[Job]]
    ) -> tuple[Standing, ...]:
        ours = Lengthwise(self.subject, slots, self.clock)
        runners: tuple[Runner, ...] = (
            ours,
            *([BesideNeighbour(ours)] if self.options.neighbour else []),
            *(Lengthwise(one, slots, self.clock, f"lengthwise {kind}") for kind, one in self.beside.items()),
            Generate(plain, slots, self.clock),
            GenerateBatch(plain, slots, self.clock),
        )
        rounds = self.options.rounds
        self.bars.begin(title, len(runners) * (rounds + 1))
        return tuple(contest(runners, draw, rounds, self.subject.device, self.bars.advance))

    @property
    def _sampling(self) -> SamplingDefaults:
        return self.subject.model.sampling_defaults if self.options.sampling == "defaults" else GREEDY

    def _draw_even(self, rows: int, number: int) -> list[Job]:
        """Rows of one shape; other tokens each round."""
        shapes = [(self.options.input_len, self.options.output_len)] * rows
        return draw_jobs(random.Random(f"{self.options.seed} {number}"), self.subject.vocab, shapes, self._sampling)

    def _draw_ragged(self, number: int) -> list[Job]:
        """Jobs of the same lengths in the same order each round, else rounds could not be compared; other tokens."""
        asked = self.options
        shapes = draw_ragged_shapes(random.Random(asked.seed), asked.num_requests, asked.min_len, asked.max_len)
        return draw_jobs(random.Random(f"{asked.seed} {number}"), self.subject.vocab, shapes, self._sampling)
