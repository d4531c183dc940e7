"""Orders of programs (scheduler/programs); a call of none is a program of its own."""

from collections.abc import Iterable, Iterator, Mapping
from heapq import heappush
from math import frexp, inf
from weakref import WeakKeyDictionary, WeakSet

from scheduler.programs.program import Program
from scheduler.remaining_length import work_left
from scheduler.request import Request
from scheduler.waiting.by_length import Arrived
from scheduler.waiting.by_work import FairSojourn
from scheduler.waiting.sorted_requests import Key


def run_arrival(request: Request) -> float:
    """The earliest program (Continuum, 2511.02230). Later programs starve behind endless ones."""
    return request.times.arrival if request.program is None else request.program.arrival


def work_to_end(request: Request) -> float:
    return work_left(request) + (0.0 if request.program is None else request.program.rest)


def attained_level(request: Request) -> float:
    """PLAS (Agentix, NSDI 2026): least work had by the program, in levels of powers of two; FCFS within."""
    return frexp(request.program.service if request.program is not None else 0.0)[1]


class VirtualFinish(FairSojourn):
    """Justitia (2510.17015): a program's key is V + W for its predicted work W on arrival.

    Bound (theirs, for true W): none ends later than when shared by more than the most work of a program.
    """

    def __init__(self) -> None:
        super().__init__()
        self._programs: WeakKeyDictionary[Program, float] = WeakKeyDictionary()

    def key(self, request: Request, now: float) -> Key:
        end = self.alone.get(request) if request.program is None else self._programs.get(request.program)
        end = self.level + work_to_end(request) if end is None else end
        return (request.priority, end, run_arrival(request), request.times.arrival, request.row_id)

    def enter(self, request: Request) -> None:
        if request.program is None:
            super().enter(request)
        elif request.program not in self._programs:
            self._programs[request.program] = self.level + work_to_end(request)
            heappush(self.ends, self._programs[request.program])


class PausedSmallest(Arrived):
    """ThunderAgent (2602.13692): active programs' calls first, by arrival. While their tokens exceed the memory, those
    between two calls are paused, smallest first; where there is room programs resume, begun ones first, largest first.
    Paused ones take slots that no active one wants, unlike theirs, which hold them back.
    """

    by_key = False

    def __init__(self, capacity_tokens: int | None) -> None:
        self._capacity = inf if capacity_tokens is None else capacity_tokens
        self._active: WeakSet[Program] = WeakSet()

    def rank(self, in_turn: Iterable[Request], keys: Mapping[Request, Key], now: float) -> Iterator[Request]:
        waiting = [*in_turn]
        room = self._capacity - sum(one.tokens for one in self._active)
        for one in sorted((one for one in self._active if not one.open), key=lambda one: one.tokens):
            if room >= 0:
                break
            self._active.discard(one)
            room += one.tokens
        asking = {one.program: one for one in waiting if one.program is not None and one.program not in self._active}
        for program, call in sorted(asking.items(), key=lambda pair: (pair[0].turns == 1, -pair[1].tokens)):
            if call.tokens <= room:
                self._active.add(program)
                room -= call.tokens
        return iter(sorted(waiting, key=lambda one: one.program is not None and one.program not in self._active))
