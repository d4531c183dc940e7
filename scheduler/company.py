"""Which requests are worth a place beside the rows that run. Knows no queue and no clock.

An executor whose rows are expected to run E_i more iterations of τ seconds completes Σ 1/E_i requests in each. One more
row of E iterations adds 1/E to the sum, and makes iterations Δτ longer for all: by its own cells, and by the padding of
all others if it is longer than they are. It joins if

    τ/E  >=  WORTH·Δτ·Σ 1/E_i

With WORTH = 1 that would be whenever more requests are completed in a second with it than without. So a long row does
not slow many short ones, and leaves its place to those that come meanwhile; it joins others of its kind, or few. Rows
that are alike always join, since Δτ is τ/N at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from scheduler.bilinear import Bilinear
from scheduler.remaining import expected_remaining
from scheduler.request import Request
from scheduler.worker import Worker

WORTH = 0.5
"""Found by simulation (docs/lengthwise-strategy.md): with more the long wait too long."""


def worth_joining(requests: Iterable[Request], worker: Worker, model: Bilinear) -> Iterator[Request]:
    """Those that are, beside the rows of an executor and those before them; in their order."""
    rows, columns = worker.rows, worker.columns
    completed = sum(1 / expected_remaining(row) for row in worker.requests.values())
    for request in requests:
        share, wider = 1 / expected_remaining(request), max(columns, request.kv_length)
        alone, joined = model.iteration(rows, columns), model.iteration(rows + 1, wider)
        if not rows or share * alone >= WORTH * (joined - alone) * completed:
            yield request
            rows, columns, completed = rows + 1, wider, completed + share
