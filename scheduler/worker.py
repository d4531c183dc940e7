"""Executors as policies see them."""

from dataclasses import dataclass, field
from typing import Protocol

from engine.messages import Admit, BatchShape, Cancel, Command, ExecutorInfo, RowId
from scheduler.plan import Assignment
from scheduler.request import BACKGROUND, Request


class Port(Protocol):
    @property
    def info(self) -> ExecutorInfo: ...

    @property
    def alive(self) -> bool: ...

    def post(self, command: Command) -> None: ...

    def reclaim(self) -> tuple[Command, ...]:
        """Not carried out by a lost executor."""


@dataclass(eq=False, slots=True)
class Worker:
    """Changed by the dispatcher only."""

    port: Port
    requests: dict[RowId, Request] = field(default_factory=dict)
    assignments: dict[RowId, Assignment] = field(default_factory=dict)
    plans: int = 0
    shape: BatchShape = field(default_factory=BatchShape)
    pausing: set[RowId] = field(default_factory=set)  # asked to hand back
    lost: bool = False
    fault: str | None = None
    index: int = field(init=False)

    def __post_init__(self) -> None:
        self.index = self.port.info.index

    def reclaim(self) -> tuple[set[RowId], list[RowId]]:
        """Rows to begin and cancel."""
        commands = self.port.reclaim()
        begun = {spec.row_id for one in commands if isinstance(one, Admit) for spec in one.rows}
        return begun, [row_id for one in commands if isinstance(one, Cancel) for row_id in one.row_ids]

    @property
    def info(self) -> ExecutorInfo:
        return self.port.info

    @property
    def capacity_tokens(self) -> int:
        """Shrinks after out of memory."""
        return self.shape.capacity_tokens or self.info.capacity_tokens

    @property
    def serves(self) -> bool:
        return self.port.alive and not self.lost and self.fault is None

    @property
    def used_tokens(self) -> int:
        """Padding included."""
        return self.shape.rows * (self.shape.end - self.shape.start)

    @property
    def rows(self) -> int:
        return len(self.requests)

    @property
    def others(self) -> list[Request]:
        return [request for request in self.requests.values() if request.priority < BACKGROUND]

    @property
    def load(self) -> float:
        """Predicted seconds (SCLS, 4.5)."""
        return sum({id(one): one.plan.estimate for one in self.assignments.values()}.values())
