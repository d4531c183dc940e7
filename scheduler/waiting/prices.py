"""Prices of rows: the time of the device that each takes away from all others. It knows no queue and no clock.

A row is charged for its prompt, for its part of every iteration, and for the cells of K and V that these read. What
an iteration costs whatever runs (d4) is shared out to the rows: evenly where slots are what there is too little of, by
cells where memory is. So over all rows it sums up to about the time that the device takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from engine.messages import EVERY_LENGTH
from scheduler.remaining_length import remaining_length
from scheduler.request import Request
from scheduler.serving_time.bilinear import Bilinear
from scheduler.worker import Worker

UNMEASURED = Bilinear(p1=0.125, p2=0.0, p3=0.0, p4=0.0, d1=0.001, d2=0.25, d3=0.0, d4=12.0)
"""A machine without a profile, in units of one token of one of 16 rows without context: a token of a prompt costs an
eighth of that, and reading a thousand cells as much again. LLaMA2-13B on an A100 and SmolLM2-135M on two CPU cores are
both of about this shape, and no decision depends on the unit."""

COPY_SHARE = 0.4
"""Moving a token's K and V to host memory and back, as a share of reading the token anew: twice 0.8 MB at 25 GB/s
against 2.6e10 operations at 1.6e14 a second, for LLaMA2-13B on an A100. For devices whose copies were not measured."""

ENOUGH = 0.98
"""Share that is enough of the tokens a second that a device makes with all slots taken."""

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
    copy: float = 0.0
    """Price of a token of K and V that goes to host memory and comes back."""
    row_copy: float = 0.0
    """Price of a row whose K and V go to host memory and come back, whatever its length."""
    keep_kv: range = EVERY_LENGTH
    """Tokens of rows whose K and V are kept in host memory; all tokens of other rows are read again."""
    model: Bilinear = UNMEASURED
    """Model of serving time that the prices come from."""

    def work(self, request: Request) -> float:
        """Price of all that a request has still to do, in a batch no longer than itself. K and V that a row brings back
        from host memory are free."""
        left = remaining_length(request)
        read = self._read(request) if request.needs_prefill else 0.0
        return read + left * (self.token + self.cell * (request.tokens + left / 2))

    def padded_work(self, request: Request, worker: Worker) -> float:
        """Price of a request beside an executor's rows: with the padding that it or they read.

        All rows of a batch grow by a column an iteration, so while they run their lengths differ by as much as now.
        """
        left, padding = max(1, round(remaining_length(request))), worker.columns - request.tokens
        return self.work(request) + self.cell * left * (padding if padding >= 0 else -padding * worker.rows)

    def swap_iterations(self, row: Request) -> float:
        """Iterations that take as long as copying a row's K and V out and in again, or as reading the row again where
        they are not kept."""
        kept = row.tokens in self.keep_kv
        back = self.copy * row.tokens + self.row_copy if kept else self._read(row)
        return back / (self.token + self.cell * row.tokens)

    def _read(self, request: Request) -> float:
        """Price of prefilling what is not kept of a request's tokens."""
        return self.entry + self.prompt * request.unread


def device_prices(
    profile: Bilinear | None = None,
    slots: int | None = None,
    capacity_tokens: int | None = None,
    context_length: int | None = None,
    keep_kv: range = EVERY_LENGTH,
) -> Prices:
    """The prices of a device of such a profile and size, as far as they are known; rows are taken to be half as long as
    they may become."""
    model = UNMEASURED if profile is None else profile
    slots = slots or SLOTS
    usual = (context_length or 0) / 2
    rows = float(slots) if capacity_tokens is None or not usual else min(slots, max(1.0, capacity_tokens / usual))
    by_cells = capacity_tokens is not None and slots * usual > capacity_tokens
    prompt = model.p1 + model.p3
    return Prices(
        prompt=prompt,
        entry=model.p2 + model.p4,
        token=model.d2 + (0.0 if by_cells else model.d4 / rows),
        cell=model.d1 + model.d3 / rows + (model.d4 / capacity_tokens if by_cells and capacity_tokens else 0.0),
        copy=model.c1 if model.knows_copies else COPY_SHARE * prompt,
        row_copy=model.c0,
        keep_kv=keep_kv,
        model=model,
    )


def enough_rows(profile: Bilinear, columns: float, slots: int) -> int:
    """The fewest rows of so many columns with which a device makes `ENOUGH` of the tokens that it makes with all slots.

    Where iterations take longer with every row, the last rows make each other slow and hardly add anything: with an
    iteration of a + b·N seconds, N rows make N / (a + b·N) tokens a second.
    """
    fixed, each = profile.d4 + profile.d3 * columns, profile.d2 + profile.d1 * columns
    if fixed + each == 0:
        return slots
    return max(1, min(slots, ceil(ENOUGH * slots * fixed / (fixed + (1 - ENOUGH) * slots * each))))
