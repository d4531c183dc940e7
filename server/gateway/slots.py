"""Infers a backend's concurrency from outside."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from engine.messages import RowId

RECENT = 64  # latest calls watched for other clients; answers between two tries for one more slot with several clients

LAG = 0.009  # seconds to a first byte, typical of this process as of the backend

SHORT = 0.3  # share of an answer before its first byte, up to which streams alone are counted

KEPT = 16
SOON = 5
LATE = 1.5  # first bytes of the usual time's median, and the ratio that means a call waited

QUICK = 0.02  # seconds of work that may queue at the backend to hide latency

READING = 0.7  # share of the usual time to a first byte in which a call surely has its slot


@dataclass(slots=True)
class _Sent:
    """No byte yet."""

    at: float
    place: int  # calls at the backend, itself included
    ended: int  # answers that ended before
    streams: bool
    began: float = 0.0
    sends: int = 0  # calls sent when it began


@dataclass(slots=True)
class _FirstBytes:
    """Seconds: of calls at a nearly empty backend, and of all."""

    roomy: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    tried: tuple[float, int] = (0.0, 0)  # median and slots at the last doubt
    usual: float = float("inf")

    def add(self, seconds: float, *, roomy: bool) -> None:
        self.recent.append(seconds)
        if roomy:
            self.roomy.append(seconds)
        soon = sorted(self.recent)[len(self.recent) // SOON]
        self.usual = min(median(self.roomy or self.recent), soon)

    def doubt(self, seconds: float, slots: int) -> None:
        """Adopt the median if fewer slots did not lower it."""
        before, more = self.tried
        if slots > 0.75 * more:
            self.tried = max(seconds, before), max(slots, more)
            return
        if seconds > 0.9 * before:
            self.roomy = deque([seconds], KEPT)
        self.tried = seconds, slots


class Slots:
    """Sends as many calls as had slots at once, and one more to hide latency; twice as many until one waited. Slots are
    counted from shortly before first bytes, for calls of one token, and only by calls that were not late. Doubt grows
    slowly: one too many only waits, one too few costs throughput. With several clients, the extra call is sent once in
    RECENT answers without waiting.
    """

    def __init__(self, known: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`known` if configured."""
        self._known = known
        self._clock = clock
        self._seen = 0
        self._growing = True
        self._calm = 0  # doubted calls in a row that did not wait
        self._full = 0  # answers until one more is tried
        self._window = self._lates = 0  # begun and late answers, for forgetting, and the most slots
        self._best = self._sure = self._sure_before = 0  # at once by all signs, and by streams
        self._clients: deque[str] = deque(maxlen=RECENT)
        self._contested = False
        self._sent: dict[RowId, _Sent] = {}
        self._begun: dict[RowId, _Sent] = {}
        self._lasting: deque[float] = deque(maxlen=KEPT)  # seconds from first bytes to ends of streams
        self._sends = self._at_once = 0
        self._told = False
        self._ended = 0
        self._ends: deque[float] = deque(maxlen=4 * RECENT)
        self._spare = 0  # extra calls where answers are short
        self._first = {True: _FirstBytes(), False: _FirstBytes()}  # by streaming

    @property
    def most(self) -> int:
        if self._known is not None:
            return self._known
        if self._growing:
            return max(1, 2 * self._seen)
        spare = min(self._spare, 1 + self._seen // 4)
        return self._seen + max(spare, not (self._contested and self._full))

    def learn(self, known: int) -> None:
        """Configuration takes precedence."""
        self._known = known if self._known is None else self._known

    def hear(self, waiting: int, running: int) -> None:
        """The backend's own report, other clients included, replaces inference."""
        self._told = True
        if waiting:
            self._seen = running or self._seen
            self._growing, self._full = False, RECENT
        else:
            self._seen = max(self._seen, min(running, len(self._sent) + len(self._begun)))
            self._growing |= running >= self.most

    @property
    def busy(self) -> bool:
        return bool(self._sent or self._begun)

    def is_cut(self, row: RowId) -> bool:
        """Another call was sent meanwhile to a seemingly serial backend, so this end may be late."""
        return self._at_once < 3 and row in self._begun and self._sends > self._begun[row].sends

    def send(self, row: RowId, client: str = "", *, streams: bool) -> None:
        self._clients.append(client)
        self._contested = len(set(self._clients)) > 1
        self._sends += 1
        place = len(self._sent) + len(self._begun) + 1
        self._sent[row] = _Sent(self._clock(), place, self._ended, streams)

    def begin(self, row: RowId) -> None:
        """First byte."""
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
        """By overlapping streams and the share of a slot spent on prefill."""
        lasting = median(self._lasting) if self._lasting and call.streams else 0.0
        sure = max(self._sure, self._sure_before, len(self._begun))
        if lasting < 0.1 * usual:
            return call.place
        return int(sure * (1 + usual / lasting)) if usual > SHORT * lasting else sure

    def _gone(self, call: _Sent, now: float, usual: float) -> int:
        since, beside = max(call.at, now - READING * usual), 0
        for end in reversed(self._ends):
            if end < since:
                break
            beside += 1
        return self._ended - call.ended - beside

    def _doubt(self, call: _Sent, together: int, *, late: bool) -> None:
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
        most_late = 3 * self._lates > 2 * self._window
        found = self._sure if most_late else self._best
        if self._lates and found < self._seen and not self._told:
            self._seen = max(found, self._seen - max(1, self._seen // 8))
            if most_late:
                first.doubt(median(list(first.recent)[-self._window :]), self._seen)

    def end(self, row: RowId) -> None:
        """Ended or withdrawn; idempotent."""
        if row in self._begun or row in self._sent:
            self._ended += 1
            self._ends.append(self._clock())
            if len(self._ends) >= RECENT:
                self._spare = int(0.6 + QUICK * RECENT / max(QUICK, self._ends[-1] - self._ends[-RECENT]))
        self._sent.pop(row, None)
        if (call := self._begun.pop(row, None)) is not None and call.streams:
            self._lasting.append(self._clock() - call.began)
