"""Messages to a dashboard as they go over the wire: short arrays, so that ten a second cost next to nothing.

docs/observability.md explains the fields. Times are seconds since the server was ready. No prompts, no answers.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from scheduler.wait_estimate.completion import Comparison


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


class Row(msgspec.Struct, frozen=True, array_like=True):
    """A row on its lane."""

    lane: int
    row: int
    stage: Stage
    input: int
    generated: int
    predicted: int | None


class Change(msgspec.Struct, frozen=True, array_like=True):
    """A row's stage from this moment on."""

    at: float
    executor: int
    lane: int
    row: int
    stage: Stage


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A row's time in one stage, before the page was opened."""

    executor: int
    lane: int
    row: int
    stage: Stage
    begin: float
    end: float | None
    """None while it lasts."""
    input: int
    generated: int
    predicted: int | None
    own: tuple[float, float]
    """Part of the columns that the row read for itself, at the begin and at the end."""


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


class Device(msgspec.Struct, frozen=True):
    """An executor, as it was at the start."""

    index: int
    device: str
    max_rows: int
    capacity_tokens: int


class ExecutorNow(msgspec.Struct, frozen=True):
    """An executor, as it is."""

    index: int
    alive: bool
    rows: list[Row]
    batch: int
    """Rows of the batch, those that have ended included."""
    staged: int
    window: int
    """Columns that each step reads for every row."""
    columns: int
    capacity: int
    step_ms: float


class Totals(msgspec.Struct, frozen=True):
    """Tokens and cells since the feed began, and requests; only differences mean anything."""

    prompt: int
    generated: int
    pad: int
    """Cells of prefills that held no token of their row."""
    reads: int
    """Cells of K and V that decode steps read."""
    pad_reads: int
    """Cells among `reads` that held no token of their row."""
    invalid_reads: int
    """Cells among `reads` that were read for rows that had ended."""
    cached: int
    """Prompt tokens that were kept from earlier prompts."""
    ended: int
    failed: int


class Client(msgspec.Struct, frozen=True, array_like=True):
    """A client, among whom service is shared out."""

    name: str
    """A key's name, or a hash of what it calls itself; empty where nothing tells clients apart."""
    waiting: int
    running: int
    service: int
    """Weighted tokens since the feed began; only differences mean anything."""


class Tick(msgspec.Struct, frozen=True):
    """The server at one moment, and what happened since the tick before."""

    t: float
    executors: list[ExecutorNow]
    changes: list[Change]
    queue: list[Waiter]
    """What executors have and have not begun, then the first that wait, in the order in which they are served."""
    waiting: int
    """Requests in the queue, and those that an executor has not begun."""
    running: int
    """Requests that an executor has begun."""
    totals: Totals
    ended: list[Ended]
    first_tokens: list[FirstToken]
    clients: list[Client]
    """The clients that were served most; empty while there is only one."""
    order: Comparison
    """Latencies since the start, beside those by order of arrival."""


class Moment(msgspec.Struct, frozen=True):
    """Requests and totals at one moment before the page was opened."""

    t: float
    waiting: int
    running: int
    totals: Totals


class Hello(msgspec.Struct, frozen=True):
    """Facts that do not change, and recent events: the first message to a dashboard."""

    name: str
    version: str
    model: str
    strategy: str
    context_length: int
    devices: list[Device]
    ended: list[Ended]
    first_tokens: list[FirstToken]
    t: float
    """The moment at which this was sent; changes up to it are in `spans`."""
    spans: list[Span]
    """The stages of all rows in the last five minutes."""
    moments: list[Moment]
    """The last minute, a second apart where something happened."""


def rounded(length: float | None) -> int | None:
    """A predicted length in whole tokens."""
    return None if length is None else round(length)
