"""Traces as arrival times and lengths: all that a simulation needs, and what trace workloads are made of.

It knows no prompt. The formats are in traces.py; here a trace is put in order, cut and scaled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from loadgen.workload.traces import TRACES, Entry, recognize
from models.errors import UserError


@dataclass(frozen=True, slots=True)
class Lengths:
    """One request: seconds after the start, tokens of its prompt, tokens of its answer, and who sends it."""

    arrival: float
    input_length: int
    output_length: int
    client: str = ""


@dataclass(frozen=True, slots=True)
class Cut:
    """Which part of a trace to play, and how."""

    start: float = 0.0
    """Seconds after the trace's first request, in the trace's time."""
    duration: float = math.inf
    """Seconds from there, in the trace's time."""
    speed: float = 1.0
    """2 plays the trace in half its time."""
    max_input: int | None = None
    """Longer prompts are clipped to this many tokens."""
    max_output: int | None = None
    """Longer answers are clipped to this many tokens."""
    limit: int | None = None
    """At most this many requests, the first ones."""


WHOLE = Cut()


def load_trace(path: Path, kind: str | None = None, cut: Cut = WHOLE) -> list[Lengths]:
    """Requests of the trace in the order they arrive; `kind` is a name in TRACES, None: what the file shows.

    The whole file is checked, also what the cut leaves out. Requests that generated nothing, which traces keep for
    ones that failed, are left out. Raises UserError for a wrong file and for a cut that holds no request.
    """
    form = recognize(path) if kind is None else TRACES[kind]
    entries = sorted((entry for entry in form.read(path) if entry.output_length > 0), key=lambda entry: entry.time)
    if not entries:
        raise UserError(f"{path}: holds no requests with an answer")
    origin = entries[0].time + cut.start
    chosen = [entry for entry in entries if 0 <= entry.time - origin < cut.duration]
    if not chosen:
        lasts = entries[-1].time - entries[0].time
        raise UserError(
            f"{path}: no request arrives in the {cut.duration:g} s from second {cut.start:g} on "
            f"(--trace-start, --trace-duration); the trace lasts {lasts:.0f} s"
        )
    return [_lengths(entry, origin, cut) for entry in chosen[: cut.limit]]


def _lengths(entry: Entry, origin: float, cut: Cut) -> Lengths:
    return Lengths(
        arrival=(entry.time - origin) / cut.speed,
        input_length=clip(entry.input_length, cut.max_input),
        output_length=clip(entry.output_length, cut.max_output),
    )


def clip(length: int, bound: int | None) -> int:
    """The length, or the bound where it is longer."""
    return length if bound is None else min(length, bound)
