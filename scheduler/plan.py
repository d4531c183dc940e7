"""What a batcher decides: which requests go to one executor together, on which terms, and how their answers return."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine.messages import Admit, Terms
from scheduler.request import Request


class Returns(StrEnum):
    """When the clients of a plan get to see their answers."""

    ROW_END = "row end"
    """Each token as it is made."""
    BATCH_END = "batch end"
    """All answers of the batch when its last row has ended, as plain static batching has it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Requests to send to one executor together."""

    requests: tuple[Request, ...]
    terms: Terms = Terms()
    returns: Returns = Returns.ROW_END
    estimate: float = 0.0
    """Predicted serving time in seconds; 0 where nobody predicts it."""
    generation_length: int = 0
    """G'(B): the tokens of the longest answer with which that was predicted; 0 as above."""

    @property
    def command(self) -> Admit:
        return Admit(tuple(request.spec for request in self.requests), self.terms)
