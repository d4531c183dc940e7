"""Executors as policies see them: capacity, and the requests each was given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from engine.messages import Admit, BatchShape, Cancel, Command, ExecutorInfo, RowId
from scheduler.plan import Assignment
from scheduler.request import BACKGROUND, Request


class Port(Protocol):
    """The way to an executor, real or simulated."""

    @property
    def info(self) -> ExecutorInfo: ...

    @property
    def alive(self) -> bool: ...

    def post(self, command: Command) -> None: ...

    def withdraw(self) -> tuple[Command, ...]:
        """Take back commands that a lost executor has not carried out."""


@dataclass(eq=False, slots=True)
class Worker:
    """An executor and its requests. Changed by the dispatcher only."""

    port: Port
    requests: dict[RowId, Request] = field(default_factory=dict)
    assignments: dict[RowId, Assignment] = field(default_factory=dict)  # by row
    plans: int = 0  # given since the start
    shape: BatchShape = field(default_factory=BatchShape)  # as last reported
    pausing: set[RowId] = field(default_factory=set)  # asked to hand back and not yet back
    lost: bool = False  # died or was given up
    fault: str | None = None  # why it takes no rows for a while
    index: int = field(init=False)  # of its executor

    def __post_init__(self) -> None:
        self.index = self.port.info.index

    def withdraw(self) -> tuple[set[RowId], list[RowId]]:
        """What a lost executor has not carried out: rows to begin and rows to cancel."""
        commands = self.port.withdraw()
        begun = {spec.row_id for one in commands if isinstance(one, Admit) for spec in one.rows}
        return begun, [row_id for one in commands if isinstance(one, Cancel) for row_id in one.row_ids]

    @property
    def info(self) -> ExecutorInfo:
        return self.port.info

    @property
    def capacity_tokens(self) -> int:
        """KV tokens, less than at start after running out of memory."""
        return self.shape.capacity_tokens or self.info.capacity_tokens

    @property
    def serves(self) -> bool:
        """Whether it takes rows."""
        return self.port.alive and not self.lost and self.fault is None

    @property
    def used_tokens(self) -> int:
        """KV cells of its batch, padding included."""
        return self.shape.rows * (self.shape.end - self.shape.start)

    @property
    def rows(self) -> int:
        """Requests that it holds in any stage."""
        return len(self.requests)

    @property
    def others(self) -> list[Request]:
        """Requests but for background ones."""
        return [request for request in self.requests.values() if request.priority < BACKGROUND]

    @property
    def load(self) -> float:
        """Predicted seconds of unfinished plans (SCLS, 4.5), summed each time, so that errors do not accumulate."""
        return sum({id(one): one.plan.estimate for one in self.assignments.values()}.values())
