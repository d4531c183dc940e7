"""One request of a run: its prompt, path and body, made before the run so that the run only sends, and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeAlias

import orjson

from models.errors import UserError


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and the number of tokens asked for; either `messages` or `tokens` is given."""

    messages: tuple[Mapping[str, str], ...] = ()
    """Chat messages."""
    tokens: tuple[int, ...] = ()
    """A raw completion prompt as token ids."""
    follow_ups: tuple[str, ...] = ()
    """The user's further turns, each sent once the one before has been answered; for chat messages only."""
    max_tokens: int | None = None
    replay_tokens: int | None = None
    """Length that the server shall generate; needs a server that was started with --allow-replay."""
    arrival: float = 0.0
    """When a trace has it, in seconds after the start."""
    label: str = ""
    """The task or trace that it comes from."""


Clock: TypeAlias = Callable[[], float]
"""The seconds since the start of a run."""

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """One request, ready to be sent."""

    index: int
    path: str
    body: bytes
    due: float = 0.0
    """When to send it, in seconds after the start."""
    label: str = ""
    cancel_after: float | None = None
    """Seconds after sending when the client leaves; None lets it stay."""
    turn: int = 1
    """Place of the request in its conversation, from 1."""
    follow_up: Callable[[str, float], PreparedRequest] | None = None
    """Makes the conversation's next request of this one's answer and when it is due; None when it is the last."""


@dataclass(frozen=True, slots=True)
class RequestForm:
    """The model, endpoint and fields that all requests of a run have in common."""

    model: str
    endpoint: str | None = None
    """Path of the API; None takes the one that goes with each prompt."""
    fields: Mapping[str, object] = field(default_factory=dict)
    """Further fields of the body; they win over a prompt's own."""

    def fill(
        self, prompt: Prompt, index: int, due: float = 0.0, cancel_after: float | None = None, turn: int = 1
    ) -> PreparedRequest:
        """The request for a prompt; those that follow it have the next indices. Raises UserError."""
        kind, fitting = ("chat messages", CHAT) if prompt.messages else ("token ids", COMPLETIONS)
        path = self.endpoint or fitting
        if ("chat" in path) != (fitting == CHAT):
            raise UserError(f"this workload's prompts are {kind}, which need --endpoint {fitting}")
        asked = {"messages": prompt.messages} if prompt.messages else {"prompt": prompt.tokens}
        lengths = {"max_tokens": prompt.max_tokens, "replay_tokens": prompt.replay_tokens}
        body = {
            "model": self.model,
            **asked,
            **{name: value for name, value in lengths.items() if value is not None},
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.fields,
        }
        follow_up = partial(self._follow_up, prompt, index, turn) if prompt.follow_ups else None
        return PreparedRequest(index, path, orjson.dumps(body), due, prompt.label, cancel_after, turn, follow_up)

    def _follow_up(self, prompt: Prompt, index: int, turn: int, answer: str, due: float) -> PreparedRequest:
        said, *later = prompt.follow_ups
        messages = (
            *prompt.messages,
            {"role": "assistant", "content": answer},
            {"role": "user", "content": said},
        )
        return self.fill(replace(prompt, messages=messages, follow_ups=tuple(later)), index + 1, due, turn=turn + 1)


@dataclass(frozen=True, slots=True)
class Foretold:
    """The end of an answer as a server expected it, in seconds after the request came."""

    low: float
    median: float
    high: float


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


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request, from the time when it was due to its end."""

    request: PreparedRequest
    status: Status
    sent: float
    """When it went out: later than due when a concurrency limit or a busy client held it back."""
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
    foretold: Foretold | None = None
    """When the server expected the answer's end as the request came, where it reports that."""
    failure: Failure | None = None
    text: str = ""
    """The text of the answer."""

    @property
    def scheduled(self) -> float:
        """When it was due. What a user waits counts from here, however late the client was."""
        return self.request.due

    @property
    def completed(self) -> bool:
        return self.status == "completed"
