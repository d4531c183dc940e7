"""What the lifecycle (engine.lifecycle) needs of a device and its rows; torch-free.

A device holds KV caches and computes; the lifecycle decides which rows. engine.torch_device computes with torch,
engine.simulated.device only computes the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Protocol, TypeAlias, TypeVar

from engine.messages import BatchShape, RowSpec, RowUpdate, Tally, Terms, is_compact

Rank: TypeAlias = tuple[int, int]  # (priority, admission number); least is best


class Group:
    """What the rows of one command share."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        # decode steps until a static batch's slice ends
        self.iterations_left: float = math.inf if terms.iterations is None else terms.iterations


Item = TypeVar("Item")


def similar_lengths(rows: Iterable[Item], length: Callable[[Item], int], max_tokens: int) -> list[list[Item]]:
    """Group rows for prefill, longest first; only a single row may exceed `max_tokens` cells, padding at most
    MOST_PADDING.
    """
    groups: list[list[Item]] = []
    for row in sorted(rows, key=lambda row: -length(row)):
        lengths = [length(other) for other in (*(groups[-1] if groups else ()), row)]
        if groups and is_compact(len(lengths), lengths[0], sum(lengths), max_tokens):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


HEADROOM = 32  # columns that stay free when a row joins, lest it leave again within a few steps


class OutOfMemoryError(MemoryError):
    """Nothing was computed; rows and their KV caches are as before."""


class RowFault(RuntimeError):
    """The row cannot go on; the message is for the client."""

    wipe = False  # its KV cache may hold NaN or Inf
    by_client = False


class Kv(Protocol):
    """KV cache of a row, or of a block of its columns, outside the batch."""

    @property
    def bytes(self) -> int: ...
    @property
    def in_host_memory(self) -> bool: ...


class DeviceRow:
    """Rows compare by identity."""

    kv: Kv | None  # outside the batch: prefilled or taken out; None while it runs

    def __init__(self, spec: RowSpec) -> None:
        self.row_id = spec.row_id
        self.prompt = spec.prompt
        self.sampling = spec.sampling
        self.cache_scope = spec.cache_scope
        self.rank: Rank = (spec.priority, 0)  # set at each admission, as is its group
        self.group = Group(Terms())
        self.setbacks = 0  # prefills that ran out of memory
        self.cached_prompt = 0  # prompt tokens copied from the prefix cache
        self.kv = None

    @property
    def step(self) -> int:
        """Tokens generated so far: the index of the next."""
        raise NotImplementedError

    @property
    def ended(self) -> bool:
        raise NotImplementedError

    @property
    def length(self) -> int:
        """Tokens, prompt and generated."""
        return len(self.prompt) + self.step

    @property
    def cached_tokens(self) -> int:
        """Tokens whose K and V exist: the newest token's are written by the next step."""
        return len(self.prompt) + max(0, self.step - 1)

    @property
    def scores_prompt(self) -> bool:
        """Whether prompt log-probabilities are wanted, which rule out the prefix cache."""
        return self.sampling.prompt_logprobs is not None and not self.step


RowT = TypeVar("RowT", bound=DeviceRow)


class Action(StrEnum):
    PREFILL = "prefill"
    ENTER = "enter"  # rows enter by shape, in the running rows' step
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class StepOutcome(Generic[RowT]):
    updates: Sequence[RowUpdate] = ()
    failures: Sequence[tuple[RowT, Exception]] = ()
    tally: Tally = Tally()
    read: Sequence[RowT] = ()  # rows whose prefill is complete; their `kv` is set


class DeviceBatch(Protocol[RowT]):
    """The running batch and its KV memory."""

    @property
    def rows(self) -> Sequence[RowT]: ...
    @property
    def capacity_tokens(self) -> int: ...
    def shape(self, staged: int) -> BatchShape: ...
    def fits(self, length: int, *, lasting: bool) -> bool:
        """Whether a row of `length` tokens can join, and with `lasting` all rows can go on for HEADROOM columns."""

    def admits(self, lengths: Sequence[int]) -> bool:
        """Whether rows of these lengths can enter by shape in one step."""

    def can_step(self) -> bool:
        """Whether every row can take one more token."""

    def remove(self, row: RowT, *, wipe: bool) -> None:
        """Free a row's place and memory at once; `wipe` for rows that computed NaN."""

    def resize(self, capacity_tokens: int) -> None:
        """Take other KV memory, less where that cannot be had; no row may be left."""


class Device(Protocol[RowT]):
    """Methods that compute may raise OutOfMemoryError."""

    @property
    def batch(self) -> DeviceBatch[RowT]: ...
    @property
    def prefilling(self) -> Sequence[RowT]:
        """Rows of the prefill group under way."""

    @property
    def max_prefill_tokens(self) -> int:
        """Cells of one prefill chunk."""

    def new_row(self, spec: RowSpec) -> RowT: ...
    def kept_prefix(self, row: RowT) -> int:
        """Tokens of the row's prompt in the prefix cache."""

    def kv_bytes(self, row: RowT) -> int:
        """Bytes of a row's KV cache outside the batch."""

    def insert(self, row: RowT, *, lasting: bool) -> None:
        """Let a row join; its KV cache is the batch's from then on."""

    def drop(self, row: RowT) -> None:
        """Forget a row that does not run, even in the middle of its prefill."""

    def save(self, row: RowT) -> bool:
        """Swap a row's KV cache to host memory, taking it out of the batch; False where that fails."""

    def fetch(self, row: RowT) -> None:
        """Begin to copy a KV cache back, where that can overlap the batch's steps."""

    def unreported(self, rows: Sequence[RowT]) -> Sequence[RowUpdate]:
        """Tokens of these rows that no outcome has reported."""

    def launch_chunk(self, rows: Sequence[RowT]) -> Tally:
        """Begin a chunk of the group under way, else of a new group of these rows. A group that fails is gone."""

    def chunk_done(self) -> bool:
        """Whether collecting the chunk would not wait."""

    def collect_chunk(self) -> StepOutcome[RowT]:
        """End the chunk: rows whose prefill is complete, with their first tokens. A group that fails is gone."""

    def settle(self) -> StepOutcome[RowT]:
        """End a decode step that was launched ahead, if there is one."""

    def enter(self, rows: Sequence[RowT]) -> StepOutcome[RowT]:
        """Let rows enter in one step that computes all their tokens (Baton's shape)."""

    def step(self, iterations: int) -> StepOutcome[RowT]:
        """Run up to this many decode steps."""
