"""Which requests are worth a place beside the rows that run. It knows no queue and no clock.

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

from scheduler.remaining_length import remaining_length
from scheduler.request import Request
from scheduler.serving_time.bilinear import Bilinear
from scheduler.worker import Worker

WORTH = 0.7
"""Found by simulation (docs/research/lengthwise-strategy.md): larger means a shorter mean and a longer tail."""


def worth_joining(requests: Iterable[Request], worker: Worker, model: Bilinear) -> Iterator[Request]:
    """The requests, in their order, that are worth a place beside an executor's rows and those chosen before them."""
    rows, columns = worker.rows, worker.columns
    completed = sum(_completed(row) for row in worker.requests.values())
    for request in requests:
        more, wider = _completed(request), max(columns, request.tokens)
        alone, joined = model.iteration(rows, columns), model.iteration(rows + 1, wider)
        if not rows or more * alone >= WORTH * (joined - alone) * completed:
            yield request
            rows, columns, completed = rows + 1, wider, completed + more


def _completed(row: Request) -> float:
    """Requests like this row that a slot completes in an iteration; one that outlives its prediction counts longer."""
    return 1 / (row.generated + remaining_length(row))
