"""Whether newcomers fit: their ends, deadlines and promises."""

from collections.abc import Callable, Iterable, Sequence

from engine.sampling.params import SamplingParams
from scheduler.request import Request, Times, TooLate, Unpromised
from scheduler.request_table import RequestTable
from scheduler.submission import Known, Submission
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
            if request.deadline is not None and not self._can_meet(request, request.deadline):
                raise TooLate(waits=request.expected is not None and request.expected.waits)
        by = promise_together(requests)
        if any(one.promised is not None and (by is None or by - one.promised > ROUNDING) for one in requests):
            raise Unpromised(by)

    def estimate_all(self, answers: Iterable[Submission], *, since: float | None = None) -> list[Request]:
        """As if they came now, each behind those before it."""
        requests, before = list[Request](), QueueAhead()
        for prompt, sampling, known in answers:
            if requests:
                before = before.and_one(requests[-1])
            requests.append(self._estimate(prompt, sampling, known, since, before))
        return requests

    def _estimate(
        self, prompt: Sequence[int], sampling: SamplingParams, known: Known, since: float | None, before: QueueAhead
    ) -> Request:
        request = Request(NO_ROW, tuple(prompt), sampling, Times(arrival=self._now()), **known)
        request.times.arrival = request.times.arrival if since is None else since
        request.correction = self._table.correct(request)
        if self._kept_prefix is not None:
            request.cached_prompt = self._kept_prefix(request.prompt, request.cache_scope, 0.0)
        request.expected = self._table.waits.expect(request, before)
        return request

    def _can_meet(self, request: Request, by: float) -> bool:
        """By its end's calibrated median; True if unknown, or nothing else is to do."""
        expected = request.expected
        if expected is None or not (self._table.held or expected.place):
            return True
        return self._now() + expected.median <= by
