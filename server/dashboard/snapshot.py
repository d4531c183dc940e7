"""Dashboard messages as short arrays (docs/observability.md); times are seconds since the server was ready."""

from dataclasses import dataclass
from enum import IntEnum

import msgspec

from engine.messages import ExecutorInfo, StepStats
from scheduler.wait_estimate.by_arrival import ArrivalComparison


class Stage(IntEnum):
    """Sent as numbers."""

    GONE = 0
    PREFILL = 1
    STAGED = 2  # prefilled, waiting for a slot
    DECODE = 3  # in the batch
    PAUSED = 4  # swapped to host
    INVALID = 5  # ended, but in its slot


class ShownRow(msgspec.Struct, frozen=True, array_like=True):
    lane: int
    row: int
    stage: Stage
    input: int
    generated: int
    predicted: int | None


class Change(msgspec.Struct, frozen=True, array_like=True):
    at: float
    executor: int
    lane: int
    row: int
    stage: Stage
    input: int
    generated: int
    predicted: int | None
    own: float  # share of its columns that are not padding


class Waiter(msgspec.Struct, frozen=True, array_like=True):
    """In the queue, or not begun by its executor."""

    row: int
    input: int
    generated: int  # above 0 if handed back
    predicted: int | None
    waited: float
    expected: float | None  # seconds; None if unknown
    priority: int
    executor: int | None  # None in the queue


class Ended(msgspec.Struct, frozen=True, array_like=True):
    at: float
    input: int
    generated: int
    predicted: int | None  # also None for truncated answers and predictions of max_tokens
    queued: float | None
    first: float | None  # seconds to first token
    latency: float
    inside: bool | None  # of the 90 % interval
    kept: bool | None  # its promise; None without


class FirstToken(msgspec.Struct, frozen=True, array_like=True):
    at: float
    seconds: float  # after arrival


class ExecutorNow(msgspec.Struct, frozen=True):
    index: int
    alive: bool
    rows: list[ShownRow]
    batch: int  # ended rows included
    staged: int
    window: int  # columns read for every row
    columns: int
    capacity: int
    step_ms: float


@dataclass(frozen=True, slots=True)
class Totals(StepStats):
    """Since the feed began; only differences count."""

    ended: int = 0
    failed: int = 0


class ShownClient(msgspec.Struct, frozen=True, array_like=True):
    name: str  # key's name or hash; may be empty
    waiting: int
    running: int
    service: int  # weighted tokens since the feed began


class Moment(msgspec.Struct, frozen=True):
    t: float
    waiting: int  # or not begun
    running: int  # begun
    totals: Totals


class Tick(Moment, frozen=True):
    executors: list[ExecutorNow]
    changes: list[Change]
    queue: list[Waiter]  # in serving order
    ended: list[Ended]
    first_tokens: list[FirstToken]
    clients: list[ShownClient]  # most served; empty for a single one
    order: ArrivalComparison | None  # beside order of arrival


class Hello(msgspec.Struct, frozen=True):
    """First message: constants and recent events."""

    name: str
    version: str
    model: str
    strategy: str
    context_length: int
    devices: list[ExecutorInfo]
    ended: list[Ended]
    first_tokens: list[FirstToken]
    t: float  # when sent
    changes: list[Change]  # five minutes, and the latest before of each lane
    moments: list[Moment]  # last minute


def rounded(length: float | None) -> int | None:
    return None if length is None else round(length)
