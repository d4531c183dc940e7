"""The bodies of generation requests: their fields, types and bounds, so that decoding is validating.

Unknown fields are ignored, null means the default, and every number, list and string has a bound. What depends on
the model or on two fields at once is checked in sampling.py and prompts.py.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

MAX_CHOICES = 256
"""Answers that one call may ask for: n times its prompts."""

Probability: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Share: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
Bias: TypeAlias = Annotated[float, Meta(ge=-100, le=100)]
TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenCount: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Alternatives: TypeAlias = Annotated[int, Meta(ge=0, le=20)]
StopString: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]


class StreamOptions(msgspec.Struct, frozen=True):
    """Whether a stream tells token counts: in one chunk before its end, or in every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """Only plain text can be asked for."""

    type: str


class GenerationBody(msgspec.Struct, frozen=True, kw_only=True):
    """What both endpoints take."""

    model: Annotated[str, Meta(max_length=1024)] | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Probability | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Annotated[int, Meta(ge=1, le=64)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=16)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=256)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=1024)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    prompt_logprobs: Alternatives | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    replay_tokens: TokenCount | None = None
    response_format: ResponseFormat | None = None
    instruction: Annotated[str, Meta(max_length=65536)] | None = None
    instruction_split: Literal["system", "first-line", "blank-line"] | None = None


class ContentPart(msgspec.Struct, frozen=True):
    """A piece of a message; only text can be read."""

    type: str
    text: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Meta(max_length=2048)] | None = None
    tool_calls: list[msgspec.Raw] | None = None


class ChatBody(GenerationBody, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=2048)]
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    tools: list[msgspec.Raw] | None = None
    functions: list[msgspec.Raw] | None = None
    tool_choice: str | dict[str, msgspec.Raw] | None = None


class CompletionBody(GenerationBody, frozen=True, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: Alternatives | None = None
    best_of: Annotated[int, Meta(ge=1, le=64)] | None = None
    suffix: str | None = None
