"""The flags that choose a workload, and what they say once they are checked. Knows no dataset's format."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loadgen.flag_values import number, positive, unsigned, whole
from loadgen.workload.lengths import Cut
from loadgen.workload.mix import Part, parse_part
from loadgen.workload.tokens import VOCABULARY, Ranges
from loadgen.workload.traces import TRACES
from models.errors import UserError

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


def add_flags(parser: argparse.ArgumentParser) -> None:
    """All flags of workloads but --num-prompts and --seed, which the command itself has."""
    group = parser.add_argument_group("workload")
    group.add_argument("--dataset-name", choices=NAMES, help=f"what to send (default: {DEFAULT}, which needs no files)")
    group.add_argument("--dataset-path", type=Path, metavar="FILE", help=f"its file: for {', '.join(NEED_FILE)}")
    group.add_argument(
        "--mix",
        nargs="+",
        metavar="NAME[=FILE]:WEIGHT",
        help="several datasets by weight in place of one: builtin:7 azure=trace.csv:3",
    )
    group.add_argument(
        "--replay-lengths",
        action=argparse.BooleanOptionalAction,
        help="have the server generate exactly the recorded lengths; it must run with --allow-replay "
        "(default: for traces)",
    )
    _add(group, "--max-input-len", whole, None, "clip traces' and random prompts; leave longer texts out")
    _add(group, "--max-output-len", whole, None, "clip answers; also max_tokens of each request")
    group.add_argument(
        "--tokenizer", type=Path, metavar="FOLDER", help="count tokens with the tokenizer.json there, else estimate"
    )
    _add(group, "--trace-start", unsigned, 0.0, "second of the trace to begin at")
    _add(group, "--trace-duration", positive, math.inf, "seconds of the trace to play")
    _add(group, "--trace-speed", positive, 1.0, "2 plays a trace in half its time")
    _add(group, "--random-input-len", whole, 1024, "mean tokens of random prompts")
    _add(group, "--random-output-len", whole, 128, "mean tokens of their answers")
    _add(group, "--random-range-ratio", _share, 0.0, "lengths are uniform in mean * [1 - ratio, 1 + ratio]")
    _add(group, "--random-vocab-size", whole, None, "random token ids are below this", f"{VOCABULARY}, or --tokenizer")
    _add(group, "--sharegpt-output-len", whole, None, "answer length for all of sharegpt", "each one's own")


def read_flags(args: argparse.Namespace) -> Choice:
    """What the flags say together; raises UserError."""
    if args.num_prompts < 1:
        raise UserError("--num-prompts: must be at least 1")
    return Choice(
        parts=_parts(args),
        count=args.num_prompts,
        seed=args.seed,
        replay=args.replay_lengths,
        tokenizer=args.tokenizer,
        vocabulary=args.random_vocab_size,
        cut=Cut(args.trace_start, args.trace_duration, args.trace_speed, args.max_input_len, args.max_output_len),
        ranges=Ranges(
            args.random_input_len,
            args.random_output_len,
            args.random_range_ratio,
            args.max_input_len,
            args.max_output_len,
        ),
        sharegpt_output=args.sharegpt_output_len,
    )


def _parts(args: argparse.Namespace) -> tuple[Part, ...]:
    if not args.mix:
        return (_checked(Part(args.dataset_name or DEFAULT, args.dataset_path), "--dataset-path FILE"),)
    if args.dataset_name or args.dataset_path:
        raise UserError("--mix: takes the place of --dataset-name and --dataset-path; leave them out")
    return tuple(_checked(parse_part(text), "NAME=FILE:WEIGHT") for text in args.mix)


def _checked(part: Part, remedy: str) -> Part:
    if part.name not in NAMES:
        raise UserError(f"--mix: {part.name!r} is none of {', '.join(NAMES)}")
    if part.name in NEED_FILE and part.path is None:
        raise UserError(f"the dataset {part.name} needs a file: give {remedy}")
    if part.name not in NEED_FILE and part.path is not None:
        raise UserError(f"the dataset {part.name} reads no file; leave {part.path} out")
    return part


def _add(
    group: argparse._ArgumentGroup,
    flag: str,
    convert: Callable[[str], float | int],
    default: float | int | None,
    help: str,
    shown: str = "",
) -> None:
    told = shown or ("" if default in (None, math.inf) else f"{default:g}")
    text = f"{help} (default: {told})" if told else help
    group.add_argument(flag, type=convert, default=default, metavar="N", help=text)


def _share(text: str) -> float:
    return number(text, lambda value: 0 <= value < 1, "a number from 0 to below 1")
