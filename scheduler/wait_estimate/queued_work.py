"""How many tokens wait: a running sum, so that asking costs the same however many requests wait."""

from __future__ import annotations

from engine.messages import RowId
from scheduler.remaining_length import expected_remaining
from scheduler.request import Request


class QueuedTokens:
    """What waits counts with its prompt, what it has generated, and what is predicted to come or else may."""

    def __init__(self) -> None:
        self._tokens: dict[RowId, int] = {}
        self.total = 0

    def enter(self, request: Request) -> None:
        """A request begins to wait."""
        self.leave(request)
        self._tokens[request.row_id] = tokens = tokens_of(request)
        self.total += tokens

    def leave(self, request: Request) -> None:
        """A request waits no more; does nothing when it did not."""
        self.total -= self._tokens.pop(request.row_id, 0)


def tokens_of(request: Request) -> int:
    """Tokens whose K and V a request will hold at its end, as far as anybody can say."""
    return request.kv_length + int(expected_remaining(request))
