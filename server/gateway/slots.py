"""The number of calls that a backend answers at a time, counted from outside."""

from __future__ import annotations

from collections import deque

from engine.messages import RowId

RECENT = 64
"""Answers that began last, among which the most that streamed together is looked for."""


class Slots:
    """Counts the answers that stream at once: as many are sent as were seen lately, and one more, which hides the way
    there and back. Until one was seen to wait at the backend, twice as many are sent.

    Never too few: 28 of 32 would cost a third of the mean time, one too many nothing.
    """

    def __init__(self, known: int | None = None) -> None:
        """`known` is the number where somebody told it, else None."""
        self._known = known
        self._seen = 0
        self._ended = 0  # answers that have ended so far
        self._growing = True
        self._streaming: set[RowId] = set()
        self._whole: set[RowId] = set()
        self._recent: deque[int] = deque(maxlen=RECENT)
        self._sent: dict[RowId, int] = {}  # calls without a byte yet -> answers that had ended when they were sent

    @property
    def most(self) -> int:
        """Calls that the backend is sent at a time."""
        if self._known is not None:  # whole answers count as all others
            return self._known
        return len(self._whole) + (max(1, 2 * self._seen) if self._growing else self._seen + 1)

    def learn(self, known: int) -> None:
        """The backend tells its number; one that is given goes first."""
        self._known = known if self._known is None else self._known

    def send(self, row: RowId, *, streams: bool) -> None:
        """A call is sent. Of an answer that does not stream nothing is seen, so it takes none of the slots."""
        if streams:
            self._sent[row] = self._ended
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
        if self._ended > ended and together <= self._seen:  # it began only when another had ended
            self._growing = False
        self._seen = max(self._seen, together) if self._growing else max(self._recent)

    def end(self, row: RowId) -> None:
        """The answer is over, or its call was taken back. May be said again."""
        if row in self._streaming or row in self._sent:
            self._ended += 1
        self._sent.pop(row, None)
        self._streaming.discard(row)
        self._whole.discard(row)
