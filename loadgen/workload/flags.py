"""The flags that choose a workload, and what they say once they are checked. Knows no dataset's format."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from loadgen.workload.lengths import Cut
from loadgen.workload.mix import Part, parse_part
from loadgen.workload.tokens import VOCABULARY, Ranges
from loadgen.workload.traces import TRACES
from models.errors import UserError
from models.flags import add_groups, read_options
from models.options import Count, NonNegative, Positive, option

DEFAULT = "builtin"
NEED_FILE = ("jsonl", "sharegpt", *TRACES)
NAMES = (DEFAULT, "random", *NEED_FILE)


@dataclass(frozen=True, slots=True)
class Choice:
    """A workload as the user chose it."""

    parts: tuple[Part, ...]
    count: int
    seed: int
    replay: bool | None
    """None: as each dataset has it."""
    tokenizer: Path | None
    vocabulary: int | None
    cut: Cut
    ranges: Ranges
    sharegpt_output: int | None

    def replays(self, name: str) -> bool:
        """Whether requests of a dataset carry their answer's length."""
        return name in TRACES if self.replay is None else self.replay


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What to send, but for --num-prompts and --seed, which the command itself has."""

    dataset_name: str | None = option(
        None, f"what to send (default: {DEFAULT}, which needs no files)", choices=lambda: NAMES
    )
    dataset_path: Path | None = option(None, f"its file: for {', '.join(NEED_FILE)}")
    mix: tuple[str, ...] = option(
        (),
        "several datasets by weight in place of one: builtin:7 azure=trace.csv:3",
        nargs="+",
        metavar="NAME[=FILE]:WEIGHT",
    )
    replay_lengths: bool | None = option(
        None,
        "have the server generate exactly the recorded lengths; it must run with --allow-replay (default: for traces)",
    )
    max_input_len: Count | None = option(None, "clip traces' and random prompts; leave longer texts out")
    max_output_len: Count | None = option(None, "clip answers; also max_tokens of each request")
    tokenizer: Path | None = option(None, "count tokens with the tokenizer.json there, else estimate", metavar="FOLDER")
    trace_start: NonNegative = option(0.0, "second of the trace to begin at")
    trace_duration: Positive | None = option(None, "seconds of the trace to play (default: all)")
    trace_speed: Positive = option(1.0, "2 plays a trace in half its time")
    random_input_len: Count = option(1024, "mean tokens of random prompts")
    random_output_len: Count = option(128, "mean tokens of their answers")
    random_range_ratio: Annotated[float, Meta(ge=0, lt=1)] = option(
        0.0, "lengths are uniform in mean * [1 - ratio, 1 + ratio]"
    )
    random_vocab_size: Count | None = option(
        None, f"random token ids are below this (default: {VOCABULARY}, or --tokenizer)"
    )
    sharegpt_output_len: Count | None = option(None, "answer length for all of sharegpt (default: each one's own)")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of workloads."""
    add_groups(parser, {"workload": Workload})


def read_flags(args: argparse.Namespace) -> Choice:
    """What the flags say together; raises UserError."""
    if args.num_prompts < 1:
        raise UserError("--num-prompts: must be at least 1")
    one = read_options(args, Workload)
    duration = math.inf if one.trace_duration is None else one.trace_duration
    return Choice(
        parts=_parts(one),
        count=args.num_prompts,
        seed=args.seed,
        replay=one.replay_lengths,
        tokenizer=one.tokenizer,
        vocabulary=one.random_vocab_size,
        cut=Cut(one.trace_start, duration, one.trace_speed, one.max_input_len, one.max_output_len),
        ranges=Ranges(
            one.random_input_len, one.random_output_len, one.random_range_ratio, one.max_input_len, one.max_output_len
        ),
        sharegpt_output=one.sharegpt_output_len,
    )


def _parts(one: Workload) -> tuple[Part, ...]:
    if not one.mix:
        return (_checked(Part(one.dataset_name or DEFAULT, one.dataset_path), "--dataset-path FILE"),)
    if one.dataset_name or one.dataset_path:
        raise UserError("--mix: takes the place of --dataset-name and --dataset-path; leave them out")
    return tuple(_checked(parse_part(text), "NAME=FILE:WEIGHT") for text in one.mix)


def _checked(part: Part, remedy: str) -> Part:
    if part.name not in NAMES:
        raise UserError(f"--mix: {part.name!r} is none of {', '.join(NAMES)}")
    if part.name in NEED_FILE and part.path is None:
        raise UserError(f"the dataset {part.name} needs a file: give {remedy}")
    if part.name not in NEED_FILE and part.path is not None:
        raise UserError(f"the dataset {part.name} reads no file; leave {part.path} out")
    return part
