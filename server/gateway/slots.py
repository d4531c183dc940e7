"""Infers a backend's concurrency from outside."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from math import isinf
from statistics import median

from engine.messages import RowId

RECENT = 64  # calls watched for other clients, ends for their rate, and calls until one more is tried beside others
KEPT = 8  # first bytes of calls that surely had room, reports of a backend, and calls judged together at least
LATE, LAG = 1.5, 0.005  # times the usual seconds to a first byte, and this process's own, from which on a call waited
TURNS = 3  # turnovers without a wait, after which all calls had slots
QUICK = 0.02  # seconds of work at least that may queue there to hide latency


@dataclass(slots=True)
class _Sent:
    at: float
    place: int  # calls at the backend, itself included
    ended: int  # answers that ended before
    streams: bool
    late: bool = False
    began: float = 0.0
    sends: int = 0  # calls sent when it began


@dataclass(slots=True)
class _FirstBytes:
    """Seconds: of calls at a nearly empty backend, and of all."""

    roomy: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    usual: float = float("inf")

    @property
    def late(self) -> float:
        return LAG + LATE * self.usual

    def add(self, seconds: float, *, roomy: bool) -> None:
        self.recent.append(seconds)
        if roomy:
            self.roomy.append(seconds)
        self.usual = min(median(self.roomy or self.recent), median(self.recent))


class InferredSlots:
    """Sends as many calls as had slots at once, and a few more to hide latency; twice as many until two waited. Where
    most wait, slots are to calls sent as the time without waits to the whole (Little's law). Doubt grows slowly.
    Between clients, one more once in RECENT calls without waiting.
    """

    def __init__(self, known: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`known` if configured."""
        self._known = known
        self.cuts = False  # a call seems to have ended the one before
        self._clock = clock
        self._seen = 0
        self._growing = True
        self._alone = 0  # calls sent one by one, to measure a first byte's usual time
        self._full = 0  # calls until one more is tried
        self._clients: deque[str] = deque(maxlen=RECENT)
        self._contested = self._told = False
        self._waits: bool | None = None  # by its last report
        self._ran: deque[int] = deque(maxlen=KEPT)  # while others waited
        self._counted = 0  # ends until a report of waits or free places
        self._sent: dict[RowId, _Sent] = {}
        self._begun: dict[RowId, _Sent] = {}
        self._pressed: list[tuple[_Sent, float]] = []  # calls of the last slots and their seconds, to be judged
        self._sends = self._ended = self._at_once = self._lates = 0
        self._ends: deque[float] = deque(maxlen=RECENT)
        self._first = {True: _FirstBytes(), False: _FirstBytes()}  # by streaming

    @property
    def most(self) -> int:
        if self._known is not None:
            return self._known
        if self.cuts:
            return 1
        if self._growing or self._alone:
            return 1 if self._alone else max(1, 2 * self._seen)
        return self._seen + max(self._spare(), not (self._contested and self._full))

    def _spare(self) -> int:
        """Extra calls where answers are short."""
        if len(self._ends) < RECENT:
            return 0
        first = self._first[True].usual  # a new call joins a step later
        hidden = QUICK if isinf(first) else max(QUICK, first)
        return min(int(0.6 + hidden * RECENT / max(hidden, self._ends[-1] - self._ends[0])), 2 + self._seen // 4)

    def learn(self, known: int) -> bool:
        """Whether it is news; configuration takes precedence."""
        if news := self._known is None:
            self._known = known
        return news

    def hear(self, waiting: int, running: int) -> None:
        """The backend's own report of its last step, other clients included. Between steps few short answers run, but
        what does not wait has a slot.
        """
        self._waits, self._told = waiting > 0, self._told or running > 0
        here = self._here
        if waiting or here < self.most:
            self._counted = self._ended
        if waiting and running:
            self._ran.append(running)
            self._seen = max(self._ran)
            self._growing, self._full = False, RECENT
        elif not waiting:
            known = self._clock() - LATE * min(one.usual for one in self._first.values())  # before that step
            taken = len(self._begun) + sum(call.at < known for call in self._sent.values())
            if self._ended - self._counted >= TURNS * here > 0:
                taken, self._counted = here, self._ended
            self._growing |= max(running, taken) >= self.most
            self._seen = max(self._seen, min(running, here), taken)

    @property
    def _here(self) -> int:
        return len(self._sent) + len(self._begun)

    @property
    def busy(self) -> bool:
        return self._here > 0

    def is_cut(self, row: RowId) -> bool:
        """Another call was sent meanwhile to a seemingly serial backend, so this end may be late."""
        return self._at_once < 3 and row in self._begun and self._sends > self._begun[row].sends

    def send(self, row: RowId, client: str = "", *, streams: bool) -> None:
        self._clients.append(client)
        self._contested = len(set(self._clients)) > 1
        self._sends += 1
        self._sent[row] = _Sent(self._clock(), self._here + 1, self._ended, streams)

    def begin(self, row: RowId) -> None:
        call = self._sent.pop(row, None)
        if call is None:  # its client has left
            return
        self._begun[row], call.began, call.sends = call, self._clock(), self._sends
        self._at_once = max(self._at_once, len(self._begun))
        seconds, first = call.began - call.at, self._first[call.streams]
        call.late = self._ended > call.ended and seconds > first.late
        first.add(seconds, roomy=call.place <= max(1, self._seen // 4))
        if call.place > self._seen:  # one alone may be late by chance
            self._lates = self._lates + 1 if call.late else 0
            self._growing &= self._lates < 2
        self._full = RECENT if call.late and not self._growing else max(0, self._full - 1)
        self._alone = max(0, self._alone - 1)
        if not call.late:
            since = max(call.at, call.began - first.usual / LATE)
            call.place -= self._ended - call.ended - sum(1 for _ in takewhile(since.__le__, reversed(self._ends)))
        else:
            call.place = max(call.place, self._here)
        self._seen = max(self._seen, len(self._begun), call.place if self._growing and not call.late else 0)

    def end(self, row: RowId) -> None:
        """Ended or withdrawn; idempotent."""
        if row in self._begun or row in self._sent:
            self._ended += 1
            self._ends.append(self._clock())
        self._sent.pop(row, None)
        if (call := self._begun.pop(row, None)) is not None and call.place >= self._seen:
            self._pressed.append((call, self._ends[-1] - call.at))
            if len(self._pressed) >= max(KEPT, self._seen):
                self._judge()

    def _judge(self) -> None:
        count, beyond = len(self._pressed), [call.late for call, _ in self._pressed if call.place > self._seen]
        if 3 * sum(call.late for call, _ in self._pressed) > 2 * count and not self._told and self._waits is not False:
            waits = sum(max(0.0, call.began - call.at - self._first[call.streams].usual) for call, _ in self._pressed)
            share = 1 - waits / sum(seconds for _, seconds in self._pressed)
            sure = max((call.place for call, _ in self._pressed if not call.late), default=1)
            found = max(sure, int(share * sum(call.place for call, _ in self._pressed) / count + 0.75))
            found = min(self._seen, max(found, self._seen - max(1, self._seen // 8)))
            self._growing = False
            self._alone = KEPT if found == 1 < self._seen else 0
            self._seen = found
        elif 2 * sum(beyond) <= len(beyond) > 0:
            self._growing |= not any(beyond) and 2 * len(beyond) >= count
            self._seen += 1
        self._pressed.clear()
