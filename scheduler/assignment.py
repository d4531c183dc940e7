"""A plan under way on an executor: which of its rows still run there, and which answers wait for the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from engine.messages import RowUpdate
from scheduler.plan import Plan, Returns
from scheduler.request import Request
from scheduler.stream import merge


@dataclass(eq=False, slots=True)
class Assignment:
    """Only the books (books.py) change it. It is over when no row is open any more."""

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
    fresh: frozenset[Request] = field(init=False)
    """Those of its requests whose tokens had all to be read when it was sent."""
    open: set[Request] = field(default_factory=set)
    """Requests whose rows the executor has neither ended nor handed back."""
    held: dict[Request, RowUpdate] = field(default_factory=dict)
    """Answers that return only when the batch ends, all updates of a request merged into one."""

    def __post_init__(self) -> None:
        self.open.update(self.plan.requests)
        self.input_length = max((request.kv_length for request in self.plan.requests), default=0)
        self.before = {request: request.generated for request in self.plan.requests}
        self.fresh = frozenset(request for request in self.plan.requests if request.needs_prefill)

    @property
    def iterations(self) -> int:
        """G(B): tokens that the longest of its rows has generated here."""
        return max((request.generated - before for request, before in self.before.items()), default=0)

    @property
    def seconds(self) -> float | None:
        """What it took; None when it did not run as planned, or left no trace of its time."""
        if not self.intact or self.began is None or self.ended is None:
            return None
        return self.ended - self.began

    @property
    def holds_answers(self) -> bool:
        return self.plan.returns is Returns.BATCH_END

    def hold(self, request: Request, update: RowUpdate) -> None:
        earlier = self.held.get(request)
        self.held[request] = update if earlier is None else merge(earlier, update)


class Observer(Protocol):
    """Wants to know how plans went."""

    def finished(self, assignment: Assignment, now: float) -> None:
        """An assignment is over, at `assignment.ended`. Called on the event loop: must not take long."""
        ...
