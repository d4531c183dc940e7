"""The loads of the grid: prompts and answers of at most LONGEST tokens each. Equal seeds give equal loads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from loadgen.simulate.load import task_lengths
from loadgen.simulate.prediction import read_lengths
from loadgen.workload.lengths import Cut, Lengths, load_trace
from models.errors import UsageError, UserError

LONGEST = 1024

Counts: TypeAlias = NDArray[np.int64]


def _log_normal(random: Generator, count: int) -> tuple[Counts, Counts]:
    """Heavy tails: the longest tenth of the answers holds half of all tokens."""
    prompts, answers = random.lognormal(math.log(150), 1.0, count), random.lognormal(math.log(80), 1.4, count)
    return _clip(prompts), _clip(answers)


def _bimodal(random: Generator, count: int) -> tuple[Counts, Counts]:
    """Nine of ten answers have 20 to 40 tokens, the others 600 to 900."""
    long = random.random(count) < 0.1
    answers = np.where(long, random.integers(600, 901, count), random.integers(20, 41, count))
    return random.integers(20, 201, count), answers


def _narrow(random: Generator, count: int) -> tuple[Counts, Counts]:
    return random.integers(100, 141, count), random.integers(180, 221, count)


def _equal(random: Generator, count: int) -> tuple[Counts, Counts]:
    return np.full(count, 120), np.full(count, 200)


def _serve_gen(random: Generator, count: int) -> tuple[Counts, Counts]:
    """As in ServeGen: a few of 30 clients send most, prompts of each are log-normal with a heavy tail, and its answers
    exponential, by means that differ between clients by a factor of three (standard deviation)."""
    shares = np.arange(1, 31) ** -1.2
    client = random.choice(30, count, p=shares / shares.sum())
    prompts, answers = random.lognormal(math.log(250), 0.8, 30), random.lognormal(math.log(120), 1.1, 30)
    tail = np.where(random.random(count) < 0.1, random.pareto(1.5, count) + 1, 1.0)
    return (
        _clip(random.lognormal(np.log(prompts[client]), 0.5) * tail),
        _clip(random.exponential(answers[client])),
    )


def _mooncake(random: Generator, count: int) -> tuple[Counts, Counts]:
    """As in Mooncake's conversations, cut at LONGEST: nearly all prompts are longer, answers have some 340 tokens."""
    return _clip(random.lognormal(math.log(7000), 1.2, count)), _clip(random.lognormal(math.log(290), 0.6, count))


def _clip(lengths: NDArray[np.float64]) -> Counts:
    return np.clip(np.rint(lengths), 1, LONGEST).astype(int)


SHAPES: Mapping[str, Callable[[Generator, int], tuple[Counts, Counts]]] = MappingProxyType(
    {
        "log-normal": _log_normal,
        "bimodal": _bimodal,
        "servegen": _serve_gen,
        "mooncake": _mooncake,
        "narrow": _narrow,
        "equal": _equal,
    }
)
TASKS = "tasks"
"""The built-in tasks of `lengthwise simulate`."""

TRACE_STEP = 900.0
"""Seconds from where one seed plays a trace to where the next does."""

FEWEST = 20
"""Requests of a trace below which a cell says nothing."""


@cache
def load_lengths(load: str, count: int, seed: int) -> tuple[Lengths, ...]:
    """Requests of a load, which is a name of SHAPES, TASKS, or the path of a trace; no arrivals yet.

    Raises UserError for a trace that cannot be read, or has too few requests.
    """
    if load in SHAPES:
        pairs = zip(*SHAPES[load](np.random.default_rng(seed), count), strict=True)
        return tuple(Lengths(0.0, int(prompt), int(answer)) for prompt, answer in pairs)
    if load == TASKS:
        return tuple(task_lengths(count, seed, LONGEST))
    begin, whole = TRACE_STEP * seed, load_trace(Path(load), cut=Cut(max_input=LONGEST, max_output=LONGEST))
    found = [one for one in whole if one.arrival >= begin]
    if len(found) < FEWEST:
        raise UserError(
            f"{load}: has {len(found)} answered requests from second {begin:g} on, and {FEWEST} are wanted: take a "
            "longer trace" + ("" if seed == 0 else ", or fewer --seeds")
        )
    return tuple(found[:count])


def check_traces(traces: Sequence[str], count: int, seeds: Sequence[int]) -> None:
    """Raise UserError for a trace that not all runs can have, before the first of them."""
    for trace in traces:
        for seed in seeds:
            load_lengths(trace, count, seed)


def check_predicted(traces: Sequence[str], files: Sequence[str], count: int) -> None:
    """Raises UserError where a file does not hold a length for each of the first `count` requests of its trace."""
    if len(files) > len(traces):
        raise UsageError(f"--predicted {files[len(traces)]}: give the --trace whose lengths these are")
    for trace, file in zip(traces, files, strict=False):
        wanted, found = len(load_lengths(trace, count, 0)), len(read_lengths(Path(file)))
        if found < wanted:
            raise UserError(f"{file}: holds {found} lengths for {wanted} requests of {trace}: one each is wanted")
