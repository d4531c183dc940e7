"""Prices of rows: the device time that each takes from the others.

A row pays for its prompt, its part of each iteration, and the KV cells read. The fixed cost of an iteration (d4) is
shared evenly where slots are scarce, by cells where memory is, so that prices sum to about the device's time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from scheduler.remaining_length import remaining_length
from scheduler.request import Request
from scheduler.serving_time.bilinear import Bilinear, Quantity
from scheduler.serving_time.machine import UNMEASURED_ITERATION

SLOTS = 16  # rows at a time where unknown


@dataclass(frozen=True, slots=True)
class Prices:
    """In tokens of a row of usual length with all slots taken, so that work stays comparable as the machine's speed is
    learned.

    While nothing is known a request costs the tokens it has still to generate.
    """

    prompt: float  # a prompt token
    entry: float  # any prompt
    token: float  # a generated token
    cell: float  # a KV cell read by an iteration
    square: float = 0.0  # a prompt's tokens squared: each reads all before it
    unit: float = 1.0  # seconds of the device for a price of 1; a guess while unknown
    iteration: float = 0.0  # fixed seconds of an iteration

    def work(self, request: Request) -> float:
        """Price of all that is left, in a batch no longer than itself. KV caches from host memory are free."""
        return self.work_left(request, remaining_length(request))

    def work_left(self, request: Request, left: Quantity) -> Quantity:
        """Price of what is left if `left` more tokens are generated."""
        tokens = request.tokens
        return self.price(tokens - request.cached_prompt if request.needs_prefill else 0, tokens, left)

    def price(self, unread: int, tokens: int, left: Quantity) -> Quantity:
        """Price of reading `unread` tokens and generating `left`."""
        return (self._read(unread) if unread else 0.0) + left * (self.token + self.cell * (tokens + left / 2))

    def seconds_per_token(self, rows: float, slots: float, context: float) -> float:
        """Seconds between two tokens of each of `rows` rows as long as this."""
        return self.iteration * (1 - rows / slots) + rows * self.unit * (self.token + self.cell * context)

    def attained(self, request: Request) -> float:
        """Price of what a request has had, its prompt always included."""
        return self.price(request.input_length, request.input_length, float(request.generated))

    def _read(self, tokens: int) -> float:
        """Price of prefilling `tokens` of a row."""
        return self.entry + (self.prompt + self.square * tokens) * tokens


PricesNow: TypeAlias = Callable[[], Prices]  # learned while serving, hence asked for


def usual_rows(slots: int | None, capacity_tokens: int | None, context_length: int | None) -> float:
    """Rows that fit if half as long as they may become."""
    slots, usual = slots or SLOTS, (context_length or 0) / 2
    return float(slots) if capacity_tokens is None or not usual else min(slots, max(1.0, capacity_tokens / usual))


@lru_cache(maxsize=8)
def device_prices(
    model: Bilinear | None = None,
    slots: int | None = None,
    capacity_tokens: int | None = None,
    context_length: int | None = None,
) -> Prices:
    """Prices as far as they are known, for rows half as long as they may become."""
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
