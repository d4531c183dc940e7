"""What a row costs its device: the time that it takes away from all others. Knows no queue and no clock.

A row is charged for its prompt, for its part of every iteration, and for the cells of K and V that these read. What
an iteration costs whatever runs (d4) is shared out to the rows: evenly where slots are what there is too little of, by
cells where memory is. So over all rows it sums up to about the time that the device takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from engine.messages import EVERY_LENGTH
from scheduler.batching.wma import Lengths, wma_gen
from scheduler.remaining_length import expected_remaining
from scheduler.request import Request
from scheduler.serving_time.bilinear import Bilinear
from scheduler.worker import Worker

UNMEASURED = Bilinear(p1=0.125, p2=0.0, p3=0.0, p4=0.0, d1=0.001, d2=0.25, d3=0.0, d4=12.0)
"""A machine that nobody has profiled, in units of one token of one of 16 rows without context: a token of a prompt
costs an eighth of that, and reading a thousand cells as much again. LLaMA2-13B on an A100 and SmolLM2-135M on two CPU
cores are both of about this shape, and nothing that is decided depends on the unit."""

COPY_SHARE = 0.4
"""Moving a token's K and V to host memory and back, as a share of reading the token anew: twice 0.8 MB at 25 GB/s
against 2.6e10 operations at 1.6e14 a second, for LLaMA2-13B on an A100. For devices whose copies nobody measured."""

ENOUGH = 0.98
"""Of the tokens a second that a device makes with all slots taken."""

SLOTS = 16
"""Rows at a time where nobody says."""


@dataclass(frozen=True, slots=True)
class Work:
    """Prices: in seconds where the device was profiled, else in units of `UNMEASURED`."""

    prompt: float
    """Of a token of a prompt."""
    entry: float
    """Of a prompt, whatever its length."""
    token: float
    """Of a generated token, whatever its context."""
    cell: float
    """Of a cell of K and V that an iteration reads."""
    copy: float = 0.0
    """Of a token of K and V that goes to host memory and comes back."""
    row_copy: float = 0.0
    """Of a row whose K and V do, however long it is."""
    keep_kv: range = EVERY_LENGTH
    """Tokens of rows whose K and V do; all tokens of others are read again."""
    model: Bilinear = UNMEASURED
    """Of serving time, which the prices come from."""

    def of(self, request: Request) -> float:
        """All that a request has still to do, in a batch no longer than itself. Nothing is charged for K and V that
        rows which were handed back bring with them."""
        left = expected_remaining(request)
        read = self._reading(request) if request.needs_prefill else 0.0
        return read + left * (self.token + self.cell * (request.kv_length + left / 2))

    def beside(self, request: Request, worker: Worker) -> float:
        """The same beside the rows of an executor: with the padding that it will read, or that they will because of it.

        All rows of a batch grow by a column an iteration, so while they run their lengths differ by what they do now.
        """
        left = max(1, round(expected_remaining(request)))
        row, window = Lengths(request.kv_length, left), Lengths(worker.columns, left)
        pads = wma_gen(row, window) if row.input <= window.input else worker.rows * wma_gen(window, row)
        return self.of(request) + self.cell * pads

    def swap(self, row: Request) -> float:
        """Iterations that could be done in the time that it takes to copy a row's K and V out and in again, or to read
        it again where they are not kept."""
        kept = row.kv_length in self.keep_kv
        back = self.copy * row.kv_length + self.row_copy if kept else self._reading(row)
        return back / (self.token + self.cell * row.kv_length)

    def _reading(self, request: Request) -> float:
        """Of all its tokens."""
        return self.entry + self.prompt * request.kv_length


def work_of(
    profile: Bilinear | None = None,
    slots: int | None = None,
    capacity_tokens: int | None = None,
    context_length: int | None = None,
    keep_kv: range = EVERY_LENGTH,
) -> Work:
    """The prices of a device of such a profile and size, as far as they are known; rows are taken to be half as long as
    they may become."""
    model = UNMEASURED if profile is None else profile
    slots = slots or SLOTS
    usual = (context_length or 0) / 2
    rows = float(slots) if capacity_tokens is None or not usual else min(slots, max(1.0, capacity_tokens / usual))
    by_cells = capacity_tokens is not None and slots * usual > capacity_tokens
    prompt = model.p1 + model.p3
    return Work(
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
