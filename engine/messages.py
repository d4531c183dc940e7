"""Messages between the event loop and an executor thread: frozen and torch-free. Commands go in, reports come out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

import msgspec

from engine.sampling.params import SamplingParams

RowId: TypeAlias = int  # unique within the process


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"


REPETITION = "repetition"  # `stop_reason` of a row that was ended because it repeated itself


@dataclass(frozen=True, slots=True)
class RowSpec:
    """One sequence to generate."""

    row_id: RowId
    prompt: tuple[int, ...]
    sampling: SamplingParams
    priority: int = 0  # lower is better; the worst rows are swapped to host first
    cache_scope: str = ""  # rows share prefixes only within a scope


class Entry(StrEnum):
    """How rows join the running batch (design 1.2)."""

    EMBED = "embed"  # prefilled apart, copied in when a slot frees
    SHAPE = "shape"  # the prompt enters as one step; every other row carries padding
    # running rows wait for each prefill: continuous batching as a baseline (Magnus, IV-A)
    EMBED_BLOCKING = "embed-blocking"


class Overflow(StrEnum):
    """What happens when rows outgrow the device (design 1.3)."""

    SCALE = "scale"  # the worst-ranked rows are swapped to host memory
    SPLIT = "split"  # the batch stops and all its rows are handed back


NEVER = 2**31  # tokens that no row has

MOST_PADDING = 0.25  # share of a prefill group's cells that may be padding


def is_compact(rows: int, longest: int, tokens: int, most_cells: int, padding: float = MOST_PADDING) -> bool:
    """Whether a padded prefill group of `tokens` tokens fits, with at most this share of padding."""
    cells = rows * longest
    return cells <= most_cells and cells - tokens <= padding * cells


@dataclass(frozen=True, slots=True)
class Terms:
    """How the rows of one command run; all that an executor knows of strategies."""

    entry: Entry = Entry.EMBED
    closed: bool = False  # static batch: nobody joins, ended rows keep their slots
    iterations: int | None = None  # slice of a static batch, in decode steps
    overflow: Overflow = Overflow.SCALE
    prefill_together: bool = True  # prefill a static batch as one padded group, not by similar length
    kept_from: int = 0  # tokens (prompt and answer) from which a handed-back row's KV cache stays in host memory


# Commands: event loop -> executor


@dataclass(frozen=True, slots=True)
class Admit:
    """Run these rows; rows that were handed back go on where they stopped."""

    rows: tuple[RowSpec, ...]
    terms: Terms = Terms()


@dataclass(frozen=True, slots=True)
class Pause:
    """Take these rows out and hand them back; unknown ids are ignored."""

    row_ids: tuple[RowId, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Drop these rows; unknown ids are ignored."""

    row_ids: tuple[RowId, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """End the thread and drop its rows."""


Command: TypeAlias = Admit | Pause | Cancel | Stop


# Reports: executor -> event loop


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithms of the raw logits' softmax."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class RowUpdate(msgspec.Struct, frozen=True):
    """One row's tokens of one step. A struct, since thousands are made a second.

    `text` lags behind the tokens while a character or a possible stop text is incomplete. `finish_reason` is set in
    the last update only; `stop_reason` is the stop text or token id, REPETITION, or None for the end token.
    """

    row_id: RowId
    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    by_client: bool = False  # the error is the client's fault
    cached_prompt: int = 0  # prompt tokens taken from the prefix cache; set with the first token
    unnamed: int = 0  # tokens beside `token_ids`, whose ids are not known

    @property
    def tokens(self) -> int:
        return len(self.token_ids) + self.unnamed


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The running batch at the end of a step (design 1.1)."""

    rows: int = 0
    staged: int = 0  # rows that wait for a slot with their KV cache ready
    start: int = 0
    end: int = 0
    columns: int = 0
    capacity_tokens: int = 0


class Cause(StrEnum):
    """Why rows were handed back."""

    SLICE = "slice"
    OVERFLOW = "overflow"
    PAUSE = "pause"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class HandedBack:
    """Rows that left before their end; admitted again, they go on."""

    row_ids: tuple[RowId, ...]
    cause: Cause
    dropped: tuple[RowId, ...] = ()  # rows whose KV cache is gone and is computed again


@dataclass(frozen=True, slots=True)
class Tally:
    """Tokens and KV cells of a step, by what they were used for."""

    prompt: int = 0
    pad: int = 0  # cells of a prefill group or a shape insertion without a token
    generated: int = 0
    invalid: int = 0  # generated for rows that had ended but kept their slot
    reads: int = 0  # KV cells read by decode steps: all columns of the window, for each row
    pad_reads: int = 0  # of `reads`: padding and holes
    invalid_reads: int = 0  # of `reads`: for ended rows, padding included
    cached: int = 0  # prompt tokens copied from the prefix cache

    def __add__(self, more: Tally) -> Tally:
        return Tally(*(getattr(self, name) + getattr(more, name) for name in Tally.__slots__))


@dataclass(frozen=True, slots=True)
class StepReport:
    """One turn of an executor's loop; zero seconds when it only says that its last rows were cancelled."""

    executor: int
    step: int  # turns so far
    updates: tuple[RowUpdate, ...]
    shape: BatchShape
    seconds: float
    begun: tuple[RowId, ...] = ()  # rows whose prefill began in this turn
    handed_back: tuple[HandedBack, ...] = ()
    tally: Tally = Tally()
    extracted: tuple[RowId, ...] = ()  # rows swapped to host memory in this turn
    made: float = field(default_factory=time.monotonic, compare=False)  # seconds of time.monotonic


@dataclass(frozen=True, slots=True)
class ExecutorDied:
    """The thread's last message; the rows it held are lost but for `salvaged`."""

    executor: int
    error: str
    salvaged: tuple[RowId, ...] = ()  # rows that were not running and can go on elsewhere


@dataclass(frozen=True, slots=True)
class ExecutorHealth:
    """An executor whose device fails takes no rows until the device passes its self-test."""

    executor: int
    fault: str | None  # None when it takes rows again


Report: TypeAlias = StepReport | ExecutorDied | ExecutorHealth

Deliver: TypeAlias = Callable[[Report], None]  # called in the executor's thread; must not block


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """Capacity at start."""

    index: int
    device: str
    capacity_tokens: int
    max_rows: int
    context_length: int  # tokens of prompt and answer: the lesser of the model's context and the capacity
