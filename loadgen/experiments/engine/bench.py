"""`lengthwise bench engine`: the contest (contest.py) over rows of one length."""

import random
import statistics
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from engine.messages import RowSpec
from loadgen.console import table_console
from loadgen.experiments.engine.contest import Generate, Lengthwise, Shape, contest, draw_rows
from loadgen.experiments.engine.setup import describe_device, load_beside, load_subject
from loadgen.experiments.options import ROWS, EngineBench
from loadgen.result_file import require_writable, save_json
from models.errors import UserError
from models.progress import Bars

OURS, THEIRS = "lengthwise", "generate"
HEADS = ("rows", "", "tokens/s (min-max)", "to generate", "ms a step", "to floor")
SETTING = ("model", "rounds", "seed", "input_len", "output_len")

Json = dict[str, Any]


def show(found: Json, console: Console) -> None:
    floor, setting = found["floor"], found["setting"]
    told = f"memory bandwidth {floor['bandwidth'] / 1e9:.1f} GB/s, weights {floor['weight_bytes'] / 2**20:.0f} MiB"
    console.print(f"{told}, KV cache {floor['kv_bytes_per_token'] / 1024:.1f} KiB a token", highlight=False)
    title = (
        f"output tokens/s, prefill included, {setting['input_len']} in / {setting['output_len']} out; "
        f"{setting['model']}, {setting['dtype']}, {setting['device']}, {setting['threads']} threads"
    )
    table = Table(*HEADS, title=title)
    for part in found["parts"]:
        rows, least = part["rows"], part["floor_step"]
        for standing in part["standings"]:
            table.add_row(str(rows), standing["name"], *_cells(standing, least))
        table.add_row(str(rows), "floor", f"{rows / least:.1f}", "", f"{least * 1000:.1f}", "1.00")
        table.add_section()
    console.print(table)
    for name, trouble in find_troubles(found).items():
        console.print(f"{name} cannot run here: {trouble}", markup=False, highlight=False)


def _cells(one: Json, least: float) -> tuple[str, ...]:
    rates, ratio = one["rates"], one["ratio_to_generate"]
    if not rates:
        return ("cannot run here", *"---")
    step = statistics.median(one["steps"])
    return (
        f"{statistics.median(rates):.1f} ({min(rates):.1f}-{max(rates):.1f})",
        "-" if ratio is None else f"{ratio:.2f}",
        f"{step * 1000:.1f}",
        f"{step / least:.2f}",
    )


def find_troubles(found: Json) -> dict[str, str]:
    standings = [one for part in found["parts"] for one in part["standings"]]
    return {one["name"]: one["trouble"] for one in standings if one["trouble"]}


def run_engine(asked: EngineBench) -> int:
    """Returns the exit code. Raises UserError, also when this engine could not run."""
    require_writable(asked.save_result)
    found = run_bench(asked)
    show(found, table_console())
    save_json(asked.save_result, found)
    if trouble := find_troubles(found).get(OURS):
        raise UserError(trouble)
    return 0


def run_bench(asked: EngineBench) -> Json:
    """Raises UserError."""
    with Bars() as bars:
        bars.begin(f"loading {asked.model}")
        subject = load_subject(asked)
        beside = {f"{OURS} {kind}": load_beside(subject, kind) for kind in asked.beside}
        subjects = {OURS: subject} | beside
        columns, most = asked.input_len + asked.output_len, subject.model.context_length
        if columns > most:
            raise UserError(f"{asked.model} reads {most} tokens, not {columns}: ask for shorter ones")
        plain = subject.load_plain()
        bars.begin("memory bandwidth")
        floor = subject.floor
        parts = []
        for rows in asked.rows or ROWS:
            engines = {called: Lengthwise(one).run for called, one in subjects.items()}
            engines[THEIRS] = Generate(plain).run
            bars.begin(f"{rows} rows", len(engines) * (asked.rounds + 1))
            draw = partial(_draw, asked.seed, subject.vocab, [(asked.input_len, asked.output_len)] * rows)
            found = contest(engines, draw, asked.rounds, bars.advance)
            base = found[THEIRS]
            standings = [
                {"name": called, **asdict(one)}
                | {"ratio_to_generate": one.rate / base.rate if one.rates and base.rates else None}
                for called, one in found.items()
            ]
            step = floor.step(rows, asked.input_len, asked.output_len)
            parts.append({"rows": rows, "floor_step": step, "standings": standings})
        setting = {name: getattr(asked, name) for name in SETTING} | {"dtype": subject.weights}
        return {"setting": setting | describe_device(subject.model.device), "floor": asdict(floor), "parts": parts}


def _draw(seed: int, vocab: int, shapes: list[Shape], number: int) -> list[RowSpec]:
    """Tokens differ between rounds."""
    return draw_rows(random.Random(f"{seed} {number}"), vocab, shapes)
