"""Carries out `lengthwise bench engine`: loads, lets engines take turns at one part after another, prints a table."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table

from loadgen.experiments.engine.measure import Floor, measure_bandwidth, weight_bytes
from loadgen.experiments.engine.options import ROWS, EngineBench
from loadgen.experiments.engine.runners import (
    Generate,
    Job,
    Lengthwise,
    Runner,
    Shape,
    contest,
    draw_jobs,
    draw_ragged_shapes,
    longest,
)
from loadgen.experiments.engine.setup import describe_machine, load_beside, load_plain, load_subject
from models.progress import Bars

OURS = "lengthwise"
MIB = 2**20
HEADS = ("rows", "", "tokens/s (min-max)", "to generate", "ms a step", "to floor")
SETTING = ("model", "rounds", "seed", "input_len", "output_len", "num_requests", "min_len", "max_len", "slots")


Json: TypeAlias = dict[str, Any]


def show(found: Json, console: Console) -> None:
    """Print a table with all parts."""
    floor, setting = found["floor"], found["setting"]
    console.print(
        f"memory bandwidth {floor['bandwidth'] / 1e9:.1f} GB/s, weights {floor['weight_bytes'] / MIB:.0f} MiB, "
        f"K and V {floor['kv_bytes_per_token'] / 1024:.1f} KiB a token",
        highlight=False,
    )
    title = (
        f"output tokens/s, prefill included, {setting['input_len']} in / {setting['output_len']} out; ragged: "
        f"{setting['num_requests']} requests of {setting['min_len']}-{setting['max_len']}; {setting['model']}, "
        f"{setting['dtype']}, {setting['device']}, {setting['threads']} threads"
    )
    table = Table(*HEADS, title=title)
    for part in found["parts"]:
        least = part["floor_step"]
        for standing in part["standings"]:
            table.add_row(part["name"], standing["name"], *_cells(standing, least))
        if least is not None:
            table.add_row(part["name"], "floor", f"{part['slots'] / least:.1f}", "", f"{least * 1000:.1f}", "1.00")
        table.add_section()
    console.print(table)
    for name, trouble in find_troubles(found).items():
        console.print(f"{name} cannot run here: {trouble}", markup=False, highlight=False)


def _cells(one: Json, least: float | None) -> tuple[str, ...]:
    rates, ratio = one["rates"], one["ratio_to_generate"]
    if not rates:
        return ("cannot run here", *"---")
    step = statistics.median(one["steps"])
    return (
        f"{statistics.median(rates):.1f} ({min(rates):.1f}-{max(rates):.1f})",
        "-" if ratio is None else f"{ratio:.2f}",
        f"{step * 1000:.1f}",
        "-" if least is None else f"{step / least:.2f}",
    )


def find_troubles(found: Json) -> dict[str, str]:
    """Reasons that kept an engine from running, by its name."""
    standings = [one for part in found["parts"] for one in part["standings"]]
    return {one["name"]: one["trouble"] for one in standings if one["trouble"]}


def run_bench(asked: EngineBench) -> Json:
    """Load the model and measure one part after another: seconds, bytes, tokens a second. Raises UserError."""
    with Bars() as bars:
        bars.begin(f"loading {asked.model}")
        subject = load_subject(asked)
        beside = {f"{OURS} {kind}": load_beside(subject, kind) for kind in asked.beside}
        subjects = {OURS: subject} | beside
        planned = _plan_parts(asked)
        for _, _, shapes in planned:
            subject.require_context(longest(shapes))
        plain = load_plain(subject)
        bars.begin("memory bandwidth")
        bandwidth = measure_bandwidth(subject.device)
        floor = Floor(bandwidth, weight_bytes(subject.model.network), subject.model.kv.bytes_per_token)
        parts = []
        for name, slots, shapes in planned:
            runners: list[Runner] = [Lengthwise(one, slots, name=called) for called, one in subjects.items()]
            runners.append(Generate(plain, slots))
            bars.begin(name, len(runners) * (asked.rounds + 1))
            draw = partial(_draw, asked.seed, subject.vocab, shapes)
            *ours, theirs = contest(runners, draw, asked.rounds, bars.advance)
            standings = [
                asdict(one) | {"ratio_to_generate": one.rate / theirs.rate if one.rates and theirs.rates else None}
                for one in (*ours, theirs)
            ]
            step = None if name == "ragged" else floor.step(slots, asked.input_len, asked.output_len)
            parts.append(
                {"name": name.removesuffix(" rows"), "slots": slots, "floor_step": step, "standings": standings}
            )
        setting = {name: getattr(asked, name) for name in SETTING} | {"dtype": subject.weights}
        return {"setting": setting | describe_machine(subject.device), "floor": asdict(floor), "parts": parts}


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
