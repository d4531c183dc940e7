"""An executor as the scheduler sees it: what it can hold, and which requests it was given and has not ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from engine.messages import BatchShape, Command, ExecutorInfo, RowId
from scheduler.plan import Assignment
from scheduler.request import Request


class Port(Protocol):
    """The way to an executor; a real one, a simulated one, or a test's."""

    @property
    def info(self) -> ExecutorInfo: ...

    @property
    def alive(self) -> bool: ...

    def post(self, command: Command) -> None: ...

    def withdraw(self) -> tuple[Command, ...]:
        """Take back the commands that a lost executor has not taken up."""
        ...


@dataclass(eq=False, slots=True)
class Worker:
    """An executor and the requests on it. Only the dispatcher changes it; policies read it."""

    port: Port
    requests: dict[RowId, Request] = field(default_factory=dict)
    assignments: dict[RowId, Assignment] = field(default_factory=dict)
    """The plan that each of those requests came with."""
    plans: int = 0
    """Plans that it was given since the start."""
    shape: BatchShape = field(default_factory=BatchShape)
    """Shape of the executor's batch as of the last report."""
    pausing: set[RowId] = field(default_factory=set)
    """Rows that it was asked to hand back and has not."""
    lost: bool = False
    """Whether it died or was given up, so that its requests must go elsewhere."""
    fault: str | None = None
    """Why it takes no rows for a while; None while it does."""

    @property
    def info(self) -> ExecutorInfo:
        return self.port.info

    @property
    def capacity_tokens(self) -> int:
        """Tokens of K and V that it can hold; less than at start once it ran out of memory."""
        return self.shape.capacity_tokens or self.info.capacity_tokens

    @property
    def serves(self) -> bool:
        """Whether it takes rows."""
        return self.port.alive and not self.lost and self.fault is None

    @property
    def used_tokens(self) -> int:
        """Cells of K and V that its batch takes, padding included."""
        return self.shape.rows * (self.shape.end - self.shape.start)

    @property
    def rows(self) -> int:
        """Number of requests that it holds, in whatever stage."""
        return len(self.requests)

    @property
    def others(self) -> list[Request]:
        """Requests that it holds and that are not in the background."""
        return [request for request in self.requests.values() if not request.in_background]

    @property
    def busy(self) -> bool:
        """Whether it has rows that run, or wait to run."""
        return bool(self.requests)

    @property
    def load(self) -> float:
        """Predicted seconds of serving time of its unfinished plans (SCLS, section 4.5), summed anew each time, so that
        no wrong estimate leaves a rest behind.
        """
        return sum({id(one): one.plan.estimate for one in self.assignments.values()}.values())

    @property
    def columns(self) -> int:
        """Length in tokens of its longest row."""
        return max((request.tokens for request in self.requests.values()), default=0)
