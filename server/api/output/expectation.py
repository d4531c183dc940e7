"""The estimate of a call, as the API tells it: tokens, place in line, and when it will start and end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from aiohttp import web

from scheduler.request import Request
from scheduler.wait_estimate.expected_wait import length_interval

SHORT_FORM: web.RequestKey[Mapping[str, str]] = web.RequestKey("short_form")
"""Where a call keeps what is expected of it, for the headers of its response."""


class Interval(msgspec.Struct, frozen=True):
    """A median, and the ends of an interval that holds nine of ten; null where only the median is known."""

    median: float
    low: float | None
    high: float | None


class Expectation(msgspec.Struct, frozen=True):
    """The estimate of a call from when it came, or as if it came now; `place` is 1 for the next to start.

    Seconds are from that moment on, until the first of its answers starts, and until the last is complete; null where
    nothing has been measured yet. Tokens are those of all its answers; null where no length is predicted.
    """

    prompt_tokens: int
    cached_tokens: int
    predicted_tokens: Interval | None
    place: int | None
    expected_wait_s: float | None
    expected_completion_s: Interval | None


def expectation_of(requests: Sequence[Request]) -> Expectation:
    """The estimate of a call of at least one request, from those that its requests were given when they came."""
    prompts = {id(request.prompt): request for request in reversed(requests)}.values()
    expected = [request.expected for request in requests if request.expected is not None]
    first = min(expected, key=lambda one: one.place, default=None)
    known = [one for one in expected if one.known]
    ends = [max(values) for values in zip(*((one.median, one.low, one.high) for one in known), strict=True)]
    return Expectation(
        prompt_tokens=sum(request.input_length for request in prompts),
        cached_tokens=sum(request.cached_prompt for request in prompts),
        predicted_tokens=_tokens(requests),
        place=None if first is None else first.place + 1,
        expected_wait_s=None if first is None or first.wait is None else round(first.wait, 3),
        expected_completion_s=Interval(*(round(end, 3) for end in ends)) if len(known) == len(requests) else None,
    )


def _tokens(requests: Sequence[Request]) -> Interval | None:
    told = [interval for request in requests if (interval := length_interval(request)) is not None]
    if len(told) == len(requests):
        low, median, high = (round(sum(values), 1) for values in zip(*told, strict=True))
        return Interval(median, low, high)
    known = [request.predicted_length for request in requests if request.predicted_length is not None]
    return Interval(round(sum(known), 1), None, None) if len(known) == len(requests) else None


def headers_of(told: Expectation) -> Mapping[str, str]:
    """The short form, for the response's headers."""
    tokens, end = told.predicted_tokens, told.expected_completion_s
    values = {
        "x-lengthwise-place": told.place,
        "x-lengthwise-predicted-tokens": None if tokens is None else round(tokens.median),
        "x-lengthwise-expected-wait-ms": None if told.expected_wait_s is None else round(told.expected_wait_s * 1000),
        "x-lengthwise-expected-completion-ms": None if end is None else round(end.median * 1000),
    }
    return {name: str(value) for name, value in values.items() if value is not None}
