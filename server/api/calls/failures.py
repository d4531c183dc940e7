"""Errors of the API for requests that the scheduler gave up."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from scheduler.request import Failure
from server.api.errors import ApiError

_ERRORS: Mapping[Failure | None, tuple[int, str]] = MappingProxyType(
    {
        Failure.SHUTDOWN: (503, "server_shutting_down"),
        Failure.EXECUTOR: (503, "executor_failed"),
        Failure.SCHEDULER: (500, "scheduler_failed"),
        Failure.DEADLINE: (504, "deadline_exceeded"),
        None: (500, "generation_failed"),
    }
)
"""Status and code. 504 for a deadline: the request was fine and came whole, which rules out 408, but nothing came of it
in the time that was given.
"""


def failure_error(failure: Failure | None, message: str) -> ApiError:
    """The error that a request ends with, or is refused with; None where its own row failed."""
    status, code = _ERRORS[failure]
    return ApiError(status, message, code=code, close=failure is Failure.SHUTDOWN)


def shutting_down() -> ApiError:
    """Status 503 for what comes while the server drains; its connection ends, so that the next one goes elsewhere."""
    return failure_error(Failure.SHUTDOWN, "the server is shutting down")
