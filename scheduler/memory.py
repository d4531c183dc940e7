"""Does it fit: pure functions that say whether an executor may be given more rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from scheduler.worker import Worker

Memory: TypeAlias = Callable[[Worker, int, int], bool]
"""(worker, rows to add, input length of the longest of them) -> whether they may be sent."""


def scale(worker: Worker, rows: int, input_length: int) -> bool:
    """Batch-size scaling (Baton, section 4.2): admit what fits now; should rows outgrow the device, the executor
    takes the worst-ranked ones out to host memory and brings them back later.
    """
    total = worker.rows + rows
    columns = max(worker.columns, input_length) + 1
    return total == 1 or total * columns <= worker.capacity_tokens


MEMORIES: Mapping[str, Memory] = MappingProxyType({"scale": scale})
