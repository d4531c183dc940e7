"""Calls of one key whose prompts extend each other, or that name their run; and what their kind has shown."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from math import ceil, exp, log, sqrt

RECENT = 1024  # turns in means
TURNS = sorted({round(1.1**step) for step in range(74)})  # where levels begin, the last's end
LEVELS = len(TURNS) - 1
UNSEEN = 0.03  # ends that each level is given, at which a third as many turns follow again; tried: 0.02 to 1
LEAST_GAP = 1e-3  # seconds
IDLE = 2.33  # standard deviations of the logarithm of gaps, after which a program counts as ended: 1 in 100
SHORTEST, LONGEST = 1.0, 600.0  # seconds of that
FEWEST = 32  # programs ended before ends are estimated, and estimates before one is reported
OWN = 4  # turns of a program's own that count as much as its kind's mean


@dataclass(eq=False, slots=True)
class Kind:
    """Programs of one key and system prompt, learned as they run."""

    went_on: list[float] = field(default_factory=lambda: [0.0] * LEVELS)  # turns, by level
    ended: list[float] = field(default_factory=lambda: [0.0] * LEVELS)
    work: float = 0.0  # mean of a turn
    gap: float = 0.0  # mean logarithm of seconds
    variance: float = 0.0
    patience: float = SHORTEST  # seconds without a call after which a program has ended
    seconds: float = 0.0  # mean from a turn to the next
    errors: list[float] = field(default_factory=list)  # logarithms of true by estimated ends, sorted
    _errors: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))  # as they came
    _turns: int = 0
    _gaps: int = 0
    idle: deque[tuple[float, Program]] = field(default_factory=lambda: deque(maxlen=RECENT))

    def turns_left(self, turns: int) -> float:
        """Expected after as many; none before others of the kind went on."""
        left, alive = 0.0, 1.0
        for level in range(_level(turns) if self.went_on[0] else LEVELS, LEVELS):
            on = self.went_on[level] + UNSEEN * TURNS[level] / 4
            stays = on / (on + self.ended[level] + UNSEEN)
            all_stay = stays ** max(1, TURNS[level + 1] - max(turns, TURNS[level]))
            left += alive * stays * (1 - all_stay) / (1 - stays)
            alive *= all_stay
        return left

    def seconds_left(self, turns: int) -> float:
        """From the latest of as many."""
        return self.seconds * (1 + self.turns_left(turns))

    def note_turn(self, work: float) -> None:
        self._turns += 1
        self.work += (work - self.work) / min(self._turns, RECENT)

    def note_gap(self, turns: int, seconds: float, since: float = 0.0) -> None:
        """Before a turn that follows `turns`, the latest `since` seconds ago."""
        self.went_on[_level(turns)] += 1
        self._gaps += 1
        self.seconds += (since - self.seconds) / min(self._gaps, RECENT)
        off = log(max(LEAST_GAP, seconds)) - self.gap
        share = 1 / min(self._gaps, RECENT)
        self.gap += share * off
        self.variance = (1 - share) * (self.variance + share * off * off)
        self.patience = min(LONGEST, max(SHORTEST, exp(self.gap + IDLE * sqrt(self.variance))))

    def settle(self, now: float) -> None:
        while self.idle and self.idle[0][0] + self.patience < now:
            ended, program = self.idle.popleft()
            if program.ended == ended and not program.open:
                self.ended[_level(program.turns)] += 1
                self._errors.extend(log(max(LEAST_GAP, ended - at) / told) for at, told in program.estimates if told)
                self.errors = sorted(self._errors)


@dataclass(eq=False, slots=True, weakref_slot=True)
class Program:
    """Compared by identity; times are the clock's, work is in generated tokens."""

    name: str
    kind: Kind
    arrival: float
    first: bytes = b""  # digest of its first call's messages
    parent: Program | None = None  # of a subagent
    turns: int = 0  # calls begun
    open: int = 0  # requests under way
    service: float = 0.0  # work had
    lent: float = 0.0  # work let pass
    tokens: int = 0  # of its latest call, prompt and answer
    came: float | None = None  # when its latest call did
    ended: float | None = None  # when its latest answer did
    estimates: list[tuple[float, float]] = field(default_factory=list)  # at turns 1, 2, 4, ...: seconds left

    @property
    def root(self) -> Program:
        return self.parent or self

    @property
    def rest(self) -> float:
        mean = (OWN * self.kind.work + self.service) / (OWN + max(0, self.turns - 1))
        return mean * self.kind.turns_left(self.turns) + (0.0 if self.parent is None else self.parent.rest)

    @property
    def back_within(self) -> float:
        """Seconds for which a prompt's K and V are worth keeping: the chance of a next turn times its longest pause.
        Reading a block again costs each program the same, as its bytes do.
        """
        kind, level = self.kind, _level(self.turns)
        return kind.patience * kind.went_on[level] / (kind.went_on[level] + kind.ended[level] + 1)

    def end_within(self, coverage: float) -> float | None:
        """Seconds from its latest call to its last answer, for `coverage` of those that ended; None if unknown."""
        errors = self.kind.errors
        place = ceil((len(errors) + 1) * coverage)
        if len(errors) < max(FEWEST, place):
            return None
        return exp(errors[place - 1]) * self.kind.seconds_left(self.turns)

    def begin(self, now: float) -> None:
        if self.kind.idle and self.kind.idle[0][0] + self.kind.patience < now:
            self.kind.settle(now)
        if self.ended is not None and not self.open:
            self.kind.note_gap(self.turns, now - self.ended, now - (self.came or 0.0))
        self.turns += self.came != now or not self.open  # other choices of a call are no turns
        self.came = now
        if self.turns.bit_count() == 1 and not self.open and sum(self.kind.ended) >= FEWEST:
            self.estimates.append((now, self.kind.seconds_left(self.turns)))
        self._serve(1, 0.0, None)

    def end(self, work: float, tokens: int, now: float) -> None:
        self.tokens = tokens
        self.kind.note_turn(work)
        self._serve(-1, work, now)

    def _serve(self, requests: int, work: float, ended: float | None) -> None:
        self.open += requests
        self.service += work
        if ended is not None:
            self.ended = ended
            if not self.open:
                self.kind.idle.append((ended, self))
        if self.parent is not None:
            self.parent._serve(requests, work, ended)


def _level(turns: int) -> int:
    return min(LEVELS, bisect_right(TURNS, max(1, turns))) - 1
