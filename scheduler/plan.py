"""Plans: which requests go to one executor together, and how their answers return; assignments: plans under way; and
observers of how requests and plans end: the journal, metrics, and learning; and executors as the scheduler sees them:
what each can hold, and which requests it was given and has not ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from engine.messages import Admit, BatchShape, Cancel, Command, ExecutorInfo, FinishReason, RowId, RowUpdate, Terms
from scheduler.request import Request
from scheduler.stream import join_updates


class Returns(StrEnum):
    """When the clients of a plan get to see their answers."""

    ROW_END = "row end"
    """Clients see each token as it is made."""
    BATCH_END = "batch end"
    """All answers of the batch when its last row has ended, as plain static batching has it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Requests to send to one executor together."""

    requests: tuple[Request, ...]
    terms: Terms = Terms()
    returns: Returns = Returns.ROW_END
    estimate: float = 0.0
    """Predicted serving time in seconds; 0 where it is not predicted."""

    @property
    def command(self) -> Admit:
        """The command that sends the plan to its executor."""
        return Admit(tuple(request.spec for request in self.requests), self.terms)


@dataclass(eq=False, slots=True)
class Assignment:
    """A plan under way on an executor. Only the request table changes it; it is over when no row is open any more."""

    plan: Plan
    executor: int
    sent: float
    """When the plan was sent, in seconds of the dispatcher's clock."""
    began: float | None = None
    """When the executor took up the first of its rows."""
    ended: float | None = None
    """When its last row ended or left."""
    intact: bool = True
    """Whether all its rows ran as planned; False once one is cancelled, fails, or is handed back for lack of room."""
    input_length: int = field(init=False)
    """L(B) when it was sent: tokens of its longest row, with what that had generated before."""
    before: dict[Request, int] = field(init=False)
    """Tokens that each of its requests had generated before."""
    open: set[Request] = field(default_factory=set)
    """Requests whose rows the executor has neither ended nor handed back."""
    held: dict[Request, RowUpdate] = field(default_factory=dict)
    """Answers that return only when the batch ends, all updates of a request merged into one."""

    def __post_init__(self) -> None:
        self.open.update(self.plan.requests)
        self.input_length = max((request.tokens for request in self.plan.requests), default=0)
        self.before = {request: request.generated for request in self.plan.requests}

    @property
    def iterations(self) -> int:
        """G(B): tokens that the longest of its rows has generated here."""
        return max((request.generated - before for request, before in self.before.items()), default=0)

    @property
    def seconds(self) -> float | None:
        """Serving time in seconds; None when the batch did not run as planned, or its begin or end is unknown."""
        if not self.intact or self.began is None or self.ended is None:
            return None
        return self.ended - self.began

    def hold(self, request: Request, update: RowUpdate) -> None:
        """Keep an update until the batch ends."""
        earlier = self.held.get(request)
        self.held[request] = update if earlier is None else join_updates((earlier, update))


class RequestObserver(Protocol):
    """Is told of first tokens and of requests that end, on the event loop; must neither take long nor raise."""

    def on_first_token(self, request: Request, now: float) -> None:
        """The first token of an answer goes out, at `request.times.first_token`."""

    def on_end(self, request: Request, reason: FinishReason | None, now: float) -> None:
        """A request has ended, at `request.times.end`; the reason is None where it was cancelled. Called once each."""


class PlanObserver(Protocol):
    """Is told of plans that are over, on the event loop; must not take long."""

    def on_finish(self, assignment: Assignment, now: float) -> None:
        """An assignment is over, at `assignment.ended`."""


class Port(Protocol):
    """The way to an executor; a real one, a simulated one, or a test's."""

    @property
    def info(self) -> ExecutorInfo: ...

    @property
    def alive(self) -> bool: ...

    def post(self, command: Command) -> None: ...

    def withdraw(self) -> tuple[Command, ...]:
        """Take back the commands that a lost executor has not taken up."""


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

    def withdraw(self) -> tuple[set[RowId], list[RowId]]:
        """Take back what the executor, which is lost, has not taken up: rows that it should have begun, and rows that
        it should have cancelled."""
        commands = self.port.withdraw()
        begun = {spec.row_id for one in commands if isinstance(one, Admit) for spec in one.rows}
        return begun, [row_id for one in commands if isinstance(one, Cancel) for row_id in one.row_ids]

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
    def load(self) -> float:
        """Predicted seconds of serving time of its unfinished plans (SCLS, section 4.5), summed anew each time, so that
        no wrong estimate leaves a rest behind.
        """
        return sum({id(one): one.plan.estimate for one in self.assignments.values()}.values())
