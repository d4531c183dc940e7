from dataclasses import dataclass, field
from enum import StrEnum

from engine.messages import Admit, BatchPolicy, RowUpdate
from scheduler.request import Request


class Returns(StrEnum):
    ROW_END = "row end"
    BATCH_END = "batch end"  # static batching


@dataclass(frozen=True, slots=True)
class Plan:
    requests: tuple[Request, ...]
    terms: BatchPolicy = BatchPolicy()
    returns: Returns = Returns.ROW_END
    estimate: float = 0.0  # seconds, 0 if unknown

    @property
    def command(self) -> Admit:
        return Admit(tuple(request.spec for request in self.requests), self.terms)


@dataclass(eq=False, slots=True)
class Assignment:
    """Over when no row is open."""

    plan: Plan
    executor: int
    sent: float
    began: float | None = None
    ended: float | None = None
    intact: bool = True  # no row was cancelled, failed, or lacked room
    input_length: int = field(init=False)  # L(B) when sent
    before: dict[Request, int] = field(init=False)  # tokens
    open: set[Request] = field(default_factory=set)
    # answers for the batch's end
    held: dict[Request, RowUpdate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.open.update(self.plan.requests)
        self.input_length = max((request.tokens for request in self.plan.requests), default=0)
        self.before = {request: request.generated for request in self.plan.requests}

    @property
    def iterations(self) -> int:
        """G(B)."""
        return max((request.generated - before for request, before in self.before.items()), default=0)

    @property
    def seconds(self) -> float | None:
        """None unless it ran as planned."""
        if not self.intact or self.began is None or self.ended is None:
            return None
        return self.ended - self.began

    def hold(self, request: Request, update: RowUpdate) -> None:
        earlier = self.held.get(request)
        self.held[request] = update if earlier is None else RowUpdate.join((earlier, update))
