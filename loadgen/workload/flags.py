"""The flags that choose a workload. Knows no dataset's format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from loadgen.workload.lengths import TRACES, Cut
from loadgen.workload.sample import VOCABULARY
from models.errors import UserError
from models.options import Count, NonNegative, Positive, option

DEFAULT = "builtin"
NEED_FILE = ("jsonl", "sharegpt", *TRACES)
NAMES = (DEFAULT, "random", *NEED_FILE)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The requests to send."""

    dataset_name: str | None = option(
        None, f"what to send (default: {DEFAULT}, which needs no files)", choices=lambda: NAMES
    )
    dataset_path: Path | None = option(None, f"its file: for {', '.join(NEED_FILE)}")
    replay_lengths: bool | None = option(None)
    """have the server generate exactly the recorded lengths; it must run with --allow-replay (default: for traces)"""
    max_input_len: Count | None = option(None)
    """clip traces' and random prompts; leave longer texts out"""
    max_output_len: Count | None = option(None)
    """clip answers; also max_tokens of each request"""
    tokenizer: Path | None = option(None, metavar="FOLDER")
    """count tokens with the tokenizer.json there, else estimate"""
    trace_start: NonNegative = option(0.0)
    """second of the trace to begin at"""
    trace_duration: Positive | None = option(None)
    """seconds of the trace to play (default: all)"""
    trace_speed: Positive = option(1.0)
    """2 plays a trace in half its time"""
    random_input_len: Count = option(1024)
    """mean tokens of random prompts"""
    random_output_len: Count = option(128)
    """mean tokens of their answers"""
    random_range_ratio: Annotated[float, Meta(ge=0, lt=1)] = option(0.0)
    """lengths are uniform in mean * [1 - ratio, 1 + ratio]"""
    random_vocab_size: Count | None = option(
        None, f"random token ids are below this (default: {VOCABULARY}, or --tokenizer)"
    )
    sharegpt_output_len: Count | None = option(None)
    """answer length for all of sharegpt (default: each one's own)"""

    @property
    def dataset(self) -> str:
        """The name of what is sent."""
        return self.dataset_name or DEFAULT

    @property
    def file(self) -> Path:
        """The dataset's file, where it has one."""
        assert self.dataset_path is not None, "refused before"
        return self.dataset_path

    def cut(self, limit: int) -> Cut:
        """The part of a trace to play, of `limit` requests at most."""
        duration = math.inf if self.trace_duration is None else self.trace_duration
        return Cut(self.trace_start, duration, self.trace_speed, self.max_input_len, self.max_output_len, limit)

    @property
    def replays(self) -> bool:
        """Whether requests carry their answer's length."""
        return self.dataset in TRACES if self.replay_lengths is None else self.replay_lengths

    def refuse(self) -> None:
        """Raise UserError where flags contradict each other."""
        if self.dataset in NEED_FILE and self.dataset_path is None:
            raise UserError(f"the dataset {self.dataset} needs a file: give --dataset-path FILE")
        if self.dataset not in NEED_FILE and self.dataset_path is not None:
            raise UserError(f"the dataset {self.dataset} reads no file; leave {self.dataset_path} out")
