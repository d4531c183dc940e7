"""Does it fit: pure rules that say whether an executor may be given more rows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType

from scheduler.plan import Worker
from scheduler.remaining_length import remaining_length
from scheduler.request import Request


def whole_length(request: Request) -> int:
    """Tokens that a row has at most when it ends."""
    return request.input_length + request.sampling.max_tokens


@dataclass(frozen=True, slots=True)
class Memory:
    """A rule: whether an executor may be given rows. One row always may, when the executor is idle: that it fits alone
    is for admission to see to."""

    cells: Callable[[Worker, int, int], int] | None = None
    """(worker, rows to add, length of the longest of them in tokens) -> tokens of K and V that it will then hold; None
    where these rows are a batch of their own, which `most` bounds."""
    length: Callable[[Request], int] = operator.attrgetter("tokens")
    """The length that a request counts for: by default the tokens that it has so far."""
    most: Callable[[int, int], int] = operator.floordiv
    """Rows of a batch of its own, by the executor's capacity and the batch's length, both in tokens."""

    def __call__(self, worker: Worker, rows: int, length: int) -> bool:
        """Whether so many more rows may be sent, the longest of them of `length` tokens."""
        if self.cells is None:
            return rows <= max(1, self.most(worker.capacity_tokens, length))
        return worker.rows + rows == 1 or self.cells(worker, rows, length) <= worker.capacity_tokens


def _scale(worker: Worker, rows: int, length: int) -> int:
    return (worker.rows + rows) * (max([length, *(one.tokens for one in worker.requests.values())]) + 1)


def _fixed(worker: Worker, rows: int, length: int) -> int:
    return (worker.rows + rows) * worker.info.context_length


def _whole(worker: Worker, rows: int, length: int) -> int:
    return (worker.rows + rows) * max([length, *map(whole_length, worker.requests.values())])


def predicted_length(request: Request) -> int:
    """Tokens that a row is predicted to have at its end."""
    return request.tokens + ceil(remaining_length(request))


def _peak(worker: Worker, rows: int, length: int) -> int:
    return find_peak(worker.requests.values(), rows, length)


def find_peak(running: Iterable[Request], rows: int, length: int) -> int:
    """Most cells, rows x columns, that running rows ever take beside as many new ones of `length` tokens at their end.

    It is reached when one of the running rows ends: by then those that are left have grown by what that one had left.
    """
    left = sorted(((ceil(remaining_length(one)), one.tokens) for one in running), reverse=True)
    peak, longest = rows * (length + 1), 0
    for place, (more, tokens) in enumerate(left, start=1):
        longest = max(longest, tokens)
        peak = max(peak, (rows + place) * (max(length, longest + more) + 1))
    return peak


def _paged(worker: Worker, rows: int, length: int) -> int:
    return sum(map(predicted_length, worker.requests.values())) + rows * length


def _deepspeed_rows(capacity_tokens: int, length: int) -> int:
    allowed = 12 if length > 1024 else 22 if length > 512 else 28
    return min(allowed, capacity_tokens // length)


MEMORIES: Mapping[str, Memory] = MappingProxyType(
    {
        # Batch-size scaling (Baton, section 4.3): admit what fits now; should rows outgrow the device, the executor
        # takes the worst-ranked ones out to host memory and brings them back later.
        "scale": Memory(_scale),
        # β rows at most, β = ⌊capacity / (longest prompt plus answer)⌋, so that no batch can ever run out of memory
        # (Magnus, section II-B, equation 1, with the executor's real capacity for Θ/Δ).
        "fixed": Memory(_fixed),
        # Room for every row to grow to the longest prompt plus answer that any of them may come to, as iteration-level
        # schedulers reserve it when they know no generation lengths (SCLS, section 3.1).
        "whole": Memory(_whole, length=whole_length),
        # (L + S)·N tokens at most for a batch of its own, asked with L + S: when it ends after S iterations it cannot
        # have more (SCLS, equation 7). What else the executor holds does not count, since such batches run one after
        # another.
        "slice": Memory(),
        # The bound of slices on DeepSpeed, whose memory follows no formula: 12 rows at most where L + S > 1024, 22
        # where it is more than 512, else 28, for LLaMA2-13B on an A100 80 GB and slices of 128 (SCLS, Algorithm 2);
        # and what fits.
        "deepspeed": Memory(most=_deepspeed_rows),
        # N·(L(B) + G'(B)) tokens at most for a batch of its own, asked with L(B) + G'(B): it has no more at its end
        # unless a row outlives its prediction (Magnus, section III-C, equation 5).
        "predicted": Memory(),
        # Room for what running rows are predicted to take at any later time, when each ends as predicted (the Past-
        # Future scheduler, ASPLOS 2025, in this engine's rows x columns). New rows are taken to be as long as at their
        # end at once.
        "peak": Memory(_peak, length=predicted_length),
        # Room for every running row at its predicted end, without padding: for backends that keep K and V in pages, of
        # which none then has to be taken back.
        "paged": Memory(_paged, length=predicted_length),
    }
)
"""The rules by name."""
