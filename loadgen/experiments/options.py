"""Flags of the experiments' commands, and which of `paper`'s exclude each other."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from models.errors import UsageError
from models.network.quantization import QUANTIZATIONS
from models.options import Count, Natural, NonNegative, Option, Positive, option
from scheduler.options import Scheduling

ROWS = (1, 8, 32, 64)  # compared by default


@dataclass(frozen=True, kw_only=True)
class EngineBench:
    """A model, and the parts of its comparison with transformers."""

    model: str = option("smollm2-135m-instruct", "as for serve", positional=True)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option("auto", "as for serve")
    quantization: str = option("auto", "as for serve", choices=lambda: ("auto", *QUANTIZATIONS))
    device: Literal["auto", "cpu", "cuda"] = option("auto", "as for serve")
    seed: int = option(0, "seed of the prompts")
    rows: tuple[Count, ...] = option((), f"rows to compare at (default: {' '.join(map(str, ROWS))})", nargs="+")
    input_len: Count = option(64, "prompt tokens of a row")
    output_len: Annotated[int, Meta(ge=2)] = option(64, "tokens to generate for a row")
    rounds: Count = option(3, "rounds that count, after one more")
    beside: tuple[str, ...] = option((), nargs="+", choices=lambda: QUANTIZATIONS)
    """also this engine with its weights kept so"""
    save_result: Path | None = option(None, "write the figures as JSON")


@dataclass(frozen=True, kw_only=True)
class GpuBench:
    """What is measured on a GPU."""

    rows: tuple[Count, ...] = option((), "rows of decode steps (default: 1 8 64 256)", nargs="+")
    length: Count | None = option(None, "tokens of the longest row; the shortest has half of them (default: 1024)")
    save_result: Path = option(Path("gpu.json"), "the file with all figures")


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """The loads that strategies are simulated on."""

    trace: tuple[str, ...] = option((), metavar="FILE")
    """traces, whose lengths are loads too: Azure's or BurstGPT's CSV, Mooncake's JSON lines"""
    seed: Natural = option(0, "seed of lengths and arrivals; other seeds play other requests of a trace")


APPENDED = "a line a run is appended here; what the file holds already is not played again"


@dataclass(frozen=True, kw_only=True)
class Grid(Simulated):
    """The loads and contenders that are played, and the file that the outcome goes to."""

    save_result: Path = option(Path("grid.jsonl"), APPENDED)
    num_prompts: Count = option(600, "requests of a run, but for overloads of 100 and of 3,000")
    cells: Count | None = option(None, "play this many cells, a fair sample (default: all)")
    seeds: Count = option(1, "runs of each cell: --seed and those after it")


@dataclass(frozen=True, kw_only=True)
class Arena(Simulated):
    """The loads and strategies that are played, and the file that the outcome goes to."""

    save_result: Path = option(Path("arena.jsonl"), APPENDED)
    num_prompts: Count = option(600, "requests of a run; two and a half times as many with 256 slots")
    strategies: tuple[str, ...] = option((), "PACKAGE:ROW or FILE.py:ROW, to play too", commas=True, metavar="A,B,...")
    report: Path | None = option(None, "write the page as HTML")


PAPERS = ("magnus", "scls", "ssjf", "baton")
ONLY: Mapping[str, str] = {"tasks": "magnus", "answers": "magnus", "aging_factor": "ssjf"}  # flags of one paper only


@dataclass(frozen=True, kw_only=True)
class Experiments:
    """Which experiments to run, and under which load."""

    paper: str = option("", "whose experiments to run", positional=True, choices=lambda: PAPERS)
    experiments: tuple[str, ...] | None = option(None, commas=True, metavar="A,B,...")
    """some of them by name (default: all; a wrong name lists them)"""
    scale: Positive = option(1.0, metavar="X")
    """share of the paper's size: executors and rates (magnus, scls), runs (ssjf), queries (baton); fewer executors show
    smaller gains
    """
    seed: Natural = option(0, "seed of lengths, arrivals and errors")
    seeds: Count = option(1, "runs of all of it, with --seed, a hundred more and so on; tables and file have the first")
    report: Path | None = option(None, "write a page of the figures that are swept, in bands over --seeds, as HTML")
    duration: Positive | None = option(None, "seconds of arrivals (default: the paper's; baton has none)", metavar="S")
    rates: tuple[Positive, ...] | None = option(None, commas=True, metavar="A,B,...")
    """requests a second on the paper's whole machine: for magnus, scls's main experiments and ssjf's rates"""
    trace: Path | None = option(None)
    """lengths from a trace: Azure's or BurstGPT's CSV, Mooncake's JSON lines (default: the built-in tasks for magnus,
    drawn lengths for scls and ssjf; baton's are always drawn)
    """
    tasks: Path | None = option(None, metavar="FOLDER")
    """for magnus, a folder of task files *.jsonl, each line with instruction, input and reference (default: the
    built-in tasks)
    """
    answers: Literal["code", "reference"] = option("code")
    """with --tasks, the answer to a request for commented code: the code and its comment, or the comment alone"""
    input_scale: Positive | None = option(None, metavar="X")
    """factor of the prompts' lengths (default: 1; for scls 0.25, since CodeFuse's lengths, which are not published, are
    taken to be so much shorter than the trace's)
    """
    aging_factor: NonNegative = option(Scheduling.aging_factor)
    """of ssjf-*, as for serve (default: the authors' 10; 0: no aging)"""
    save_result: Path | None = option(None, "write all runs and rows as JSON")

    def refuse(self) -> None:
        """Raise UserError for the first flag that does not apply."""
        if not self.paper:
            raise UsageError(f"name a paper: {', '.join(PAPERS)}")
        given = {one.name for one in fields(self) if getattr(self, one.name) != one.default}
        for name in sorted(given):
            if ONLY.get(name, self.paper) != self.paper:
                raise UsageError(f"--{name.replace('_', '-')} is for {ONLY[name]}: leave it out")
        if "tasks" in given and "trace" in given:
            raise UsageError("--tasks and --trace both tell the lengths: leave one out")
        if "answers" in given and "tasks" not in given:
            raise UsageError("--answers is for task files: name them with --tasks")
        if self.paper == "baton" and given & {"trace", "input_scale"}:
            raise UsageError("Baton's queries are drawn as its text says: leave --trace and --input-scale out")

    def choose(self, known: Sequence[str]) -> Sequence[str]:
        """By name, all by default; raises UserError."""
        if unknown := [name for name in self.experiments or () if name not in known]:
            raise UsageError(f"--experiments: {', '.join(unknown)} is none of {', '.join(known)}")
        return tuple(dict.fromkeys(self.experiments or known))


def read_count(least: int) -> Callable[[str], object]:
    """A type of argparse's."""
    return Option("", None).bind("", Annotated[int, Meta(ge=least)], "").from_flag


def read_requests(usual: int) -> int:
    """From a module's command line; of fewer than a hundred, shares say nothing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("requests", nargs="?", type=read_count(100), default=usual)
    return int(parser.parse_args().requests)
