"""The number of calls that a backend answers at a time, counted from outside."""

from __future__ import annotations

from collections import deque
from math import inf

from engine.messages import RowId

RECENT = 64
"""Answers that began last, among which the most that streamed together is looked for; and calls that were sent last,
among which another client's is."""


class Slots:
    """Counts the answers that stream at once: as many are sent as were seen lately, and one more, which hides the way
    there and back. Until one was seen to wait at the backend, twice as many are sent.

    Never too few: 28 of 32 would cost a third of the mean time. One too many costs nothing, but a call that comes later
    and goes first waits for two ends in place of one: while there are several clients, one more is sent only where none
    was seen to wait for RECENT answers.
    """

    def __init__(self, known: int | None = None) -> None:
        """`known` is the number where somebody told it, else None."""
        self._known = known
        self._seen = 0
        self._ended = 0  # answers that have ended so far
        self._growing = True
        self._full = 0  # answers that may begin until one more is sent to see whether it waits
        self._clients: deque[str] = deque(maxlen=RECENT)
        self._contested = False
        self._streaming: set[RowId] = set()
        self._whole: set[RowId] = set()
        self._recent: deque[int] = deque(maxlen=RECENT)
        self._sent: dict[RowId, float] = {}  # calls without a byte yet -> answers that had ended when they were sent;
        # infinitely many for calls that should find a slot, of which none tells that there are no more

    @property
    def most(self) -> int:
        """Calls that the backend is sent at a time."""
        if self._known is not None:  # whole answers count as all others
            return self._known
        more = not (self._contested and self._full)
        return len(self._whole) + (max(1, 2 * self._seen) if self._growing else self._seen + more)

    def learn(self, known: int) -> None:
        """The backend tells its number; one that is given goes first."""
        self._known = known if self._known is None else self._known

    def send(self, row: RowId, client: str = "", *, streams: bool) -> None:
        """A client's call is sent. Of an answer that does not stream nothing is seen, so it takes none of the slots."""
        self._clients.append(client)
        self._contested = len(set(self._clients)) > 1
        if streams:
            self._sent[row] = self._ended if len(self._streaming) + len(self._sent) >= self._seen else inf
        else:
            self._whole.add(row)

    def begin(self, row: RowId) -> None:
        """The first byte of its answer has come."""
        ended = self._sent.pop(row, None)
        if ended is None:  # its client has left
            return
        self._streaming.add(row)
        together = len(self._streaming)
        self._recent.append(together)
        self._full = max(0, self._full - 1)
        if self._ended > ended and together <= self._seen:  # it began only when another had ended
            self._growing, self._full = False, RECENT
        self._seen = max(self._seen, together) if self._growing else max(self._recent)

    def end(self, row: RowId) -> None:
        """The answer is over, or its call was taken back. May be said again."""
        if row in self._streaming or row in self._sent:
            self._ended += 1
        self._sent.pop(row, None)
        self._streaming.discard(row)
        self._whole.discard(row)
