"""Prices of rows: the time of the device that each takes away from all others. It knows no queue and no clock.

A row is charged for its prompt, for its part of every iteration, and for the cells of K and V that these read. What
an iteration costs whatever runs (d4) is shared out to the rows: evenly where slots are what there is too little of, by
cells where memory is. So over all rows it sums up to about the time that the device takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from scheduler.remaining_length import remaining_length
from scheduler.request import Request
from scheduler.serving_time.bilinear import Bilinear, Quantity
from scheduler.serving_time.machine import UNMEASURED_ITERATION

SLOTS = 16
"""Rows at a time where their number is not known."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of rows, in tokens: 1 for a generated token of a row of usual length where all slots are taken.

    So work that was reckoned before prices were known, or while the machine was faster, still compares. While nothing
    is known a request costs the tokens that it has still to generate.
    """

    prompt: float
    """Price of a prompt's token."""
    entry: float
    """Price of a prompt, whatever its length."""
    token: float
    """Price of a generated token, whatever its context."""
    cell: float
    """Price of a cell of K and V that an iteration reads."""
    square: float = 0.0
    """Price of a prompt's tokens squared: each reads all before it."""
    unit: float = 1.0
    """Seconds of a device for such a token, for what must be compared with a clock; a guess while nothing is known."""
    iteration: float = 0.0
    """Seconds of an iteration whatever runs, of which the price of a token holds the part of one slot in all."""

    def work(self, request: Request) -> float:
        """Price of all that a request has still to do, in a batch no longer than itself. K and V that a row brings back
        from host memory are free."""
        return self.work_left(request, remaining_length(request))

    def work_left(self, request: Request, left: Quantity) -> Quantity:
        """Price of all that a request has still to do if it generates so many tokens more."""
        tokens = request.tokens
        return self.price(tokens - request.cached_prompt if request.needs_prefill else 0, tokens, left)

    def price(self, unread: int, tokens: int, left: Quantity) -> Quantity:
        """Price of reading `unread` of a row's tokens, and of generating `left` more."""
        return (self._read(unread) if unread else 0.0) + left * (self.token + self.cell * (tokens + left / 2))

    def seconds_per_token(self, rows: float, slots: float, context: float) -> float:
        """Seconds between two tokens of each of so many rows, of so many slots, that are about as long as this."""
        return self.iteration * (1 - rows / slots) + rows * self.unit * (self.token + self.cell * context)

    def attained(self, request: Request) -> float:
        """Price of what a request has had; its prompt counts also before it is read."""
        return self.price(request.input_length, request.input_length, float(request.generated))

    def _read(self, tokens: int) -> float:
        """Price of prefilling so many tokens of a row."""
        return self.entry + (self.prompt + self.square * tokens) * tokens


PricesNow: TypeAlias = Callable[[], Prices]
"""Tells the prices of this moment, since they are learned while requests are served."""


def usual_rows(slots: int | None, capacity_tokens: int | None, context_length: int | None) -> float:
    """Rows that a device of this size runs at a time, if they are half as long as they may become."""
    slots, usual = slots or SLOTS, (context_length or 0) / 2
    return float(slots) if capacity_tokens is None or not usual else min(slots, max(1.0, capacity_tokens / usual))


def device_prices(
    model: Bilinear | None = None,
    slots: int | None = None,
    capacity_tokens: int | None = None,
    context_length: int | None = None,
) -> Prices:
    """The prices of a device of such a model and size, as far as they are known; rows are taken to be half as long as
    they may become."""
    slots, usual = slots or SLOTS, (context_length or 0) / 2
    rows = usual_rows(slots, capacity_tokens, context_length)
    if model is None:
        return Prices(prompt=0.0, entry=0.0, token=1.0, cell=0.0, unit=UNMEASURED_ITERATION / rows)
    by_cells = capacity_tokens is not None and slots * usual > capacity_tokens
    token = model.d2 + (0.0 if by_cells else model.d4 / rows)
    cell = model.d1 + model.d3 / rows + (model.d4 / capacity_tokens if by_cells and capacity_tokens else 0.0)
    unit = token + cell * usual or 1.0
    read = (model.p1 + model.p3) / unit, (model.p2 + model.p4) / unit
    return Prices(*read, token / unit, cell / unit, model.p5 / unit, unit, model.d4)
