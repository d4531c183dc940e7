"""Status of a call for GET /v1/requests, without prompt or answer."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from operator import itemgetter

import msgspec

from scheduler.dispatcher import Dispatcher
from scheduler.length.likely import median_length
from scheduler.request import Request, State
from scheduler.wait_estimate.places import Reason
from server.api.output.reply import Expectation, Metrics, predicted_tokens

OWN_NAMED = 5  # named in an explanation


class CallState(StrEnum):
    """Where a call, or one of its answers, is in its life."""

    ARRIVED = "arrived"  # not in line yet
    WAITING = "waiting"  # or with an executor that has not begun it
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"  # by id, or the client left
    FAILED = "failed"


class ChoiceStatus(msgspec.Struct, frozen=True):
    """One of the answers of a call; `place` and `expected_wait_s` as of the call."""

    index: int
    state: CallState
    place: int | None
    expected_wait_s: float | None
    predicted_tokens: float | None
    generated_tokens: int


class WaitReason(msgspec.Struct, frozen=True):
    """Why a call that is in line waits.

    `ahead` counts the requests before its first; each is there because it has a better priority, came earlier, or is
    put first by the strategy's order or its deadline. `own_ahead` are the first calls of the same caller among them.
    Requests that come from now on may go first for `passed_for_s` seconds of full load at most, but for those of better
    priority or due by a deadline; null where the strategy has no such bound.
    """

    strategy: str
    ahead: int
    better_priority: int
    came_earlier: int
    put_first: int
    own_ahead: list[str]
    passed_for_s: float | None


class RequestStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One call.

    `id` is its answer's where there is no `answer_id`, `request_id` that of its X-Request-Id header, `caller` the first
    eight digits of its API key's SHA-256, null without keys. `place` is 1 for the next to start, and null for what is
    not in line; `expected_wait_s` is null too where nothing has been measured yet. `age_s` is from its arrival to its
    end, or till now; `created` is in seconds since 1970. Token counts are of all choices together.
    `estimate` is what was expected of it when it came, null before it is in line. `waits_for` is there with
    `explain=1`, and null for what is not in line.
    """

    id: str
    object: str = "request"
    answer_id: str | msgspec.UnsetType = msgspec.UNSET
    request_id: str
    caller: str | None
    endpoint: str
    model: str
    created: int
    stream: bool
    state: CallState
    place: int | None
    expected_wait_s: float | None
    age_s: float
    prompt_tokens: int
    max_tokens: int
    generated_tokens: int
    metrics: Metrics
    estimate: Expectation | None
    choices: list[ChoiceStatus]
    waits_for: WaitReason | None | msgspec.UnsetType = msgspec.UNSET


class RequestList(msgspec.Struct, frozen=True):
    """Calls, the latest first."""

    data: list[RequestStatus]
    object: str = "list"


def find_place(requests: Iterable[Request], dispatcher: Dispatcher) -> tuple[int | None, float | None]:
    """The earliest place, and its expected wait in seconds; None once all have started."""
    place, first = _first(requests, dispatcher)
    if place is None or first is None:
        return None, None
    wait = dispatcher.waits.wait(first)
    return place + 1, None if wait is None else round(wait, 3)


def _first(requests: Iterable[Request], dispatcher: Dispatcher) -> tuple[int | None, Request | None]:
    """With its place from 0; None once all have started."""
    places = [(place, request) for request in requests if (place := dispatcher.waits.place(request)) is not None]
    return min(places, key=itemgetter(0), default=(None, None))


def explain_wait(requests: Iterable[Request], own: Mapping[Request, str], dispatcher: Dispatcher) -> WaitReason | None:
    """None for one that does not wait; `own` maps the caller's requests to call ids."""
    # Explain one only: a call may have hundreds.
    _, next_ = _first(requests, dispatcher)
    first = None if next_ is None else dispatcher.waits.explain(next_)
    if first is None:
        return None
    own_ahead = dict.fromkeys(own[one] for one in first.ahead if one in own)
    better, earlier, put_first = (first.reasons[reason] for reason in Reason)
    passed_for = None if first.passed_for is None else round(first.passed_for, 3)
    named = [*islice(own_ahead, OWN_NAMED)]
    return WaitReason(first.strategy, first.count, better, earlier, put_first, named, passed_for)


def choice_of(index: int, request: Request, dispatcher: Dispatcher) -> ChoiceStatus:
    place, wait = find_place((request,), dispatcher)
    # handed back between slices
    state = CallState.WAITING if request.state is State.ASSIGNED else CallState(request.state)
    return ChoiceStatus(index, state, place, wait, median_length(request), request.generated)


def call_state(requests: Sequence[Request]) -> CallState:
    """RUNNING while one of its answers does."""
    if not requests:
        return CallState.ARRIVED
    states = {request.state for request in requests}
    if all(state.is_final for state in states):
        worst = (State.FAILED, State.CANCELLED, State.FINISHED)
        return CallState(next(state for state in worst if state in states))
    return CallState.RUNNING if State.RUNNING in states else CallState.WAITING


def measure(requests: Sequence[Request]) -> Metrics:
    """Milliseconds from arrival to start and to first token, and from there to the end."""
    times = [request.times for request in requests]
    arrival = min(each.came for each in times)
    started = min((each.started for each in times if each.started is not None), default=None)
    first = min((each.first_token for each in times if each.first_token is not None), default=None)
    ends = [each.end for each in times if each.end is not None]
    end = max(ends) if len(ends) == len(times) else None
    times_ms = _milliseconds(arrival, started), _milliseconds(arrival, first), _milliseconds(first, end)
    return Metrics(*times_ms, predicted_tokens(requests))


def _milliseconds(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round((end - start) * 1000, 3)
