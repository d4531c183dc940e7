"""Messages between the event loop and an executor thread: plain, frozen, torch-free data.

Commands go in, reports come out. Nothing here knows a tensor, a strategy or HTTP, so the scheduler can be tested
and simulated without a network.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import msgspec

from engine.sampling.params import SamplingParams

RowId: TypeAlias = int
"""Names one row from its arrival to its end; unique within the process."""


class FinishReason(StrEnum):
    """Why a row ended; the values are the API's."""

    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"


REPETITION = "repetition"
"""The `stop_reason` of a row that was ended because it repeated itself."""


@dataclass(frozen=True, slots=True)
class RowSpec:
    """One sequence to generate: its prompt as token ids, and how to continue it."""

    row_id: RowId
    prompt: tuple[int, ...]
    sampling: SamplingParams
    priority: int = 0
    """Lower is better: where memory runs short, the worst rows are swapped out first."""
    cache_scope: str = ""
    """Rows of one scope share what is kept of their prompts; rows of different scopes share nothing."""


class Entry(StrEnum):
    """How rows get into the running batch (design 1.2)."""

    EMBED = "embed"
    """Rows are prefilled apart; their K and V are copied in when a slot frees."""
    SHAPE = "shape"
    """Prompts enter as one step of many tokens, in which every other row carries padding."""
    EMBED_BLOCKING = "embed-blocking"
    """Each prompt is read alone while running rows wait, and the row joins them then: continuous batching as papers
    take it for a baseline (Magnus, section IV-A)."""


class Overflow(StrEnum):
    """The way out when rows outgrow the device (design 1.3)."""

    SCALE = "scale"
    """The worst-ranked rows wait in host memory until there is room again."""
    SPLIT = "split"
    """The batch stops, and all its rows are handed back."""


EVERY_LENGTH = range(sys.maxsize)
"""All numbers of tokens."""

NO_LENGTH = range(0)

MOST_PADDING = 0.25
"""Part of a prefill group's cells that may be padding, where its rows are of similar length."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The way in which the rows of one command run. An executor knows no more of strategies than this."""

    entry: Entry = Entry.EMBED
    closed: bool = False
    """Whether the rows run as a batch of their own: they start together, no other joins, and a row that has ended
    keeps its slot, generating invalid tokens, until the last one has."""
    iterations: int | None = None
    """Decode iterations after which a closed batch hands back the rows that have not ended: its slice."""
    overflow: Overflow = Overflow.SCALE
    prefill_together: bool = True
    """Whether a closed batch is prefilled as one padded group, else in groups of similar length."""
    keep_kv: range = EVERY_LENGTH
    """K and V of rows that are handed back stay in host memory when they have so many tokens, prompt and answer; those
    of the others are recomputed later."""


# Commands: event loop -> executor


@dataclass(frozen=True, slots=True)
class Admit:
    """Run these rows on the given terms. Rows that were handed back before go on where they stopped."""

    rows: tuple[RowSpec, ...]
    terms: Terms = Terms()


@dataclass(frozen=True, slots=True)
class Pause:
    """Take these rows out and hand them back; rows that are not there any more are ignored."""

    row_ids: tuple[RowId, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Drop these rows wherever they are; rows that are not there any more are ignored."""

    row_ids: tuple[RowId, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """End the thread; rows that are still there are dropped."""


Command: TypeAlias = Admit | Pause | Cancel | Stop


# Reports: executor -> event loop


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of one token, and of the likeliest ones in its place (natural logarithm, raw logits)."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class RowUpdate(msgspec.Struct, frozen=True):
    """Tokens that one step brought to one row. A struct: thousands are made a second, in a tenth of a dataclass's time.

    `text` may be empty while a character is incomplete or a stop string may be under way; the texts of all updates
    joined are the whole answer. `finish_reason` is set in a row's last update only. `stop_reason` is the stop
    string or stop token id that ended it, REPETITION, or None for the end token.
    """

    row_id: RowId
    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    by_client: bool = False
    """Whether the error is its client's doing, who has asked for what cannot be done."""
    cached_prompt: int = 0
    """Tokens of the prompt whose K and V were kept from earlier ones; told with the first token."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The running batch at the end of a step, in rows and columns (design 1.1)."""

    rows: int = 0
    staged: int = 0
    """Rows that are prefilled, or extracted, and wait for a slot."""
    start: int = 0
    end: int = 0
    columns: int = 0
    capacity_tokens: int = 0


class Cause(StrEnum):
    """Why rows were handed back before their end."""

    SLICE = "slice"
    OVERFLOW = "overflow"
    PAUSE = "pause"
    FAULT = "fault"
    """The device fails, and the rows shall go on elsewhere."""


@dataclass(frozen=True, slots=True)
class HandedBack:
    """Rows that an executor has let go before their end; admitted again, here or elsewhere, they go on."""

    row_ids: tuple[RowId, ...]
    cause: Cause
    dropped: tuple[RowId, ...] = ()
    """Rows of `row_ids` without K and V in host memory: all their tokens are read before they go on."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Tokens that a turn computed, by what they were good for."""

    prompt: int = 0
    """Prompt tokens read."""
    pad: int = 0
    """Cells of prefill groups, or of a shape insertion, that held no token of their row."""
    generated: int = 0
    """Tokens that went into an answer."""
    invalid: int = 0
    """Tokens generated for rows that had ended but kept their slot."""
    reads: int = 0
    """Cells of K and V that decode steps read: for each row, all columns of the window."""
    pad_reads: int = 0
    """Cells among `reads` that held nothing of their row's own: padding in front, and holes."""
    invalid_reads: int = 0
    """Cells among `reads` that were read for rows that had ended but kept their slot, their padding included."""
    cached: int = 0
    """Prompt tokens whose K and V were kept from earlier prompts, and copied."""

    def __add__(self, more: Tally) -> Tally:
        return Tally(*(getattr(self, name) + getattr(more, name) for name in Tally.__slots__))


@dataclass(frozen=True, slots=True)
class StepReport:
    """Everything one turn of an executor's loop did, or, with no seconds, that its last rows were cancelled."""

    executor: int
    step: int
    """How many turns the executor has done so far."""
    updates: tuple[RowUpdate, ...]
    shape: BatchShape
    seconds: float
    """Duration of the turn."""
    begun: tuple[RowId, ...] = ()
    """Rows whose prefill began in this turn: until then they waited."""
    handed_back: tuple[HandedBack, ...] = ()
    tally: Tally = Tally()
    extracted: tuple[RowId, ...] = ()
    """Rows that were taken out of the batch to host memory in this turn; they wait for a slot."""


@dataclass(frozen=True, slots=True)
class ExecutorDied:
    """The thread is gone: every row it held is lost to it. Sent once, as its last word."""

    executor: int
    error: str
    salvaged: tuple[RowId, ...] = ()
    """Rows that had begun and can go on elsewhere all the same, since they were not running when it died."""


@dataclass(frozen=True, slots=True)
class ExecutorHealth:
    """An executor whose device fails takes no rows until the device has proved itself; what it held it hands back."""

    executor: int
    fault: str | None
    """Why it takes none; None when it takes rows again."""


Report: TypeAlias = StepReport | ExecutorDied | ExecutorHealth

Deliver: TypeAlias = Callable[[Report], None]
"""Hands a report to the event loop; called in the executor's thread, must not block."""


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """The room of an executor, as it is at start."""

    index: int
    device: str
    capacity_tokens: int
    max_rows: int
    context_length: int
    """Longest prompt plus answer of one row, in tokens: the lesser of the model's context and the capacity."""
