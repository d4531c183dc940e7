"""A backend's faults in a row, and the rest that it gets for them."""

import os
import ssl
import time
from dataclasses import dataclass

import aiohttp

REFUSED = frozenset({429, 503, 529})  # statuses of a call that was not begun
FAULTS = REFUSED | {502, 504}
TIMED_OUT, TOO_MANY = 408, 429  # the only statuses below 500 that may be its fault
EJECTED = 3  # errors in a row from which on any is the backend's fault
REST, LONGEST = 1.0, 30.0  # seconds of the first rest, each next one is twice as long, and most of one


def explain(error: BaseException) -> str:
    """Why a backend does not answer, in plain words; empty where it has none."""
    if not isinstance(error, aiohttp.ClientConnectorError):
        return str(error)
    cause, number = error.os_error, error.os_error.errno or 0
    plain = number > 0 and not isinstance(cause, ssl.SSLError)
    reason = os.strerror(number) if plain else cause.strerror or cause
    return f"cannot connect to {error.host}:{error.port}: {reason}"


@dataclass(slots=True)
class Health:
    errors: int = 0  # since the last good answer
    breaks: int = 0  # answers broken off since the last whole one
    rests: int = 0
    until: float = 0.0  # end of the rest, by time.monotonic
    tried: bool = False  # gets one call at a time until one is answered
    silent: bool = False  # faulty as nothing came, so it is asked for its models first

    def note(self, status: int) -> bool:
        """Whether an answer's status is the backend's fault rather than the call's."""
        if status < 500 and status not in (TIMED_OUT, TOO_MANY):
            self.errors, self.rests, self.tried = 0, self.rests if self.breaks else 0, False
            return False
        self.errors += 1
        return status in FAULTS or self.errors >= EJECTED

    def note_end(self, *, broken: bool) -> bool:
        """Of a good answer; whether the backend is at fault."""
        self.breaks = self.breaks + 1 if broken else 0
        return self.breaks >= EJECTED

    def rest(self, retry_after: str | None) -> None:
        """`retry_after`: the header, whole seconds only; None without an answer."""
        asked = float(retry_after) if retry_after and retry_after.isascii() and retry_after.isdecimal() else 0.0
        self.until = time.monotonic() + min(LONGEST, max(asked, REST * 2 ** min(self.rests, 8)))
        self.rests, self.tried, self.silent = self.rests + 1, True, retry_after is None
