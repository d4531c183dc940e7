"""The bodies of answers, as the API has them. Fields that hold their default are left out where OpenAI does so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec
import orjson
from aiohttp import web

from engine.messages import FinishReason
from server.api.output.expectation import Expectation
from server.version import VERSION

FINGERPRINT = f"lengthwise-{VERSION}"


S = TypeVar("S")
T = TypeVar("T")


class Lazy(Sequence[T], Generic[S, T]):
    """A list in a reply whose items are made and encoded one after the other: as JSON they take the least memory, and
    other threads come to their turn between two of them."""

    def __init__(self, make: Callable[[S], T], items: Sequence[S]) -> None:
        self._make, self._items = make, items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, place: Any) -> Any:
        return self._make(self._items[place])

    def __iter__(self) -> Iterator[T]:
        return map(self._make, self._items)


def encode(body: object) -> bytes:
    """JSON of a response or an event."""
    return orjson.dumps(msgspec.to_builtins(body, builtin_types=(orjson.Fragment,), enc_hook=_encode_items))


def _encode_items(items: Lazy[Any, Any]) -> orjson.Fragment:
    return orjson.Fragment(b"[%b]" % b",".join(map(encode, items)))


def json_response(body: msgspec.Struct, status: int = 200) -> web.Response:
    """A structure as a whole response."""
    return web.Response(body=encode(body), status=status, content_type="application/json")


@dataclass(frozen=True, slots=True)
class Head:
    """The fields that every body of one call repeats; `created` is in seconds since 1970."""

    id: str
    model: str
    arrival: float
    """When the call's own body was there, in seconds of the dispatcher's clock."""
    created: int = field(default_factory=lambda: int(time.time()))
    fingerprint: str = FINGERPRINT
    """The `system_fingerprint`: this program and its version, or the virtual device that makes filler."""


class PromptDetails(msgspec.Struct, frozen=True):
    """Tokens of the prompt that were kept from earlier ones, and so were not read again."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens read and made."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Metrics(msgspec.Struct, frozen=True):
    """Where the time of a call went, in milliseconds, null where it never came so far; and what was foreseen."""

    queue_time_ms: float | None
    time_to_first_token_ms: float | None
    generation_time_ms: float | None
    predicted_tokens: float | None = None
    """The prediction of the call's `completion_tokens`; null where no length is predicted."""
    estimate: Expectation | msgspec.UnsetType = msgspec.UNSET
    """The estimate of the call from when it came; only for a client that asked for it."""


class Alternative(msgspec.Struct, frozen=True):
    """One token that could stand in a place of an answer."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct, frozen=True):
    """One token of a chat answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[Alternative]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """The tokens of a chat answer, or of a part of it."""

    content: Sequence[ChatLogprob]


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """The tokens of a completion, or of a part of it: four lists of one length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: Sequence[dict[str, float] | None] | None
    text_offset: list[int]


class PromptLogprob(msgspec.Struct, frozen=True):
    """One token that could stand in a place of the prompt; its id is the key that leads here."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs: TypeAlias = Sequence[dict[str, PromptLogprob] | None]


class ChatFinish(StrEnum):
    """Why a chat answer ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


class FunctionCall(msgspec.Struct, frozen=True):
    """The function to call; its arguments are JSON."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True):
    """A tool that the assistant calls."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class ChatMessage(msgspec.Struct, frozen=True):
    """The assistant's text and calls."""

    content: str | None
    role: str = "assistant"
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One whole answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish | None
    stop_reason: str | int | None


class ChatReply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole chat completion."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: Sequence[ChatChoice]
    usage: Usage
    metrics: Metrics
    system_fingerprint: str
    prompt_logprobs: PromptLogprobs | None = None


class FunctionDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """Addition of a chunk to a call: its name, all at once, and more of its arguments."""

    arguments: str
    name: str | None = None


class ToolCallDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """Addition of a chunk to one of the calls; id and type come with the first."""

    index: int
    function: FunctionDelta
    id: str | None = None
    type: Literal["function"] | None = None


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """Addition of a chunk to a message; the role comes with the first."""

    role: str | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChunkChoice(msgspec.Struct, frozen=True):
    """Addition of a chunk to one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish | None
    stop_reason: str | int | None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of a streamed chat completion."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChunkChoice]
    system_fingerprint: str
    usage: Usage | None = None
    metrics: Metrics | None = None


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One completion, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    prompt_logprobs: PromptLogprobs | None = None


class CompletionReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A whole completion, or one event of a streamed one: they have one shape."""

    id: str
    object: str
    created: int
    model: str
    choices: Sequence[CompletionChoice]
    system_fingerprint: str
    usage: Usage | None = None
    metrics: Metrics | None = None
