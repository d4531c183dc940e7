"""The scheduler's book on one executor: what it can hold, and which requests it was given and has not ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from engine.messages import BatchShape, ExecutorInfo, Order, RowId
from scheduler.request import Request


class Port(Protocol):
    """The way to an executor; a real one, a simulated one, or a test's."""

    @property
    def info(self) -> ExecutorInfo: ...

    @property
    def alive(self) -> bool: ...

    def post(self, order: Order) -> None: ...


@dataclass(eq=False, slots=True)
class Worker:
    """An executor and the requests on it. Only the dispatcher changes it; policies read it."""

    port: Port
    requests: dict[RowId, Request] = field(default_factory=dict)
    shape: BatchShape = field(default_factory=BatchShape)
    """As of the last report."""

    @property
    def info(self) -> ExecutorInfo:
        return self.port.info

    @property
    def capacity_tokens(self) -> int:
        """Tokens of K and V that it can hold; less than at start once it ran out of memory."""
        return self.shape.capacity_tokens or self.info.capacity_tokens

    @property
    def rows(self) -> int:
        """Requests it holds, in whatever stage."""
        return len(self.requests)

    @property
    def columns(self) -> int:
        """Length in tokens of its longest row."""
        return max((request.kv_length for request in self.requests.values()), default=0)
