"""How many tokens wait: a running sum, so that asking costs the same however many requests wait.

Background requests do not count, since whatever comes goes before them.
"""

from __future__ import annotations

from engine.messages import RowId
from scheduler.remaining_length import remaining_length
from scheduler.request import Request


class QueuedTokens:
    """Tokens of waiting requests: prompt, generated, and expected to come."""

    def __init__(self) -> None:
        self._tokens: dict[RowId, int] = {}
        self.total = 0

    def __len__(self) -> int:
        """Requests that are counted."""
        return len(self._tokens)

    def enter(self, request: Request) -> None:
        """Count a waiting request, or count it anew."""
        if request.in_background:
            return
        self.leave(request)
        self._tokens[request.row_id] = tokens = request.tokens + int(remaining_length(request))
        self.total += tokens

    def leave(self, request: Request) -> None:
        """Count a request no more; does nothing when it is not counted."""
        self.total -= self._tokens.pop(request.row_id, 0)
