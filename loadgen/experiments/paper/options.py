"""The options of `lengthwise paper`, and which of them cannot be followed together or with the paper that is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from models.errors import UserError
from models.options import Count, Natural, NonNegative, Positive, option
from scheduler.options import Scheduling

ONLY = MappingProxyType({"tasks": "magnus", "answers": "magnus", "aging_factor": "ssjf"})  # flags for one paper alone


@dataclass(frozen=True, kw_only=True)
class Experiments:
    """Which experiments to run, and under which load."""

    experiments: tuple[str, ...] | None = option(None, commas=True, metavar="A,B,...")
    """some of them by name (default: all; a wrong name lists them)"""
    scale: Positive = option(1.0, metavar="X")
    """share of the paper's size: executors and rates (magnus, scls), runs (ssjf), queries (baton); fewer executors show
    smaller gains"""
    seed: Natural = option(0)
    """seed of lengths, arrivals and errors"""
    seeds: Count = option(1)
    """runs of all of it, with --seed, a hundred more and so on; tables and file have the first"""
    report: Path | None = option(None)
    """write a page of the figures that are swept, in bands over --seeds, as HTML"""
    duration: Positive | None = option(None, metavar="S")
    """seconds of arrivals (default: the paper's; baton has none)"""
    rates: tuple[Positive, ...] | None = option(None, commas=True, metavar="A,B,...")
    """requests a second on the paper's whole machine: for magnus, scls's main experiments and ssjf's rates"""
    trace: Path | None = option(None)
    """lengths from a trace: Azure's or BurstGPT's CSV, Mooncake's JSON lines (default: the built-in tasks for magnus,
    drawn lengths for scls and ssjf; baton's are always drawn)"""
    tasks: Path | None = option(None, metavar="FOLDER")
    """for magnus, a folder of task files *.jsonl, each line with instruction, input and reference (default: the
    built-in tasks)"""
    answers: Literal["code", "reference"] = option("code")
    """with --tasks, the answer to a request for commented code: the code and its comment, or the comment alone"""
    input_scale: Positive | None = option(None, metavar="X")
    """factor of the prompts' lengths (default: 1; for scls 0.25, since CodeFuse's lengths, which are not published, are
    taken to be so much shorter than the trace's)"""
    aging_factor: NonNegative = option(Scheduling.aging_factor)
    """of ssjf-*, as for serve (default: the authors' 10; 0: no aging)"""
    save_result: Path | None = option(None)
    """write all runs and rows as JSON"""

    paper: str = ""

    def refuse(self) -> None:
        """Raise UserError for the first flag that cannot be followed."""
        given = {one.name for one in fields(self) if getattr(self, one.name) != one.default}
        for name in sorted(given):
            if ONLY.get(name, self.paper) != self.paper:
                raise UserError(f"--{name.replace('_', '-')} is for {ONLY[name]}: leave it out")
        if "tasks" in given and "trace" in given:
            raise UserError("--tasks and --trace both tell the lengths: leave one out")
        if "answers" in given and "tasks" not in given:
            raise UserError("--answers is for task files: name them with --tasks")
        if self.paper == "baton" and given & {"trace", "input_scale"}:
            raise UserError("Baton's queries are drawn as its text says: leave --trace and --input-scale out")

    def choose(self, known: Sequence[str]) -> Sequence[str]:
        """The experiments to run, all unless there are names; raises UserError for one that is not known."""
        unknown = [name for name in self.experiments or () if name not in known]
        if unknown:
            raise UserError(f"--experiments: {', '.join(unknown)} is none of {', '.join(known)}")
        return tuple(dict.fromkeys(self.experiments or known))
