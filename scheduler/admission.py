"""Whether newcomers fit: their ends, deadlines and promises."""

from collections.abc import Callable, Iterable, Sequence

from scheduler.request import Request, Times, TooLate, Unpromised
from scheduler.request_table import RequestTable
from scheduler.submission import Submission
from scheduler.wait_estimate.calibration import promise_together
from scheduler.waiting.sorted_requests import QueueAhead

ROUNDING = 1e-6  # seconds

KeptPrefix = Callable[[Sequence[int], str, float], int]  # (prompt, scope, seconds to stay) -> cached tokens

NO_ROW = 2**63 - 1  # an estimate's row


class Admission:
    def __init__(self, table: RequestTable, now: Callable[[], float], kept_prefix: KeptPrefix | None) -> None:
        self._table = table
        self._now = now
        self._kept_prefix = kept_prefix

    def promise_all(self, requests: Sequence[Request]) -> None:
        """One end for all. Raises TooLate and Unpromised."""
        for request in requests:
            told, deadline = request.expected, request.deadline
            if told is None or deadline is None or not (self._table.held or told.place):
                continue  # unknown, or nothing else is to do
            if self._now() + told.median > deadline:
                raise TooLate(waits=told.waits)
        by = promise_together(requests)
        if any(one.promised is not None and (by is None or by - one.promised > ROUNDING) for one in requests):
            raise Unpromised(by)

    def estimate_all(self, answers: Iterable[Submission], *, since: float | None = None) -> list[Request]:
        """As if they came now, each behind those before it."""
        requests, before = list[Request](), QueueAhead()
        for prompt, sampling, known in answers:
            request = Request(NO_ROW, tuple(prompt), sampling, Times(arrival=self._now()), **known)
            request.times.arrival = request.times.arrival if since is None else since
            request.correction = self._table.correct(request)
            if self._kept_prefix is not None:
                request.cached_prompt = self._kept_prefix(request.prompt, request.cache_scope, 0.0)
            request.expected = self._table.waits.expect(request, before)
            before = before.and_one(request)
            requests.append(request)
        return requests
