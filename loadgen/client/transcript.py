"""One streamed answer from SSE bytes in any pieces; `data: JSON` lines only, as OpenAI sends."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from loadgen.client.request import Foretold, RequestFailure


class RequestError(Exception):
    def __init__(self, failure: RequestFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class StreamedDelta(msgspec.Struct):
    """A role alone is no output."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class StreamedChoice(msgspec.Struct):
    """`delta` in chats, `text` in completions."""

    delta: StreamedDelta | None = None
    text: str | None = None
    finish_reason: str | None = None


class StreamedPromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class StreamedUsage(msgspec.Struct):
    """In a server's last event, or in every one."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: StreamedPromptDetails | None = None


class ServerEstimate(msgspec.Struct):
    expected_completion_s: Foretold | None = None


class ServerMetrics(msgspec.Struct):
    """A server's own times and predictions."""

    queue_time_ms: float | None = None
    estimate: ServerEstimate | None = None


class Event(msgspec.Struct):
    choices: list[StreamedChoice] | None = None
    usage: StreamedUsage | None = None
    metrics: ServerMetrics | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


DECODER = msgspec.json.Decoder(Event)


@dataclass(slots=True)
class Transcript:
    """Raises RequestError for an error event or unreadable data."""

    done: bool = False  # the end marker has come
    token_times: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    output_tokens: int | None = None
    queue_time: float | None = None
    foretold: Foretold | None = None
    _tail: bytes = b""  # of an unfinished line
    _pieces: list[str] = field(default_factory=list)
    _finished: bool = False
    _latest: float = 0.0  # time of the latest bytes

    def feed(self, chunk: bytes, now: float) -> None:
        """Read bytes that came at `now`; cuts inside a character do no harm."""
        self._latest = now
        *lines, self._tail = (self._tail + chunk).split(b"\n")
        for data in (line[5:].strip() for line in lines if line.startswith(b"data:")):
            if data == b"[DONE]":
                self.done = True
                return
            if data:
                self._read(self._decode(data), now)

    def close(self) -> None:
        """The stream has ended; raises RequestError if the answer had not."""
        if not self.done and not self._finished:
            raise RequestError(RequestFailure("closed", "the server closed the connection in the middle of the answer"))

    @property
    def end(self) -> float:
        """Time of the last output, else of the end."""
        return self.token_times[-1] if self.token_times else self._latest

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def _decode(self, data: bytes) -> Event:
        try:
            return DECODER.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            message = f"the server sent an event that cannot be read: {error}: {data[:80]!r}"
            raise RequestError(RequestFailure("protocol", message)) from None

    def _read(self, event: Event, now: float) -> None:
        if bytes(event.error) != b"null":
            raise RequestError(RequestFailure("server", error_message(bytes(event.error))))
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


def _output(choice: StreamedChoice) -> str | None:
    """A chunk's text; None for nothing, "" for output without text."""
    delta = choice.delta
    if delta is None:
        return choice.text or None
    if delta.tool_calls:
        return delta.content or ""
    return delta.content or delta.reasoning_content or delta.reasoning or None


def error_message(body: bytes) -> str:
    """From any server's error shape; else the text itself, in one line."""
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = body.decode(errors="replace")
    for key in ("error", "message"):
        if isinstance(value, dict) and key in value:
            value = value[key]
    return " ".join(str(value).split())[:500] or "no message"
