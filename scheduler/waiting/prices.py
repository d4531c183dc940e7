"""Prices: device time taken from others, for prompt, iterations, and KV cells; fixed costs (d4) are shared by slots or
cells.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from scheduler.remaining_length import remaining_length
from scheduler.request import Request
from scheduler.serving_time.bilinear import Bilinear, Quantity
from scheduler.serving_time.machine import UNMEASURED_ITERATION

SLOTS = 16  # if unknown


@dataclass(frozen=True, slots=True)
class Prices:
    """In tokens of a usual row with full slots; while unknown, of the tokens to generate."""

    prompt: float  # a token
    entry: float  # a prompt
    token: float
    cell: float  # read
    square: float = 0.0  # attention
    unit: float = 1.0  # seconds
    fixed_seconds: float = 0.0  # of an iteration
    fixed_cells: int | None = None  # that share it; None where slots do

    def work(self, request: Request) -> float:
        return self.work_left(request, remaining_length(request))

    def work_left(self, request: Request, left: Quantity) -> Quantity:
        return self.price(request.unread, request.tokens, left)

    def price(self, unread: float, tokens: float, left: Quantity) -> Quantity:
        read = self.entry + (self.prompt + self.square * unread) * unread if unread else 0.0
        return read + left * (self.token + self.cell * (tokens + left / 2))

    def seconds_per_token(self, rows: float, slots: float, context: float) -> float:
        """With `rows` rows alike."""
        paid = rows / slots if self.fixed_cells is None else rows * context / self.fixed_cells
        return self.fixed_seconds * max(0.0, 1 - paid) + rows * self.unit * (self.token + self.cell * context)

    def attained(self, request: Request) -> float:
        """Prompt included."""
        return self.price(request.input_length, request.input_length, float(request.generated))

    def read_work(self, tokens: int, prompts: int = 1) -> float:
        """Of prompts alike."""
        return self.entry * prompts + (self.prompt + self.square * tokens / max(1, prompts)) * tokens if tokens else 0.0


PricesNow: TypeAlias = Callable[[], Prices]  # learned, hence called


def usual_rows(slots: int | None, capacity_tokens: int | None, context_length: int | None) -> float:
    slots, usual = slots or SLOTS, (context_length or 0) / 2
    return float(slots) if capacity_tokens is None or not usual else min(slots, max(1.0, capacity_tokens / usual))


@lru_cache(maxsize=8)
def device_prices(
    model: Bilinear | None = None,
    slots: int | None = None,
    capacity_tokens: int | None = None,
    context_length: int | None = None,
) -> Prices:
    """At half the longest length."""
    slots, usual = slots or SLOTS, (context_length or 0) / 2
    rows = usual_rows(slots, capacity_tokens, context_length)
    if model is None:
        return Prices(prompt=0.0, entry=0.0, token=1.0, cell=0.0, unit=UNMEASURED_ITERATION / rows)
    by_cells = capacity_tokens is not None and slots * usual > capacity_tokens
    token = model.d2 + (0.0 if by_cells else model.d4 / rows)
    cell = model.d1 + model.d3 / rows + (model.d4 / capacity_tokens if by_cells and capacity_tokens else 0.0)
    unit = token + cell * usual or 1.0
    read = (model.p1 + model.p3) / unit, (model.p2 + model.p4) / unit
    sharing = capacity_tokens if by_cells else None
    return Prices(*read, token / unit, cell / unit, model.p5 / unit, unit, model.d4, sharing)
