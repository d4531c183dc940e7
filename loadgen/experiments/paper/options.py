"""The flags of `lengthwise paper`, and which of them cannot be followed together or with the paper that is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from models.errors import UserError
from models.options import Count, Natural, Positive, option

REAL_ONLY = ("model", "executors", "length_scale", "loads", "requests", "rounds")
"""Flags that mean nothing to the simulator."""
MAGNUS_ONLY = frozenset(("wma_threshold", "tasks", "answers"))
INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "scale": "give --length-scale and --executors, which say how much of a paper's size fits",
        "rates": "give --loads, multiples of what the baseline serves here",
    }
)
"""Remedies on the real engine, by the flag that is for the simulator."""
FIXED_BY_BATON: Mapping[str, str] = MappingProxyType(
    {
        "duration": "its queries are all there from the start",
        "loads": "its queries are all there from the start",
        "requests": "its text tells how many queries there are",
        "executors": "its tables have one",
        "trace": "its queries are drawn as its text says",
        "input_scale": "its queries are drawn as its text says",
    }
)
"""Reasons why Baton's tables leave no choice on the real engine, by flag."""


@dataclass(frozen=True, kw_only=True)
class Experiments:
    """Which experiments to run, and under which load."""

    experiments: tuple[str, ...] | None = option(
        None, "some of them by name (default: all; a wrong name lists them)", commas=True, metavar="A,B,..."
    )
    scale: Positive = option(
        1.0,
        "share of the paper's size: executors and rates (magnus, scls), runs (ssjf), queries (baton)",
        metavar="X",
    )
    seed: Natural = option(0, "seed of lengths, arrivals and errors")
    duration: Positive | None = option(
        None,
        "seconds of arrivals (default: the paper's; with --real what --requests says; baton has none)",
        metavar="S",
    )
    rates: tuple[Positive, ...] | None = option(
        None,
        "requests a second on the paper's whole machine: for magnus, scls's main experiments and ssjf's rates",
        commas=True,
        metavar="A,B,...",
    )
    trace: Path | None = option(
        None,
        "lengths from a trace: Azure's or BurstGPT's CSV, Mooncake's JSON lines (default: the built-in tasks for "
        "magnus, drawn lengths for scls and ssjf; baton's are always drawn)",
    )
    tasks: Path | None = option(
        None,
        "for magnus, a folder of task files *.jsonl, each line with instruction, input and reference (default: the "
        "built-in tasks)",
        metavar="FOLDER",
    )
    answers: Literal["code", "reference"] = option(
        "code",
        "with --tasks, the answer to a request for commented code: the code and its comment, or the comment alone",
    )
    input_scale: Positive | None = option(
        None,
        "factor of the prompts' lengths (default: 1; for scls 0.25, since CodeFuse's lengths, which are not published, "
        "are taken to be so much shorter than the trace's)",
        metavar="X",
    )
    wma_threshold: Count | None = option(
        None, "Φ of magnus, as for serve (default: the paper's 50000; with --real times the square of the length scale)"
    )
    save_result: Path | None = option(None, "write all runs and rows as JSON")
    report: Path | None = option(None, "write a page with each figure beside the published one, as HTML")


@dataclass(frozen=True, kw_only=True)
class RealEngine:
    """Whether the real engine serves, and with how much of everything."""

    real: bool = option(
        False,
        "serve for real, in this process: settings of the engine come from the environment, as for `lengthwise "
        "serve`, and from the flags below; `lengthwise profile` with the same settings comes first. Nothing else "
        "should run on the machine meanwhile",
    )
    model: str | None = option(None, "as for serve", metavar="MODEL")
    executors: Count | None = option(
        None, "executor threads (default: one a CUDA device; on a CPU, whose cores they share, 2 for scls, else 1)"
    )
    length_scale: Positive | None = option(
        None, "factor of the paper's lengths (default: 1/8; baton: 1/16, its short queries 1/2)", metavar="X"
    )
    loads: tuple[Positive, ...] | None = option(
        None,
        "rates, as multiples of what the paper's first baseline serves here (default: 3,8)",
        commas=True,
        metavar="A,B,...",
    )
    requests: Count | None = option(None, "requests of each run, unless there is a --duration (default: 600)")
    rounds: Count | None = option(None, "runs of each, with other requests; means are shown (default: 1)")


@dataclass(frozen=True, kw_only=True)
class PaperOptions(Experiments, RealEngine):
    """All flags of the command."""

    paper: str = ""

    def refuse(self) -> None:
        """Raise UserError for the first flag that cannot be followed."""
        given = {one.name for one in fields(self) if getattr(self, one.name) != one.default}
        for name in given & MAGNUS_ONLY if self.paper != "magnus" else ():
            raise UserError(f"{_flag(name)} is for magnus: leave it out")
        if "tasks" in given and "trace" in given:
            raise UserError("--tasks and --trace both tell the lengths: leave one out")
        if "answers" in given and "tasks" not in given:
            raise UserError("--answers is for task files: name them with --tasks")
        if not self.real:
            for name in REAL_ONLY:
                if name in given:
                    raise UserError(f"{_flag(name)} is for the real engine: add --real, or leave it out")
            if self.paper == "baton" and given & {"trace", "input_scale"}:
                raise UserError("Baton's queries are drawn as its text says: leave --trace and --input-scale out")
            return
        for name, remedy in INSTEAD.items():
            if name in given:
                raise UserError(f"{_flag(name)} is for the simulator: with --real {remedy}")
        for name, why in FIXED_BY_BATON.items() if self.paper == "baton" else ():
            if name in given:
                raise UserError(f"{_flag(name)} with baton: {why}; leave it out")

    def choose(self, known: Sequence[str]) -> Sequence[str]:
        """The experiments to run, all unless there are names; raises UserError for one that is not known."""
        unknown = [name for name in self.experiments or () if name not in known]
        if unknown:
            raise UserError(f"--experiments: {', '.join(unknown)} is none of {', '.join(known)}")
        return tuple(dict.fromkeys(self.experiments or known))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
