"""The number of calls that a backend answers at a time, counted from outside."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from engine.messages import RowId

RECENT = 64
"""Calls that were sent last, among which another client's is; and answers that begin between two tries for one more
slot while there are several clients."""

LAG = 0.009
"""Seconds to a usual first byte that say as much of this process as of the backend."""

SHORT = 0.3
"""Share of an answer's time that it takes to its first byte, up to which slots are counted by streams alone."""

KEPT = 16
SOON = 5
LATE = 1.5
"""First bytes from whose median the usual time to one is taken, and how many times as late one comes that had to wait
at the backend."""

QUICK = 0.02
"""Seconds of a backend's work that may wait there, whoever competes, to hide the way there and back."""

READING = 0.7
"""Share of the usual time to a first byte in which a call has its slot for certain."""


@dataclass(slots=True)
class _Sent:
    """A call of which no byte has come."""

    at: float
    place: int  # calls at the backend, with itself
    ended: int  # answers that had ended before it
    streams: bool
    began: float = 0.0
    sends: int = 0  # calls that had been sent when it began


@dataclass(slots=True)
class _FirstBytes:
    """Seconds to first bytes: of calls that found the backend nearly empty, and of all."""

    roomy: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    tried: tuple[float, int] = (0.0, 0)  # the median when slots were doubted, and how many there were
    usual: float = float("inf")

    def add(self, seconds: float, *, roomy: bool) -> None:
        self.recent.append(seconds)
        if roomy:
            self.roomy.append(seconds)
        soon = sorted(self.recent)[len(self.recent) // SOON]
        self.usual = min(median(self.roomy or self.recent), soon)

    def doubt(self, seconds: float, slots: int) -> None:
        """Take the median for the usual time if a quarter of the slots less did not make it less."""
        before, more = self.tried
        if slots > 0.75 * more:
            self.tried = max(seconds, before), max(slots, more)
            return
        if seconds > 0.9 * before:
            self.roomy = deque([seconds], KEPT)
        self.tried = seconds, slots


class Slots:
    """Counts the calls that had a slot at once: as many are sent, and one more, which hides the way there and back.
    Until one was seen to wait at the backend, twice as many are sent.

    A call has its slot from a little before its first byte to its last, so that calls of one token are counted as well;
    only calls that were not late tell of slots, as only they are known to have begun when they were sent. Doubt grows:
    one too many waits at the backend, where one too few would cost its share of all that is served. While there are
    several clients, one more is sent only where none was seen to wait for RECENT answers: a call that comes later and
    goes first would wait for two ends in place of one.
    """

    def __init__(self, known: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`known` is the number where somebody told it, else None."""
        self._known = known
        self._clock = clock
        self._seen = 0
        self._growing = True
        self._calm = 0  # calls in doubt that did not wait, since one did
        self._full = 0  # answers that may begin until one more is sent to see whether it waits
        self._window = self._lates = 0  # answers begun and late ones, for forgetting, and the most slots
        self._best = self._sure = self._sure_before = 0  # that they had at once by all signs, and that streamed
        self._clients: deque[str] = deque(maxlen=RECENT)
        self._contested = False
        self._sent: dict[RowId, _Sent] = {}
        self._begun: dict[RowId, _Sent] = {}
        self._lasting: deque[float] = deque(maxlen=KEPT)  # seconds from first bytes to ends of streams
        self._sends = self._at_once = 0
        self._told = False
        self._ended = 0
        self._ends: deque[float] = deque(maxlen=4 * RECENT)
        self._spare = 0  # calls more that are sent where answers end so often that nobody minds to wait for them
        self._first = {True: _FirstBytes(), False: _FirstBytes()}  # by whether answers stream

    @property
    def most(self) -> int:
        """Calls that the backend is sent at a time."""
        if self._known is not None:
            return self._known
        if self._growing:
            return max(1, 2 * self._seen)
        spare = min(self._spare, 1 + self._seen // 4)
        return self._seen + max(spare, not (self._contested and self._full))

    def learn(self, known: int) -> None:
        """The backend tells its number; one that is given goes first."""
        self._known = known if self._known is None else self._known

    def hear(self, waiting: int, running: int) -> None:
        """The backend tells how many calls wait and run there, other clients' too; what it tells is not inferred."""
        self._told = True
        if waiting:
            self._seen = running or self._seen
            self._growing, self._full = False, RECENT
        else:
            self._seen = max(self._seen, min(running, len(self._sent) + len(self._begun)))
            self._growing |= running >= self.most

    @property
    def busy(self) -> bool:
        """Whether it has calls."""
        return bool(self._sent or self._begun)

    def is_cut(self, row: RowId) -> bool:
        """Whether a call was sent since this answer began, at a backend that was never seen to answer several at once:
        the end of one may be told behind the next one's beginning.
        """
        return self._at_once < 3 and row in self._begun and self._sends > self._begun[row].sends

    def send(self, row: RowId, client: str = "", *, streams: bool) -> None:
        """A client's call is sent."""
        self._clients.append(client)
        self._contested = len(set(self._clients)) > 1
        self._sends += 1
        place = len(self._sent) + len(self._begun) + 1
        self._sent[row] = _Sent(self._clock(), place, self._ended, streams)

    def begin(self, row: RowId) -> None:
        """The first byte of its answer has come."""
        call = self._sent.pop(row, None)
        if call is None:  # its client has left
            return
        now = self._clock()
        self._begun[row], call.began, call.sends = call, now, self._sends
        self._at_once = max(self._at_once, len(self._begun))
        first = self._first[call.streams]
        behind = self._ended > call.ended
        late = behind and now - call.at > LATE * first.usual
        if first.usual < LAG:
            late = behind and len(self._begun) <= self._seen
        together = len(self._begun)
        if not late and first.usual > LAG:
            claim = call.place - self._gone(call, now, first.usual)
            together = max(together, min(claim, self._bound(call, first.usual)))
        first.add(now - call.at, roomy=call.place <= max(1, self._seen // 4))
        self._seen = max(self._seen, len(self._begun), min(together, self._best))
        self._doubt(call, together, late=late)

    def _bound(self, call: _Sent, usual: float) -> int:
        """Most slots that can be, by those seen to stream at once and the share of its slot that a call is read in."""
        lasting = median(self._lasting) if self._lasting and call.streams else 0.0
        sure = max(self._sure, self._sure_before, len(self._begun))
        if lasting < 0.1 * usual:
            return call.place
        return int(sure * (1 + usual / lasting)) if usual > SHORT * lasting else sure

    def _gone(self, call: _Sent, now: float, usual: float) -> int:
        """Answers that ended behind a call's sending, but before it had its slot for certain."""
        since, beside = max(call.at, now - READING * usual), 0
        for end in reversed(self._ends):
            if end < since:
                break
            beside += 1
        return self._ended - call.ended - beside

    def _doubt(self, call: _Sent, together: int, *, late: bool) -> None:
        """Whether more slots are tried for, and whether those that were seen are still there."""
        self._full = max(0, self._full - 1)
        if call.place > self._seen or late:
            self._calm = 0 if late else self._calm + 1
            if late:
                self._growing, self._full = False, RECENT
            elif self._calm >= max(8, 2 * self._seen):
                self._growing = True
        self._window, self._lates = self._window + 1, self._lates + late
        self._best, self._sure = max(self._best, together), max(self._sure, len(self._begun))
        if self._window >= max(KEPT, 2 * self._seen):
            self._forget(self._first[call.streams])
            self._sure_before = self._sure
            self._window = self._lates = self._best = self._sure = 0

    def _forget(self, first: _FirstBytes) -> None:
        """Doubt the slots that were not seen again while calls waited; and the usual time where that did not help."""
        most_late = 3 * self._lates > 2 * self._window
        found = self._sure if most_late else self._best
        if self._lates and found < self._seen and not self._told:
            self._seen = max(found, self._seen - max(1, self._seen // 8))
            if most_late:
                first.doubt(median(list(first.recent)[-self._window :]), self._seen)

    def end(self, row: RowId) -> None:
        """The answer is over, or its call was taken back. May be said again."""
        if row in self._begun or row in self._sent:
            self._ended += 1
            self._ends.append(self._clock())
            if len(self._ends) >= RECENT:
                self._spare = int(0.6 + QUICK * RECENT / max(QUICK, self._ends[-1] - self._ends[-RECENT]))
        self._sent.pop(row, None)
        if (call := self._begun.pop(row, None)) is not None and call.streams:
            self._lasting.append(self._clock() - call.began)
