"""Where the time of a call went, and what was foreseen of it: from the timestamps of its requests."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.request import Request
from server.api.output.reply import Metrics


def measured(requests: Sequence[Request]) -> Metrics:
    """Milliseconds from the arrival of a call, at least one request, to its first start, to its first token; and from
    there to its end."""
    times = [request.times for request in requests]
    arrival = min(each.arrival for each in times)
    started = min((each.started for each in times if each.started is not None), default=None)
    first = min((each.first_token for each in times if each.first_token is not None), default=None)
    ends = [each.end for each in times if each.end is not None]
    end = max(ends) if len(ends) == len(times) else None
    times_ms = _milliseconds(arrival, started), _milliseconds(arrival, first), _milliseconds(first, end)
    return Metrics(*times_ms, predicted_tokens(requests))


def predicted_tokens(requests: Sequence[Request]) -> float | None:
    """Of all answers together, as usage counts them; None where nobody predicts."""
    known = [request.predicted_length for request in requests if request.predicted_length is not None]
    return round(sum(known), 1) if len(known) == len(requests) else None


def _milliseconds(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round((end - start) * 1000, 3)
