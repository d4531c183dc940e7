"""Which requests are worth a place beside the rows that run. Knows no queue and no clock.

A slot whose row is expected to generate G_i tokens, in iterations of τ seconds, completes 1/(G_i·τ) such requests a
second. One more row of G tokens adds 1/G, and makes iterations Δτ longer for all: by its own cells, and by the padding
of all others if it is longer than they are. It joins if

    τ/G  >=  WORTH·Δτ·Σ 1/G_i

With WORTH = 1 that would be whenever more requests are completed in a second with it than without. So a long row does
not slow many short ones, and leaves its place to those that come meanwhile; it joins others of its kind, or few. Rows
that are alike always join, since Δτ is τ/N at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from scheduler.remaining_length import expected_remaining
from scheduler.request import Request
from scheduler.serving_time.bilinear import Bilinear
from scheduler.worker import Worker

WORTH = 0.7
"""Found by simulation (docs/lengthwise-strategy.md): the larger, the shorter the mean and the longer the tail."""


def worth_joining(requests: Iterable[Request], worker: Worker, model: Bilinear) -> Iterator[Request]:
    """Those that are, beside the rows of an executor and those before them; in their order."""
    rows, columns = worker.rows, worker.columns
    completed = sum(_completed(row) for row in worker.requests.values())
    for request in requests:
        more, wider = _completed(request), max(columns, request.kv_length)
        alone, joined = model.iteration(rows, columns), model.iteration(rows + 1, wider)
        if not rows or more * alone >= WORTH * (joined - alone) * completed:
            yield request
            rows, columns, completed = rows + 1, wider, completed + more


def _completed(row: Request) -> float:
    """Requests like it that a slot completes in an iteration; one that outlives its prediction is like longer ones."""
    return 1 / (row.generated + expected_remaining(row))
