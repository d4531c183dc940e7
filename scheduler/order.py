"""Who comes first: pure functions from a request and the time to a key; the least key is served first.

Every key begins with the client's `priority` (lower is earlier) and ends with the row's number, so that no two
requests tie and equal requests keep their order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from scheduler.request import Request

Key: TypeAlias = tuple[float, ...]
Order: TypeAlias = Callable[[Request, float], Key]
"""(request, now in seconds) -> key."""


def fcfs(request: Request, now: float) -> Key:
    """First come, first served."""
    return (request.priority, request.times.arrival, request.row_id)


ORDERS: Mapping[str, Order] = MappingProxyType({"fcfs": fcfs})
