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

UNMEASURED = Bilinear(p1=0.125, p2=0.0, p3=0.0, p4=0.0, d1=0.001, d2=0.25, d3=0.0, d4=12.0)
"""A machine without a profile, in units of one token of one of 16 rows without context: a token of a prompt costs an
eighth of that, and reading a thousand cells as much again. LLaMA2-13B on an A100 and SmolLM2-135M on two CPU cores are
both of about this shape, and the default's decisions do not depend on the unit."""

UNMEASURED_UNIT = 0.02 / 16
"""Seconds of that unit where an iteration takes what SSJF's simulator has it take."""

SLOTS = 16
"""Rows at a time where their number is not known."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of rows, in seconds where it was profiled, else in units of `UNMEASURED`."""

    prompt: float
    """Price of a prompt's token."""
    entry: float
    """Price of a prompt, whatever its length."""
    token: float
    """Price of a generated token, whatever its context."""
    cell: float
    """Price of a cell of K and V that an iteration reads."""
    unit: float = 1.0
    """Seconds of a unit, which without a profile is a guess, for those who must compare it with a clock."""

    def work(self, request: Request) -> float:
        """Price of all that a request has still to do, in a batch no longer than itself. K and V that a row brings back
        from host memory are free."""
        return self.work_left(request, remaining_length(request))

    def work_left(self, request: Request, left: Quantity) -> Quantity:
        """Price of all that a request has still to do if it generates so many tokens more."""
        read = self._read(request) if request.needs_prefill else 0.0
        return read + left * (self.token + self.cell * (request.tokens + left / 2))

    def attained(self, request: Request) -> float:
        """Price of what a request has had; its prompt counts also before it is read."""
        generated = request.generated
        read = self.entry + self.prompt * request.input_length
        return read + generated * (self.token + self.cell * (request.input_length + generated / 2))

    def _read(self, request: Request) -> float:
        """Price of prefilling what is not kept of a request's tokens."""
        return self.entry + self.prompt * request.unread


KnownPrices: TypeAlias = Callable[[], Prices]
"""The prices by the machine's present model, which is learned while it serves."""


def device_prices(
    profile: Bilinear | None = None,
    slots: int | None = None,
    capacity_tokens: int | None = None,
    context_length: int | None = None,
) -> Prices:
    """The prices of a device of such a profile and size, as far as they are known; rows are taken to be half as long as
    they may become."""
    model = UNMEASURED if profile is None else profile
    slots = slots or SLOTS
    usual = (context_length or 0) / 2
    rows = float(slots) if capacity_tokens is None or not usual else min(slots, max(1.0, capacity_tokens / usual))
    by_cells = capacity_tokens is not None and slots * usual > capacity_tokens
    return Prices(
        prompt=model.p1 + model.p3,
        entry=model.p2 + model.p4,
        token=model.d2 + (0.0 if by_cells else model.d4 / rows),
        cell=model.d1 + model.d3 / rows + (model.d4 / capacity_tokens if by_cells and capacity_tokens else 0.0),
        unit=UNMEASURED_UNIT if profile is None else 1.0,
    )
