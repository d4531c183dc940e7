"""How the lines of a batch are asked and answered: what its runner wants of a model, and the lines that it writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from server.batches.batch import LineError
from server.http.quota import Share


class LineReply(msgspec.Struct, frozen=True):
    """The answer to a request as HTTP would have it."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class ResultLine(msgspec.Struct, frozen=True):
    """A line of an output or an error file."""

    id: str
    custom_id: str
    response: LineReply | None
    error: LineError | None


class Asker(Protocol):
    """Asks the model. Event loop only."""

    async def estimate(self, endpoint: str, body: bytes) -> float:
        """The work that a request is expected to be, in whatever unit; 0 for one that will be refused."""
        ...

    def enter(self, holder: str | None) -> Share | None:
        """A share of a key's quota for a request; None while too little of it is left."""
        ...

    def leave(self, share: Share) -> None:
        """A request is over."""
        ...

    async def ask(
        self, endpoint: str, body: bytes, holder: str | None, share: Share, request_id: str, begun: Callable[[], None]
    ) -> LineReply | None:
        """The answer to a request, also where it is an error; None where there is no room for it now.

        `begun` is called when it is in the queue.
        """
        ...

    def part_done(self, request_id: str) -> float:
        """How much of a request's answer is there, from 0 to 1; 0 for one that is not under way."""
        ...
