"""Estimated waits and places in the queue.

Work is counted in tokens (prices.py). Unpredicted lengths count as the running mean; requests that may yet overtake are
ignored.
"""

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import replace
from itertools import islice, takewhile
from math import exp, inf, log
from operator import attrgetter

from scheduler.assembly import SchedulerParts
from scheduler.clock import Clock
from scheduler.length.likely import likely_quantiles
from scheduler.remaining_length import remaining_length
from scheduler.request import COVERAGE, Request, State
from scheduler.wait_estimate.by_arrival import LATEST, ArrivalComparison, EndedAnswer, compare
from scheduler.wait_estimate.calibration import ALONE, NEXT, NO_WAIT, Calibration, spread_of
from scheduler.wait_estimate.completion import LEAST_SECONDS, Expected
from scheduler.wait_estimate.held_rows import HeldRows, generates
from scheduler.wait_estimate.load_report import report_load
from scheduler.wait_estimate.node_router import NodeLoad
from scheduler.wait_estimate.places import FRESH, FRONT, Explanation, Places, find_reason
from scheduler.wait_estimate.speed import Holding, Made, Speed
from scheduler.waiting.sorted_requests import QueueAhead
from scheduler.worker import Worker

UNKNOWN_FACTOR = 3.0  # half width, as a factor, where only a number is known

FEWEST_KNOWN = COVERAGE / (1 - COVERAGE)  # answers from which one in twenty exceeds a known length

FARTHEST, WIDEST = 30 * 86400.0, 5.0  # seconds; log of a factor

NEARER = 0.8  # share of the time left until a promise, below which it is promised again

BUSY = 32  # rows that a promise allows for

COMPARED = 2.0  # seconds that a comparison is reused: it takes milliseconds


