"""The `Device` that the rules of a row's life (engine.lifecycle) stand on, what they see of its rows, and what rows of
one command share. Torch-free.

A device holds K and V and computes. Which rows it reads, takes in, runs and lets go is decided by the rules alone.
engine.torch_device computes with torch; engine.simulated.device computes only how long that would take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Protocol, TypeAlias, TypeVar

from engine.messages import MOST_PADDING, BatchShape, RowSpec, RowUpdate, Tally, Terms

Rank: TypeAlias = tuple[int, int]
"""(priority, number of the admission); the least is the best."""


class Group:
    """The state that the rows of one command share."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.iterations_left: float = math.inf if terms.iterations is None else terms.iterations
        """Decode iterations until a closed batch's slice is over."""


Item = TypeVar("Item")


def similar_lengths(rows: Iterable[Item], length: Callable[[Item], int], max_tokens: int) -> list[list[Item]]:
    """Rows to prefill together, longest first: no group has more than `max_tokens` cells, unless it is a single row,
    nor more padding than MOST_PADDING.
    """
    groups: list[list[Item]] = []
    for row in sorted(rows, key=lambda row: -length(row)):
        if groups and _similar([length(other) for other in (*groups[-1], row)], max_tokens):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _similar(lengths: list[int], max_tokens: int) -> bool:
    cells = len(lengths) * max(lengths)
    return cells <= max_tokens and cells - sum(lengths) <= MOST_PADDING * cells


HEADROOM = 32
"""Columns that must stay free when a row joins others: one that left again in a few steps would be copied twice for
nothing."""


class OutOfMemoryError(MemoryError):
    """The device lacks the memory to compute what it was told to; its rows and their K and V are as they were."""


class RowFault(RuntimeError):
    """A row cannot go on; the message is for the client."""

    wipe = False
    """Whether its K and V may hold what is not a finite number."""
    by_client = False
    """Whether its client has asked for what cannot be done; the device is well."""


class Kv(Protocol):
    """K and V of one row, or of a block of its columns, outside the batch."""

    @property
    def bytes(self) -> int: ...
    @property
    def in_host_memory(self) -> bool: ...


class DeviceRow:
    """A row as the rules see it. Rows compare by identity."""

    kv: Kv | None
    """K and V outside the batch: just prefilled, or taken out. None while there are none, or the row runs."""

    def __init__(self, spec: RowSpec) -> None:
        self.row_id = spec.row_id
        self.prompt = spec.prompt
        self.sampling = spec.sampling
        self.cache_scope = spec.cache_scope
        self.rank: Rank = (spec.priority, 0)
        """Set anew whenever the row is admitted, as is its group."""
        self.group = Group(Terms())
        self.setbacks = 0
        """How often its prefill ran out of memory."""
        self.cached_prompt = 0
        """Tokens of its prompt that were copied from earlier ones' K and V in place of being read."""
        self.kv = None

    @property
    def step(self) -> int:
        """Tokens generated so far, which is the index of the next."""
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
        """Tokens whose K and V exist once the prompt is read: the newest token's are written by the next step."""
        return len(self.prompt) + max(0, self.step - 1)

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities of the prompt are wanted, for which all of it is read."""
        return self.sampling.prompt_logprobs is not None and not self.step


RowT = TypeVar("RowT", bound=DeviceRow)


class Action(StrEnum):
    """A kind of step of a device."""

    PREFILL = "prefill"
    """A chunk of prefill."""
    ENTER = "enter"
    """Rows enter by shape, in the same step as those that run."""
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Outcome(Generic[RowT]):
    """The results of a chunk of prefill, an entry by shape or a decode step."""

    updates: Sequence[RowUpdate] = ()
    failures: Sequence[tuple[RowT, Exception]] = ()
    """Rows that cannot go on, and why."""
    tally: Tally = Tally()
    read: Sequence[RowT] = ()
    """Rows that a chunk of prefill has read to their end; their K and V are set."""


class Batch(Protocol[RowT]):
    """The running batch: rows and the memory that holds their K and V."""

    @property
    def rows(self) -> Sequence[RowT]: ...
    @property
    def capacity_tokens(self) -> int: ...
    def shape(self, staged: int) -> BatchShape: ...
    def fits(self, length: int, *, lasting: bool) -> bool:
        """Whether a row of `length` tokens of K and V can join; `lasting`, and all can go on for some steps."""

    def admits(self, lengths: Sequence[int]) -> bool:
        """Whether rows of these lengths can enter by shape, as one step that opens columns for the longest."""

    def can_step(self) -> bool:
        """Whether every row can have one more token."""

    def remove(self, row: RowT, *, wipe: bool) -> None:
        """Let a row leave; its place and memory are free at once. `wipe` for rows that computed NaN."""

    def resize(self, capacity_tokens: int) -> None:
        """Go on with other memory for K and V, less where that is not to be had; no row may be left."""

    def check(self) -> None:
        """Assert that rows and memory agree; for tests."""


class Device(Protocol[RowT]):
    """A batch, and the computing of K and V and tokens for it. Methods that compute may raise OutOfMemoryError."""

    @property
    def batch(self) -> Batch[RowT]: ...
    @property
    def prefilling(self) -> Sequence[RowT]:
        """The rows of the prefill group under way."""

    @property
    def max_prefill_tokens(self) -> int:
        """Cells of a chunk of prefill."""

    @property
    def keeps_all_kv(self) -> bool:
        """Whether K and V of all rows that are handed back stay, whatever their terms say."""

    def new_row(self, spec: RowSpec) -> RowT: ...
    def kept_prefix(self, row: RowT) -> int:
        """Tokens at the beginning of a row's prompt whose K and V are kept from earlier prompts."""

    def kv_bytes(self, row: RowT) -> int:
        """Bytes that K and V of a row take outside the batch."""

    def insert(self, row: RowT, *, lasting: bool) -> None:
        """Let a row join with its K and V, which are the batch's from then on."""

    def drop(self, row: RowT) -> None:
        """Leave out a row that does not run, should its prompt be under way."""

    def save(self, row: RowT) -> bool:
        """Put a row's K and V into host memory, for which a running row leaves the batch; False where that fails."""

    def fetch(self, row: RowT) -> None:
        """Begin to copy K and V back from host memory, where that can be done beside the batch's steps."""

    def unreported(self, rows: Sequence[RowT]) -> Sequence[RowUpdate]:
        """Tokens of these rows that no outcome has told."""

    def launch_chunk(self, rows: Sequence[RowT]) -> Tally:
        """Begin a chunk of the group under way, else of a new one of these rows. A group that fails is gone."""

    def chunk_done(self) -> bool:
        """Whether collecting the chunk under way would wait for nothing."""

    def collect_chunk(self) -> Outcome[RowT]:
        """End the chunk under way: the rows that it has read to their end, with their first tokens. A group that fails
        is gone."""

    def settle(self) -> Outcome[RowT]:
        """End the decode step that was begun ahead of its tokens' being read, if there is one."""

    def enter(self, rows: Sequence[RowT]) -> Outcome[RowT]:
        """Let rows enter the batch in a step that computes all their tokens (Baton's shape)."""

    def step(self, iterations: int) -> Outcome[RowT]:
        """Decode so many iterations."""
