"""The default order: by arrival, but a share x of the work may jump, first what has the least left of its program.

A credit c in [0, C] grows by w·x/(1 - x) with work w in turn, and pays for jumps: of what is due by its promise, then
of the cheapest, with at most half left of what the oldest has. Promises given because they may go first do so at any
size, by credit set aside. C is the mean request's work times the slots. Of programs' calls the one with the least left
takes the oldest's place, which gets its own; credit pays what it costs beyond w / (1 - x) of that.

Bound: behind work B of its `priority`, with w* the most work of a plan, at most

    B / (1 - x) + C + w*

is taken first, better priorities and due deadlines apart, and what running rows that jumped will have beyond their
predictions; FCFS takes B + w*. Proof: B in turn adds B·x/(1 - x) to at most C; the last plan is w*. Work is settled as
rows exceed predictions. It is of work, not of seconds (loadgen/experiments/validation/waits.py).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from math import inf

from scheduler.programs.program import Program
from scheduler.remaining_length import PROMPT_TOKEN, work_left
from scheduler.request import Request
from scheduler.waiting.credit import Credit
from scheduler.waiting.order import Order
from scheduler.waiting.sorted_requests import Key, QueueAhead, SortedRequests

MOST_DUE = 256  # looked at in a decision

RECENT = 1024  # newcomers in the mean

LENT = 0.5  # of its work a program lets pass; tried: 0.25 to 4


@dataclass(eq=False, slots=True)
class _Taken:
    in_turn: bool
    booked: float  # charged
    read: float  # prompt
    before: int  # tokens
    ended: bool = False


class OutOfTurn(Order):
    by_key = False

    def __init__(self, share: float, slots: float, keeps: bool = True) -> None:
        """`share` is x in [0, 1); `keeps` promises."""
        self.share, self.keeps = share, keeps and share > 0
        self._credit = Credit(share / (1 - share))
        self._slots, self._mean, self._came = slots, 0.0, 0
        self._cheapest = SortedRequests()  # by what is left of their programs
        self._of_programs = SortedRequests()  # these
        self._promised = SortedRequests()  # earliest due first, those asked for before others
        self._works: dict[Request, float] = {}
        self._taken: dict[Request, _Taken] = {}

    def key(self, request: Request, now: float) -> Key:
        return (request.priority, request.times.arrival, request.row_id)

    def enter(self, request: Request) -> None:
        self.ended(request)
        self._settle(request)
        self._works[request] = work = work_left(request)
        if not request.runs:  # counted before
            self._came += 1
            self._mean += (work - self._mean) / min(self._came, RECENT)
            self._credit.most = self._slots * self._mean
        self._cheapest.insert(end := _by_end(request, work), request)
        if self.share and _find_run(request) is not None:
            self._of_programs.insert(end, request)
        if self.keeps and (told := request.expected) is not None and told.waits and told.known:
            self._promised.insert((request.priority, request.promised is None, told.due, request.row_id), request)
            self._credit.aside += work * _goes_first(request)

    def leave(self, request: Request) -> None:
        self._cheapest.remove(request)
        self._of_programs.remove(request)
        work = self._works.pop(request, 0.0)
        if request in self._promised.keys:
            self._promised.remove(request)
            aside = self._credit.aside - work * _goes_first(request)
            self._credit.aside = max(0.0, aside) if self._promised.keys else 0.0

    def lends(self, first: Request, request: Request) -> bool:
        if first.program is None or request.program is None or request not in self._of_programs.keys:
            return False
        if self._heir(first, request, self._credit) is not request:
            return False
        self._credit.lend(self._works[first])
        first.program.root.lent += self._works[first]
        request.program.root.lent -= self._works[request]
        return True

    def serve(self, request: Request, in_turn: bool) -> None:
        work, read = self._works[request], PROMPT_TOKEN * request.unread
        self._taken[request] = _Taken(in_turn, work, read, request.generated)
        self._credit.book(in_turn, work)

    def ended(self, request: Request) -> None:
        """Booked with the next decision."""
        if request in self._taken:
            self._taken[request].ended = True

    def rank(self, in_turn: Iterable[Request], keys: Mapping[Request, Key], now: float) -> Iterator[Request]:
        for request in list(self._taken):
            self._settle(request)
        gone, credit, priority = set[Request](), replace(self._credit), None
        works, ends = self._works, self._cheapest.keys
        owners, places = dict[Request, Request](), dict[Request, Request]()  # where places were lent
        for place in in_turn:
            oldest = owners.get(place, place)
            if priority != oldest.priority:
                priority = oldest.priority
                due = dict.fromkeys(self._list_due(priority, now) if self._promised.keys else ())
                jumps = chain(due, self._cheapest.iterate_from((priority,)))
                jump = next(jumps, None)
                heirs = self._of_programs.iterate_from((priority,))
                heir = next(heirs, None)
            if oldest in gone:
                continue
            while heir in gone:
                heir = next(heirs, None)
            chosen = oldest if heir is None else self._heir(oldest, heir, credit)
            while jump is not None and keys[oldest][1] and chosen not in gone:
                if jump not in gone:
                    work, first = works[jump], _goes_first(jump)
                    pays = (first and jump in due) or (work <= credit.free and 2 * ends[jump][1] <= ends[chosen][1])
                    if jump.priority == priority and work <= credit.amount and pays:
                        credit.jump(work, first)
                        gone.add(jump)
                        yield jump
                    elif jump not in due:
                        break
                jump = next(jumps, None)
            if chosen in gone:
                chosen = oldest
            if chosen not in gone:
                if chosen is not oldest:
                    places[oldest] = freed = places.get(chosen, chosen)
                    owners[freed] = oldest
                credit.take_turn(works[oldest], works[chosen], _goes_first(chosen))
                gone.add(chosen)
                yield chosen

    def _heir(self, oldest: Request, heir: Request, credit: Credit) -> Request:
        """Who takes the oldest's place."""
        program, work, lenders = oldest.program, self._works[oldest], self._of_programs.keys
        if program is None or oldest not in lenders or oldest.deadline is not None or oldest.priority != heir.priority:
            return oldest
        root = program.root
        lends = root.lent + work <= LENT * (root.service + self._cheapest.keys[oldest][1])
        return heir if lends and self._works[heir] <= credit.free + credit.worth(work) else oldest

    def _list_due(self, priority: int, now: float) -> Iterator[Request]:
        """Of the first MOST_DUE each that were asked for and not."""
        for told in (False, True):
            for request in islice(self._promised.iterate_from((priority, told)), MOST_DUE):
                if self._promised.keys[request][:3] > (priority, told, now):
                    break
                yield request

    def ahead_of_newcomer(self, request: Request, by_key: QueueAhead, now: float) -> QueueAhead:
        """Cheaper ones, and what must pay for them; all where it may pass none."""
        if not self._works or not self.share:
            return by_key
        work = work_left(request)
        if _find_run(request) is not None:
            ours, better = (
                self._of_programs.ahead((request.priority, *end)) for end in ((inf,), _by_end(request, work)[1:])
            )
            others = by_key.without(ours)
            return better.and_share(others, round(others.place * better.place / max(1, ours.place)))
        if work > self._credit.most:
            return by_key
        end = _by_end(request, work)
        keys = (request.priority,), end, (request.priority, 2 * end[1]), (request.priority + 1,)
        better, cheaper, near, alike = map(self._cheapest.ahead, keys)
        if near.place == alike.place:
            return by_key
        owed = self._work_of(cheaper.without(better)) + work - self._credit.amount
        rest, paying = by_key.without(cheaper), max(0.0, owed) / self._credit.earned
        if paying >= self._work_of(rest):
            return by_key
        return cheaper.and_share(rest, round(rest.place * paying / self._work_of(rest)))

    def ahead_of_asked(self, request: Request) -> QueueAhead | None:
        if not self.keeps or work_left(request) > self._credit.free:
            return None
        asked = [self._promised.ahead((request.priority, told)) for told in (False, True)]
        return self._cheapest.ahead((request.priority,)).and_all(asked[1].without(asked[0]))

    def passed_by(self, before: QueueAhead) -> float:
        return max(0.0, self._credit.amount + self._credit.earned * self._work_of(before))

    def _work_of(self, ahead: QueueAhead) -> float:
        return ahead.tokens + ahead.unpredicted * self._mean + PROMPT_TOKEN * ahead.unread

    def _settle(self, request: Request) -> None:
        if (one := self._taken.get(request)) is None:
            return
        had = one.read + request.generated - one.before
        if had > one.booked or one.ended:
            self._credit.book(one.in_turn, had - one.booked)
            one.booked = had
        if one.ended:
            del self._taken[request]


def _goes_first(request: Request) -> bool:
    return request.expected is not None and request.expected.first


def _find_run(request: Request) -> Program | None:
    """None where no program of its kind went on."""
    program = request.program
    return program if program is not None and program.kind.went_on[0] else None


def _by_end(request: Request, work: float) -> Key:
    if (program := _find_run(request)) is not None:
        work += program.rest
    return (request.priority, work, request.times.arrival, request.row_id)
