"""The outcome of one request. Times are seconds after the start of the run. Knows no HTTP and no statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Foretold:
    """The end of an answer as a server expected it, in seconds after the request came."""

    low: float
    median: float
    high: float
    wait: float = 0.0
    """Seconds of these before it was expected to start."""
    tokens: float | None = None
    """Length of the answer that was expected."""

    def with_length(self, tokens: int) -> float | None:
        """The median had the length been known: what comes after the wait, as many times longer."""
        return self.wait + (self.median - self.wait) * tokens / self.tokens if self.tokens else None


Status: TypeAlias = Literal["completed", "failed", "rejected", "cancelled"]
"""Rejected: the server said that it has too much to do (429 or 503). Cancelled: this client left on purpose."""

ErrorKind: TypeAlias = Literal["connection", "closed", "timeout", "http", "server", "protocol"]
"""No connection; a stream that ended early; silence; a status other than 200; an error event; no readable answer."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request did not complete."""

    kind: ErrorKind
    message: str
    http_status: int | None = None
    retry_after: float | None = None
    """Seconds that the server asks to wait."""

    @property
    def rejected(self) -> bool:
        """Whether the server turned the request away because of load: OpenAI says 429, vLLM and SGLang 503."""
        return self.kind == "http" and self.http_status in (429, 503)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request, from the time when it was due to its end."""

    index: int
    status: Status
    scheduled: float
    """When it was due. What a user waits counts from here, however late the client was."""
    sent: float
    """When it went out: later than scheduled when a concurrency limit or a busy client held it back."""
    token_times: tuple[float, ...]
    """When each chunk with output arrived; a chunk may hold several tokens."""
    end: float
    """Completed: the arrival of the last output; otherwise when the request was given up."""
    output_tokens: int
    """Tokens that the server counted, else the number of chunks with output."""
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    """Tokens of the prompt that the server had kept from earlier ones, as it says."""
    counted: bool = True
    """Whether the server reported token counts."""
    queue_time: float | None = None
    """Seconds in the server's queue, where it reports that."""
    predicted_tokens: float | None = None
    """The length that the server predicted for the answer, where it reports that."""
    foretold: Foretold | None = None
    """When the server expected the answer's end as the request came, where it reports that."""
    failure: Failure | None = None
    label: str = ""
    turn: int = 1
    """Place of the request in its conversation, from 1."""
    text: str = ""
    """The text of the answer, where the run keeps it."""

    @property
    def completed(self) -> bool:
        return self.status == "completed"
