"""A request, prepared so that the run only sends, and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import orjson

from models.errors import UsageError


@dataclass(frozen=True, slots=True)
class LoadPrompt:
    """Either `messages` or `tokens`."""

    messages: tuple[Mapping[str, str], ...] = ()
    tokens: tuple[int, ...] = ()  # ids of a completion's prompt
    follow_ups: tuple[str, ...] = ()  # the user's further turns; chats only
    max_tokens: int | None = None
    replay_tokens: int | None = None  # length to generate; needs --allow-replay
    arrival: float = 0.0  # seconds after a trace's start
    label: str = ""  # of the task or trace
    answers: tuple[int, ...] = ()  # lengths of those to `follow_ups`
    pauses: tuple[float, ...] = ()  # seconds before these


PROGRAMS = "programs"  # label of agents' runs

Clock = Callable[[], float]  # seconds since the run's start

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    index: int
    path: str
    body: bytes
    due: float = 0.0  # seconds after the start
    label: str = ""
    cancel_after: float | None = None  # seconds after sending when the client leaves
    turn: int = 1  # in its conversation, from 1
    pause: float | None = None  # seconds between its answer and the next; None: all conversations'
    follow_up: Callable[[str, float], PreparedRequest] | None = None  # (answer, due) -> the conversation's next request


@dataclass(frozen=True, slots=True)
class RequestForm:
    """What all requests of a run share."""

    model: str
    endpoint: str | None = None  # path; None: the prompt's own
    fields: Mapping[str, object] = field(default_factory=dict)  # of the body; win over a prompt's

    def fill(
        self, prompt: LoadPrompt, index: int, due: float = 0.0, cancel_after: float | None = None, turn: int = 1
    ) -> PreparedRequest:
        """Follow-ups get the next indices. Raises UserError."""
        kind, fitting = ("chat messages", CHAT) if prompt.messages else ("token ids", COMPLETIONS)
        path = self.endpoint or fitting
        if ("chat" in path) != (fitting == CHAT):
            raise UsageError(f"this workload's prompts are {kind}, which need --endpoint {fitting}")
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
        pause = next(iter(prompt.pauses), None)
        return PreparedRequest(index, path, orjson.dumps(body), due, prompt.label, cancel_after, turn, pause, follow_up)

    def _follow_up(self, prompt: LoadPrompt, index: int, turn: int, answer: str, due: float) -> PreparedRequest:
        said, *later = prompt.follow_ups
        messages = (*prompt.messages, {"role": "assistant", "content": answer}, {"role": "user", "content": said})
        going_on = replace(prompt, messages=messages, follow_ups=tuple(later), pauses=prompt.pauses[1:])
        if prompt.answers:
            length, *answers = prompt.answers
            most, replayed = (length, None) if prompt.replay_tokens is None else (prompt.max_tokens, length)
            going_on = replace(going_on, answers=tuple(answers), max_tokens=most, replay_tokens=replayed)
        return self.fill(going_on, index + 1, due, turn=turn + 1)


@dataclass(frozen=True, slots=True)
class Foretold:
    """Seconds after arrival when a server expected the answer's end."""

    low: float
    median: float
    high: float


# rejected: 429 or 503; cancelled: by this client
Status = Literal["completed", "failed", "rejected", "cancelled"]

# no connection; cut stream; silence; status other than 200; error event; unreadable
ErrorKind = Literal["connection", "closed", "timeout", "http", "server", "protocol"]


@dataclass(frozen=True, slots=True)
class RequestFailure:
    kind: ErrorKind
    message: str
    http_status: int | None = None


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    request: PreparedRequest
    status: Status
    sent: float  # later than due where a concurrency limit or a busy client held it back
    token_times: tuple[float, ...]  # one a chunk with output
    end: float  # last output, or when it was given up
    output_tokens: int  # the server's count, else chunks
    prompt_tokens: int | None = None
    cached_tokens: int = 0  # by the server's account
    counted: bool = True  # whether the server counted tokens
    queue_time: float | None = None  # seconds, if reported
    foretold: Foretold | None = None  # if reported
    failure: RequestFailure | None = None
    text: str = ""

    @property
    def scheduled(self) -> float:
        """When it was due: a user's wait counts from here."""
        return self.request.due

    @property
    def completed(self) -> bool:
        return self.status == "completed"
