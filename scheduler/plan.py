"""Plans (requests for one executor), assignments (plans under way), their observers, and executors as policies see
them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from engine.messages import Admit, BatchShape, Cancel, Command, ExecutorInfo, FinishReason, RowId, RowUpdate, Terms
from scheduler.request import Request
from scheduler.stream import join_updates


class Returns(StrEnum):
    """When the clients of a plan see their answers."""

    ROW_END = "row end"  # each token as it is made
    BATCH_END = "batch end"  # all answers when the batch ends, as static batching has it


@dataclass(frozen=True, slots=True)
class Plan:
    """Requests for one executor."""

    requests: tuple[Request, ...]
    terms: Terms = Terms()
    returns: Returns = Returns.ROW_END
    estimate: float = 0.0  # predicted serving time, seconds; 0 if unpredicted

    @property
    def command(self) -> Admit:
        return Admit(tuple(request.spec for request in self.requests), self.terms)


@dataclass(eq=False, slots=True)
class Assignment:
    """A plan on an executor, changed by the request table only; over when no row is open."""

    plan: Plan
    executor: int
    sent: float  # seconds of the dispatcher's clock
    began: float | None = None  # first row begun
    ended: float | None = None  # last row ended or left
    intact: bool = True  # False once a row is cancelled, fails, or is handed back for lack of room
    input_length: int = field(init=False)  # L(B) when sent: tokens of the longest row
    before: dict[Request, int] = field(init=False)  # tokens generated before
    open: set[Request] = field(default_factory=set)  # rows neither ended nor handed back
    # answers that return when the batch ends, merged by request
    held: dict[Request, RowUpdate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.open.update(self.plan.requests)
        self.input_length = max((request.tokens for request in self.plan.requests), default=0)
        self.before = {request: request.generated for request in self.plan.requests}

    @property
    def iterations(self) -> int:
        """G(B): most tokens generated here by a row."""
        return max((request.generated - before for request, before in self.before.items()), default=0)

    @property
    def seconds(self) -> float | None:
        """Serving time; None when it did not run as planned, or is unknown."""
        if not self.intact or self.began is None or self.ended is None:
            return None
        return self.ended - self.began

    def hold(self, request: Request, update: RowUpdate) -> None:
        """Keep an update until the batch ends."""
        earlier = self.held.get(request)
        self.held[request] = update if earlier is None else join_updates((earlier, update))


class RequestObserver(Protocol):
    """Called on the event loop; must neither take long nor raise."""

    def on_first_token(self, request: Request, now: float) -> None:
        """At `request.times.first_token`."""

    def on_end(self, request: Request, reason: FinishReason | None, now: float) -> None:
        """At `request.times.end`, once; the reason is None when cancelled."""


class PlanObserver(Protocol):
    """Called on the event loop; must not take long."""

    def on_finish(self, assignment: Assignment, now: float) -> None:
        """At `assignment.ended`."""


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
        return [request for request in self.requests.values() if not request.in_background]

    @property
    def load(self) -> float:
        """Predicted seconds of unfinished plans (SCLS, 4.5), summed each time, so that errors do not accumulate."""
        return sum({id(one): one.plan.estimate for one in self.assignments.values()}.values())