class ExpectedWait:
    """Reads a batcher's queue and what executors hold. Event loop only."""

    def __init__(self, parts: SchedulerParts, workers: Collection[Worker], clock: Clock) -> None:
        self._waiting = parts.batcher.waiting
        self._workers = workers
        self._now = clock.now
        self._strategy = parts.strategy
        self._prices = parts.estimates.prices
        self._places = Places(self._waiting)
        self._speed = Speed(self._iteration_seconds)
        self._calibration = Calibration(self._waiting.order.keeps)
        self.promise = self._calibration.promise
        self._answers = deque[EndedAnswer](maxlen=LATEST)
        self._by_arrival: tuple[float, ArrivalComparison | None] = -inf, None  # when made
        self._load = NodeLoad(-inf, 0.0, self._prices())
        self._stuck = False  # anything but background requests had to wait at the latest dispatch
        self._serving: list[Worker] | None = None
        self._held: HeldRows | None = None  # both until rows change

    def count_again(self) -> None:
        """Rows have come, gone or grown."""
        self._held = self._serving = None

    def dispatched(self, *, stuck: bool) -> None:
        """After a dispatch: whether any had to stay in line."""
        self._stuck = stuck
        self.count_again()
        self._observe()

    def made(self, tokens: int, decoded: int, read: int, begun: int) -> None:
        """Tokens made, of these by rows past their first, and prompt tokens prefilled, some begun."""
        self.count_again()
        prices = self._prices()
        prompts = prices.read_work(read, begun)
        reading = prices.unit * prompts if prices.fixed_seconds else 0.0
        self._observe(Made(decoded, tokens + prompts, reading, begun, tokens))

    def ended(self, request: Request, end: float) -> None:
        self._speed.ended(request.generated, cut=request.generated >= request.sampling.max_tokens)
        self._calibration.add(request, end)
        expected, times, tokens = request.expected, request.times, request.generated
        if expected is not None and tokens and times.assigned is not None and not request.in_background:
            self._answers.append(EndedAnswer(times.arrival, times.assigned, end, tokens, expected.waits))

    def broke_off(self, request: Request, now: float) -> None:
        self._calibration.add(request, now, cut=True)

    @property
    def by_arrival(self) -> ArrivalComparison | None:
        """As of at most COMPARED seconds ago."""
        if self._now() - self._by_arrival[0] >= COMPARED:
            self._by_arrival = self._now(), compare(self._answers)
        return self._by_arrival[1]

    @property
    def free_slots(self) -> int:
        """None are free while any request had to wait at the latest dispatch."""
        return self._find_held().free

    def place(self, request: Request) -> int | None:
        """Requests ahead; None when this one does not wait."""
        ahead = self._places.ahead(request, self._now())
        return None if ahead is None else ahead.place

    def wait(self, request: Request) -> float | None:
        """Seconds; None when it does not wait, or before any measurement."""
        ahead = self._places.ahead(request, self._now())
        return None if ahead is None else self._seconds(ahead, self._find_held())

    def expect(self, request: Request, before: QueueAhead = QueueAhead()) -> Expected:  # noqa: B008 - frozen
        """For a request not yet in the queue, nor those `before` it in its call; promises what was asked for if it can,
        even by going first."""
        in_turn = self._expect(request, self._waiting.ahead(request, self._now()), before)
        by = request.promised
        if by is None or not in_turn.known:
            return in_turn
        if in_turn.by <= by:
            return replace(in_turn, high=by - in_turn.at)
        asked = self._waiting.order.ahead_of_asked(request) if in_turn.waits and not before.place else None
        if asked is None:
            return in_turn
        first = self._expect(request, asked, before, first=True)
        if first.by > by:
            return first if first.by < in_turn.by else in_turn
        return replace(first, high=by - first.at, first=True, group=None)

    def _expect(
        self,
        request: Request,
        ahead: QueueAhead,
        before: QueueAhead,
        coverage: float | None = None,
        *,
        first: bool = False,
    ) -> Expected:
        """`first`: none else passes it."""
        now, total, held = self._now(), self._waiting.total(), self._find_held()
        if before.place:
            ahead, total = (each.and_all(before) for each in (ahead, total))
        waits = total.place >= held.free
        alone = not self._rows() and ahead.place <= before.place
        wait, seconds = self._seconds(ahead, held), self._token_seconds(ahead, held, alone)
        if wait is None or seconds is None:
            return Expected(now, ahead.place, wait, waits=waits)
        middle, high = self._lengths(request)
        own = max(LEAST_SECONDS, self._entry_seconds(request, ahead, held, wait) + middle * seconds)
        point = own + (wait if first else wait / (1 - self._waiting.order.share))
        most = point + max(0.0, request.sampling.max_tokens - middle) * seconds
        lengths = log(max(1.0, high / max(middle, 1.0)))
        prompts, slower = (0.0, 0.0) if alone else self._others(request, seconds, ahead, held)
        spread, own_spread = (spread_of(each, own, lengths, prompts + middle * slower) for each in (point, own))
        sure = spread_of(most, own + most - point, 0.0, prompts + request.sampling.max_tokens * slower)
        in_all = self._seconds(total, held) if ahead.place >= held.free and not first else None
        share = wait / in_all if in_all else NEXT if first else ALONE if alone else NO_WAIT
        limited = middle >= request.sampling.max_tokens
        group = None if request.in_background else self._calibration.find_group(middle, share, limited=limited)
        scores = self._calibration.find_scores(group, now, coverage or request.coverage)
        low, median, promise = (
            min(FARTHEST, point * exp(min(WIDEST, spread * score)), most * exp(min(WIDEST, sure * score)))
            for score in scores
        )  # no end is farther than that of an answer that `max_tokens` surely ends
        if wait:  # scores share the error of the mean length
            longer = self._speed.sum_quantile(ahead.place, coverage or request.coverage)
            promise = max(promise, min(FARTHEST, own + wait * longer))
        known = self._calibration.answers
        return Expected(
            now, ahead.place, wait, own, point, spread, own_spread, low, median, promise, group, waits, answers=known
        )

    def _others(self, request: Request, seconds: float, ahead: QueueAhead, held: HeldRows) -> tuple[float, float]:
        """Seconds once, and a token, if free slots fill with prompts like this or those held or of late; as long again
        without prices.
        """
        busy, rows, prices = min(BUSY, held.slots), held.slots - held.free + ahead.place + 1, held.prices
        if rows >= busy:
            return 0.0, 0.0
        if not prices.fixed_seconds:
            return 0.0, seconds
        prompt = prices.unit * max(prices.read_work(request.unread), held.unread / rows)
        slower = (self._speed.seconds_per_token(busy) or seconds) - seconds
        return (busy - rows) * max(prompt, self._speed.prompt_seconds), max(0.0, slower)

    def tell_again(self, request: Request) -> bool:
        """True if a waiting request's promise is now nearer by more than a part of what was left of it."""
        told, now = request.expected, self._now()
        if told is None or request.state is not State.WAITING:
            return False
        coverage = (1 + request.coverage) / 2
        ranked = self._places.ahead(request, now) or QueueAhead()  # credit may be spent that paid for its place
        ahead = max(self._waiting.ahead(request, now), ranked, key=attrgetter("place"))
        again = self._expect(request, ahead, QueueAhead(), coverage)  # the least of several breaks more often
        nearer = again.known and again.by - now < NEARER * (told.by - now)
        if nearer:
            high = again.by - told.at
            request.expected = replace(told, low=min(told.low, high), median=min(told.median, high), high=high)
        return nearer

    def retry_after(self) -> float:
        """Seconds, 1 at least, until all waiting requests have started."""
        return max(1.0, self._seconds(self._waiting.total(), self._find_held()) or 0.0)

    def explain(self, request: Request) -> Explanation | None:
        """None when it does not wait. Looks at the front of the queue only."""
        now = self._now()
        before = self._places.ahead(request, now)
        if before is None:
            return None
        ahead = tuple(islice(takewhile(lambda one: one is not request, self._waiting.ranked(now)), FRONT))
        count = len(ahead) if len(ahead) < FRONT else max(FRONT, before.place)
        work = self._waiting.order.passed_by(before)
        passed_for = None if work is None else work * self._prices().unit / max(1, len(self._live()))
        return Explanation(
            self._strategy, count, ahead, Counter(find_reason(one, request) for one in ahead), passed_for
        )

    def load(self) -> NodeLoad:
        if (now := self._now()) - self._load.at >= FRESH:
            waiting, length = self._waiting.total(), self._speed.mean_length
            self._load = report_load(now, self._workers, self._prices(), waiting, length)
        return self._load

    def _lengths(self, request: Request) -> tuple[float, float]:
        """Median and high end, of too few answers the longest allowed."""
        known, most = request.distribution, request.sampling.max_tokens
        if known is not None:
            middle, high = (min(most, request.correction * one) for one in likely_quantiles(request, 0.5, COVERAGE))
            return middle, most if known.answers < FEWEST_KNOWN else high
        middle = remaining_length(request, self._speed.uncut_length)
        is_guess = request.predicted_length is None and self._speed.answers < FEWEST_KNOWN
        return middle, most if is_guess else min(most, middle * UNKNOWN_FACTOR)

    def _token_seconds(self, ahead: QueueAhead, held: HeldRows, alone: bool) -> float | None:
        rows = self._rows() + ahead.place + 1 if ahead.place < held.free else self._usual_rows()
        return self._speed.seconds_per_token(rows, paused=not alone)

    def _seconds(self, ahead: QueueAhead, held: HeldRows) -> float | None:
        if ahead.place < held.free:
            return 0.0
        rows, work = self._usual_rows(), self._work_of(ahead)
        seconds = self._speed.seconds_per_step(rows)
        if seconds is None or not rows or work is None:
            return None
        return held.until_taken(ahead.place, work) * seconds + held.prices.unit * held.unread

    def _iteration_seconds(self, rows: float, cells: float | None = None) -> float:
        """On all executors, by the machine's prices; 0 while unknown."""
        held = self._find_held()
        live = len(self._serving or ())  # found with it
        if not held.prices.fixed_seconds or not live:
            return 0.0
        return held.prices.seconds_per_token(rows / live, held.slots / live, held.tokens if cells is None else cells)

    def _entry_seconds(self, request: Request, ahead: QueueAhead, held: HeldRows, wait: float) -> float:
        """`wait` until it is staged, or takes a slot."""
        prices = held.prices
        own = prices.read_work(request.unread)
        if ahead.place < held.free:
            return prices.unit * (own + held.unread + prices.read_work(ahead.unread, ahead.place))
        if not held.staged:
            return prices.unit * own
        work, seconds = self._work_of(ahead) or 0.0, self._speed.seconds_per_step(self._usual_rows()) or 0.0
        until_slot = held.until_taken(ahead.place, work, slot=True) * seconds + prices.unit * held.unread
        return max(until_slot - wait, prices.unit * own)

    def _work_of(self, ahead: QueueAhead) -> float | None:
        """None without a prediction or any answer."""
        typical = self._speed.mean_length
        if typical is None and ahead.unpredicted:
            return None
        return ahead.tokens + ahead.unpredicted * (typical or 0.0) + self._prices().read_work(ahead.unread, ahead.place)

    def _find_held(self) -> HeldRows:
        if self._held is None:
            live = self._live()
            requests = [request for worker in live for request in worker.requests.values()]
            slots, typical = sum(worker.port.info.max_rows for worker in live), self._speed.mean_length
            self._held = HeldRows.of(requests, slots, self._prices(), typical, stuck=self._stuck)
        return self._held

    def _observe(self, made: Made = Made()) -> None:  # noqa: B008 - frozen
        held = [request for worker in self._workers for request in worker.requests.values()]
        cells = sum(len(request.prompt) + request.generated for request in held)
        self._speed.observe(Holding(len(held), sum(map(generates, held)), cells), self._now(), made)

    def _live(self) -> list[Worker]:
        if self._serving is None:
            self._serving = [worker for worker in self._workers if worker.serves]
        return self._serving

    def _usual_rows(self) -> int:
        return sum(worker.rows for worker in self._live()) if self._stuck else self._find_held().slots

    def _rows(self) -> int:
        return sum(worker.rows for worker in self._workers)
