"""What engine.lifecycle needs of a device and its rows; torch-free."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Protocol, TypeAlias, TypeVar

from engine.messages import BatchPolicy, BatchShape, RowSpec, RowUpdate, StepStats, is_compact

Rank: TypeAlias = tuple[int, int]  # (priority, admission number); least is best


class Group:
    def __init__(self, terms: BatchPolicy) -> None:
        self.terms = terms
        # decode steps until a static batch's slice ends
        self.iterations_left: float = math.inf if terms.iterations is None else terms.iterations


Item = TypeVar("Item")


def similar_lengths(rows: Iterable[Item], length: Callable[[Item], int], max_tokens: int) -> list[list[Item]]:
    """Prefill groups, longest first; only a single row may exceed `max_tokens` cells."""
    groups: list[list[Item]] = []
    for row in sorted(rows, key=lambda row: -length(row)):
        lengths = [length(other) for other in (*(groups[-1] if groups else ()), row)]
        if groups and is_compact(len(lengths), lengths[0], sum(lengths), max_tokens):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


HEADROOM = 32  # columns kept free when a row joins


class OutOfMemoryError(MemoryError):
    """Rows and KV caches are unchanged."""


class RowFault(RuntimeError):
    """The message is for the client."""

    wipe = False  # its KV cache may hold NaN or Inf
    by_client = False


class Kv(Protocol):
    """KV cache of a row, or of some columns, outside the batch."""

    @property
    def bytes(self) -> int: ...
    @property
    def in_host_memory(self) -> bool: ...


class DeviceRow:
    """Rows compare by identity."""

    kv: Kv | None  # outside the batch; None while it runs

    def __init__(self, spec: RowSpec) -> None:
        self.row_id = spec.row_id
        self.prompt = spec.prompt
        self.sampling = spec.sampling
        self.cache_scope = spec.cache_scope
        self.back_within = spec.back_within
        self.rank: Rank = (spec.priority, 0)  # set at each admission, like the group
        self.group = Group(BatchPolicy())
        self.setbacks = 0  # prefills that ran out of memory
        self.cached_prompt = 0  # prompt tokens copied from the prefix cache
        self.kv = None

    @property
    def step(self) -> int:
        raise NotImplementedError

    @property
    def ended(self) -> bool:
        raise NotImplementedError

    @property
    def length(self) -> int:
        return len(self.prompt) + self.step

    @property
    def cached_tokens(self) -> int:
        """The newest token's K and V are written by the next step."""
        return len(self.prompt) + max(0, self.step - 1)

    @property
    def scores_prompt(self) -> bool:
        return self.sampling.prompt_logprobs is not None and not self.step


RowT = TypeVar("RowT", bound=DeviceRow)


class Action(StrEnum):
    PREFILL = "prefill"
    ENTER = "enter"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class StepOutcome(Generic[RowT]):
    updates: Sequence[RowUpdate] = ()
    failures: Sequence[tuple[RowT, Exception]] = ()
    tally: StepStats = StepStats()
    read: Sequence[RowT] = ()  # rows whose prefill is complete; their `kv` is set


class DeviceBatch(Protocol[RowT]):
    @property
    def rows(self) -> Sequence[RowT]: ...
    @property
    def capacity_tokens(self) -> int: ...
    def shape(self, staged: int) -> BatchShape: ...
    def fits(self, length: int, *, lasting: bool) -> bool:
        """With `lasting`, all rows can go on for HEADROOM columns."""

    def admits(self, lengths: Sequence[int]) -> bool:
        """By shape, in one step."""

    def can_step(self) -> bool:
        """Whether every row can take one more token."""

    def remove(self, row: RowT, *, wipe: bool) -> None:
        """`wipe` after NaN."""

    def resize(self, capacity_tokens: int) -> None:
        """Only while no row runs; takes less where memory lacks."""


class Device(Protocol[RowT]):
    @property
    def batch(self) -> DeviceBatch[RowT]: ...
    @property
    def prefilling(self) -> Sequence[RowT]: ...

    @property
    def max_prefill_tokens(self) -> int:
        """Cells of a chunk."""

    @property
    def skips_padding(self) -> bool:
        """In prefill."""

    def new_row(self, spec: RowSpec) -> RowT: ...
    def kept_prefix(self, row: RowT) -> int:
        """Tokens."""

    def kv_bytes(self, row: RowT) -> int:
        """Outside the batch."""

    def insert(self, row: RowT, *, lasting: bool) -> None: ...

    def drop(self, row: RowT) -> None:
        """Not a running one; maybe in the middle of its prefill."""

    def save(self, row: RowT) -> bool:
        """Swap to host memory, out of the batch; False where that fails."""

    def fetch(self, row: RowT) -> None:
        """Start copying a KV cache back, beside steps."""

    def unreported(self, rows: Sequence[RowT]) -> Sequence[RowUpdate]: ...

    def launch_chunk(self, rows: Sequence[RowT]) -> StepStats:
        """Of the group under way, or of a new group of these rows; a failed group is gone."""

    def chunk_done(self) -> bool:
        """Collecting would not block."""

    def collect_chunk(self) -> StepOutcome[RowT]:
        """Returns rows with complete prefill and first tokens; a failed group is gone."""

    def settle(self) -> StepOutcome[RowT]:
        """Finish a step that was launched ahead."""

    def enter(self, rows: Sequence[RowT]) -> StepOutcome[RowT]:
        """All tokens in one step (Baton's shape)."""

    def step(self, iterations: int) -> StepOutcome[RowT]: ...
