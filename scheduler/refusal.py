"""Why a request is not taken in."""

from __future__ import annotations

from scheduler.request import Failure


class Refused(Exception):
    """The server takes no new requests; the message says why."""

    def __init__(self, message: str, failure: Failure = Failure.SHUTDOWN) -> None:
        super().__init__(message)
        self.failure = failure


class TooLate(Refused):
    """A request's deadline cannot be met, by what the queue is expected to take."""

    def __init__(self) -> None:
        super().__init__("the answer cannot be ready by its deadline: too much waits before it", Failure.DEADLINE)
