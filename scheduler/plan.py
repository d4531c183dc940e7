"""Plans (requests for one executor), and assignments (plans under way)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from engine.messages import Admit, RowUpdate, Terms
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
