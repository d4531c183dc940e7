"""The content of one streamed answer so far, from server-sent events that arrive in any pieces. Bytes and times are
handed in; it knows no connection and no clock.

Of server-sent events it reads what the OpenAI API sends, where an event is one line `data: JSON`; no others count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from loadgen.client.request import Failure, Foretold


class RequestError(Exception):
    """A request failed; carries the reason."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Delta(msgspec.Struct):
    """The addition of one chat chunk. A chunk that tells only the role has no output."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class Choice(msgspec.Struct):
    """A chunk of an answer: `delta` in chats, `text` in completions."""

    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct):
    """Tokens of the prompt that a server did not read again."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """Token counts, which a server gives in its last event or in every one."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Estimate(msgspec.Struct):
    """What a server expected of a request when it came."""

    expected_completion_s: Foretold | None = None


class Metrics(msgspec.Struct):
    """Times and predictions that a server reports about its own work."""

    queue_time_ms: float | None = None
    estimate: Estimate | None = None


class Event(msgspec.Struct):
    """One event of a stream, as far as it matters here."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    metrics: Metrics | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


DECODER = msgspec.json.Decoder(Event)


@dataclass(slots=True)
class Transcript:
    """Reads a stream's bytes; raises RequestError when the server reports an error or sends what cannot be read."""

    done: bool = False
    """Whether the end marker has come."""
    token_times: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    output_tokens: int | None = None
    queue_time: float | None = None
    foretold: Foretold | None = None
    _tail: bytes = b""  # of a line that has no end yet
    _pieces: list[str] = field(default_factory=list)
    _finished: bool = False
    _latest: float = 0.0  # when the latest bytes came

    def feed(self, chunk: bytes, now: float) -> None:
        """Read what arrived at the time `now`. Text is not decoded here, so a cut inside a character does no harm."""
        self._latest = now
        *lines, self._tail = (self._tail + chunk).split(b"\n")
        for data in (line[5:].strip() for line in lines if line.startswith(b"data:")):
            if data == b"[DONE]":
                self.done = True
                return
            if data:
                self._read(self._decode(data), now)

    def close(self) -> None:
        """The stream has ended; raises RequestError when the answer had not."""
        if not self.done and not self._finished:
            raise RequestError(Failure("closed", "the server closed the connection in the middle of the answer"))

    @property
    def end(self) -> float:
        """When the last output arrived; of an answer without any, when its end did."""
        return self.token_times[-1] if self.token_times else self._latest

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def _decode(self, data: bytes) -> Event:
        try:
            return DECODER.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            message = f"the server sent an event that cannot be read: {error}: {data[:80]!r}"
            raise RequestError(Failure("protocol", message)) from None

    def _read(self, event: Event, now: float) -> None:
        if bytes(event.error) != b"null":
            raise RequestError(Failure("server", error_message(bytes(event.error))))
        pieces = [piece for choice in event.choices or () if (piece := _output(choice)) is not None]
        if pieces:
            self.token_times.append(now)
            self._pieces.extend(pieces)
        self._finished = self._finished or any(choice.finish_reason for choice in event.choices or ())
        if event.usage is not None:
            self.prompt_tokens = event.usage.prompt_tokens
            self.output_tokens = event.usage.completion_tokens
            details = event.usage.prompt_tokens_details
            self.cached_tokens = 0 if details is None else details.cached_tokens or 0
        if (metrics := event.metrics) is not None:
            if metrics.queue_time_ms is not None:
                self.queue_time = metrics.queue_time_ms / 1000
            if metrics.estimate is not None:
                self.foretold = metrics.estimate.expected_completion_s


def _output(choice: Choice) -> str | None:
    """The text that a chunk brings; None when it brings nothing, "" when what it brings is no text."""
    delta = choice.delta
    if delta is None:
        return choice.text or None
    if delta.tool_calls:
        return delta.content or ""
    return delta.content or delta.reasoning_content or delta.reasoning or None


def error_message(body: bytes) -> str:
    """The message in an error's JSON, whichever of the servers' shapes it has; else the text as it is."""
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = body.decode(errors="replace")
    for key in ("error", "message"):
        if isinstance(value, dict) and key in value:
            value = value[key]
    return str(value).strip()[:500] or "no message"
