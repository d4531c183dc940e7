"""Frozen, torch-free messages between event loop and executors."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from operator import add, attrgetter
from typing import Self, TypeAlias

import msgspec

from engine.sampling.params import SamplingParams

RowId: TypeAlias = int


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"


REPETITION = "repetition"  # `stop_reason`


@dataclass(frozen=True, slots=True)
class RowSpec:
    row_id: RowId
    prompt: tuple[int, ...]
    sampling: SamplingParams
    priority: int = 0  # lower is better
    cache_scope: str = ""  # for prefixes
    back_within: float = 0.0  # seconds in which a prompt that extends it is expected


class Entry(StrEnum):
    """How rows join (design 1.2)."""

    EMBED = "embed"  # prefilled apart
    SHAPE = "shape"  # prompts in one padded step
    # running rows wait for each prefill (Magnus, IV-A)
    EMBED_BLOCKING = "embed-blocking"


class Overflow(StrEnum):
    """When rows outgrow the device (design 1.3)."""

    SCALE = "scale"  # swap the worst rows to host
    SPLIT = "split"  # hand all rows back


NEVER = 2**31  # tokens that no row has

MOST_PADDING = 0.25  # share of a prefill group's cells


def is_compact(rows: int, longest: int, tokens: int, most_cells: int, padding: float = MOST_PADDING) -> bool:
    """Whether a padded prefill group of `tokens` tokens fits, with at most this share of padding."""
    cells = rows * longest
    return cells <= most_cells and cells - tokens <= padding * cells


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    entry: Entry = Entry.EMBED
    closed: bool = False  # static batch
    iterations: int | None = None  # decode steps of a slice
    overflow: Overflow = Overflow.SCALE
    prefill_together: bool = True  # a static batch as one padded group
    kept_from: int = 0  # tokens (prompt and answer) from which a handed-back row's KV cache stays in host memory


# Commands: event loop -> executor


@dataclass(frozen=True, slots=True)
class Admit:
    """Handed-back rows continue."""

    rows: tuple[RowSpec, ...]
    terms: BatchPolicy = BatchPolicy()


@dataclass(frozen=True, slots=True)
class Pause:
    """Hand rows back; unknown ids are ignored."""

    row_ids: tuple[RowId, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Unknown ids are ignored."""

    row_ids: tuple[RowId, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    pass


Command: TypeAlias = Admit | Pause | Cancel | Stop


# Reports: executor -> event loop


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural, of the raw logits."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class RowUpdate(msgspec.Struct, frozen=True, gc=False):
    """A row's tokens of a step; a struct for speed. `text` lags behind while incomplete. The last has the
    `finish_reason`, and the stop text, token id, or REPETITION.
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
    cached_prompt: int = 0  # from the prefix cache; with the first token
    unnamed: int = 0  # tokens without known ids

    @staticmethod
    def join(updates: Sequence["RowUpdate"]) -> "RowUpdate":
        """Of one row, in order, one at least."""
        if len(updates) == 1:
            return updates[0]
        return msgspec.structs.replace(
            updates[-1],
            token_ids=tuple(chain.from_iterable(update.token_ids for update in updates)),
            text="".join(update.text for update in updates),
            logprobs=tuple(chain.from_iterable(update.logprobs for update in updates)),
            prompt_logprobs=next((one.prompt_logprobs for one in updates if one.prompt_logprobs is not None), None),
            cached_prompt=updates[0].cached_prompt,
            unnamed=sum(update.unnamed for update in updates),
        )

    @property
    def tokens(self) -> int:
        return len(self.token_ids) + self.unnamed


@dataclass(frozen=True, slots=True)
class BatchShape:
    """At a step's end (design 1.1)."""

    rows: int = 0
    staged: int = 0  # prefilled, waiting for a slot
    start: int = 0
    end: int = 0
    columns: int = 0
    capacity_tokens: int = 0


class Cause(StrEnum):
    SLICE = "slice"
    OVERFLOW = "overflow"
    PAUSE = "pause"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class HandedBack:
    row_ids: tuple[RowId, ...]
    cause: Cause
    dropped: tuple[RowId, ...] = ()  # KV cache lost


@dataclass(frozen=True, slots=True)
class StepStats:
    """Tokens and KV cells of a step, by use."""

    prompt: int = 0
    pad: int = 0  # cells without a token
    generated: int = 0
    invalid: int = 0  # for ended rows in their slots
    reads: int = 0  # cells: rows x columns of decode steps
    pad_reads: int = 0  # padding and holes
    invalid_reads: int = 0  # for ended rows
    cached: int = 0  # prompt tokens from the prefix cache

    def __add__(self, more: Self) -> Self:
        return type(self)(*map(add, AMOUNTS(self), AMOUNTS(more)))


AMOUNTS = attrgetter(*StepStats.__slots__)


@dataclass(frozen=True, slots=True)
class StepReport:
    """One turn; zero seconds when it only reports cancelled last rows."""

    executor: int
    step: int  # turns so far
    updates: tuple[RowUpdate, ...]
    shape: BatchShape
    seconds: float
    begun: tuple[RowId, ...] = ()  # prefill
    handed_back: tuple[HandedBack, ...] = ()
    tally: StepStats = StepStats()
    swapped_out: tuple[RowId, ...] = ()  # swapped to host
    made: float = field(default_factory=time.monotonic, compare=False)  # time.monotonic


@dataclass(frozen=True, slots=True)
class ExecutorDied:
    executor: int
    error: str
    salvaged: tuple[RowId, ...] = ()  # not running: can go on elsewhere


@dataclass(frozen=True, slots=True)
class ExecutorHealth:
    executor: int
    fault: str | None  # None when it takes rows again


Report: TypeAlias = StepReport | ExecutorDied | ExecutorHealth

Deliver: TypeAlias = Callable[[Report], None]  # in the executor's thread; must not block


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    index: int
    device: str
    capacity_tokens: int
    max_rows: int
    context_length: int  # prompt and answer, by model and capacity
