"""Messages to a dashboard as they go over the wire: short arrays, so that ten a second cost next to nothing.

docs/observability.md explains the fields. Times are seconds since the server was ready. No prompts, no answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import msgspec

from engine.messages import ExecutorInfo, Tally
from scheduler.wait_estimate.by_arrival import Comparison


class Stage(IntEnum):
    """The stage that a row is in; the numbers go over the wire."""

    GONE = 0
    PREFILL = 1
    """The prompt is being read."""
    STAGED = 2
    """The prompt is read, and the row waits for a slot."""
    DECODE = 3
    """The row is in the batch, and gets one token a step."""
    PAUSED = 4
    """The row is taken out of the batch to host memory, for a while."""
    INVALID = 5
    """The row has ended but keeps its slot: what is computed for it is of no use."""


class ShownRow(msgspec.Struct, frozen=True, array_like=True):
    """A row on its lane."""

    lane: int
    row: int
    stage: Stage
    input: int
    generated: int
    predicted: int | None


class Change(msgspec.Struct, frozen=True, array_like=True):
    """A row's stage from this moment on, with its lengths at it."""

    at: float
    executor: int
    lane: int
    row: int
    stage: Stage
    input: int
    generated: int
    predicted: int | None
    own: float
    """Part of the columns that the row reads for itself, rather than for padding."""


class Waiter(msgspec.Struct, frozen=True, array_like=True):
    """A request that waits, or that an executor has and has not begun."""

    row: int
    input: int
    generated: int
    """More than 0 when it ran before and was handed back."""
    predicted: int | None
    waited: float
    expected: float | None
    """Seconds that it will still wait; None where they are unknown."""
    priority: int
    executor: int | None
    """The executor that has it; None while it is in the queue."""


class Ended(msgspec.Struct, frozen=True, array_like=True):
    """A request that has ended well."""

    at: float
    input: int
    generated: int
    predicted: int | None
    """None also where the answer tells nothing of the prediction: it was cut, or its prediction was its max_tokens."""
    queued: float | None
    first: float | None
    """Seconds to its first token."""
    latency: float
    inside: bool | None
    """Whether its length was in the interval that was predicted with 90 %; None where there was none."""


class FirstToken(msgspec.Struct, frozen=True, array_like=True):
    """An answer has begun."""

    at: float
    seconds: float
    """Seconds from the arrival of the request."""


class ExecutorNow(msgspec.Struct, frozen=True):
    """An executor, as it is."""

    index: int
    alive: bool
    rows: list[ShownRow]
    batch: int
    """Rows of the batch, those that have ended included."""
    staged: int
    window: int
    """Columns that each step reads for every row."""
    columns: int
    capacity: int
    step_ms: float


@dataclass(frozen=True, slots=True)
class Totals(Tally):
    """Tokens, cells and requests since the feed began; only differences mean anything."""

    ended: int = 0
    failed: int = 0


class ShownClient(msgspec.Struct, frozen=True, array_like=True):
    """A client, among whom service is shared out."""

    name: str
    """A key's name, or a hash of what it calls itself; empty where nothing tells clients apart."""
    waiting: int
    running: int
    service: int
    """Weighted tokens since the feed began; only differences mean anything."""


class Moment(msgspec.Struct, frozen=True):
    """Requests and totals at one moment."""

    t: float
    waiting: int
    """Requests in the queue, and those that an executor has not begun."""
    running: int
    """Requests that an executor has begun."""
    totals: Totals


class Tick(Moment, frozen=True):
    """The server at one moment, and what happened since the tick before."""

    executors: list[ExecutorNow]
    changes: list[Change]
    queue: list[Waiter]
    """What executors have and have not begun, then the first that wait, in the order in which they are served."""
    ended: list[Ended]
    first_tokens: list[FirstToken]
    clients: list[ShownClient]
    """The clients that were served most; empty while there is only one."""
    order: Comparison | None
    """Latencies of the latest answers beside those by order of arrival."""


class Hello(msgspec.Struct, frozen=True):
    """Facts that do not change, and recent events: the first message to a dashboard."""

    name: str
    version: str
    model: str
    strategy: str
    context_length: int
    devices: list[ExecutorInfo]
    ended: list[Ended]
    first_tokens: list[FirstToken]
    t: float
    """The moment at which this was sent; later changes come with ticks."""
    changes: list[Change]
    """The changes of the last five minutes, and before them the latest one of each lane."""
    moments: list[Moment]
    """The last minute, a second apart where something happened."""


def rounded(length: float | None) -> int | None:
    """A predicted length in whole tokens."""
    return None if length is None else round(length)
