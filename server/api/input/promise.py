"""Promises in a body or a header, and moments as clients read them."""

import time
from collections.abc import Mapping

import msgspec

from scheduler.request import COVERAGE
from scheduler.submission import Known
from scheduler.wait_estimate.expected_wait import FARTHEST
from server.api.errors import bad_request, invalid
from server.api.input.schema import Promise
from server.api.output.reply import write_time

HEADER = "x-lengthwise-promise"  # request header with the field's JSON


def read_header(headers: Mapping[str, str]) -> Promise | None:
    """None without; raises ApiError 400."""
    if HEADER not in headers:
        return None
    try:
        return msgspec.json.decode(headers[HEADER], type=Promise)
    except UnicodeError:
        raise invalid(HEADER, "must be JSON in UTF-8") from None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise invalid(HEADER, f'must be JSON such as {{"within_ms": 5000}}: {error}') from None


def ask_for(promise: Promise, arrival: float, now: float) -> Known:
    """On the dispatcher's clock; raises ApiError 400."""
    if (promise.by is None) == (promise.within_ms is None):
        raise invalid("promise", "give either by or within_ms")
    if promise.by is not None:
        promised = now + promise.by.timestamp() - time.time()
        if promised <= now:
            raise bad_request(f"promise.by: is in the past: it is {write_time(0)} here", "promise.by")
    else:
        promised = arrival + (promise.within_ms or 0.0) / 1000
    if promised > now + FARTHEST:
        raise invalid("promise", f"must be within {FARTHEST / 86400:.0f} days")
    return Known(promised=promised, coverage=COVERAGE if promise.coverage is None else promise.coverage)
