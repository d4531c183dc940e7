"""The body of POST /v1/responses, and the chat that it stands for: its conversation and its sampling.

Only the text form is there; whatever else OpenAI's responses know is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from models.network.generation_config import TokenCount
from server.api.errors import bad_request
from server.api.input.given_json import is_given
from server.api.input.prompts import join_content
from server.api.input.refusals import ABSENT, refuse_asked
from server.api.input.schema import (
    Alternatives,
    ChatBody,
    ContentPart,
    GenerationBody,
    JsonSchema,
    Message,
    ResponseFormat,
)

LOGPROBS = "message.output_text.logprobs"
"""The name in `include` that asks for log-probabilities."""


class InputItem(msgspec.Struct, frozen=True):
    """One turn of the conversation."""

    type: str = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | Annotated[list[ContentPart], Meta(max_length=2048)] | None = None


class TextFormat(msgspec.Struct, frozen=True):
    """The form of the text: as in a chat, but the JSON schema and its name lie flat."""

    type: Literal["text", "json_object", "json_schema"]
    schema: msgspec.Raw = ABSENT
    name: Annotated[str, Meta(max_length=256)] | None = None
    description: str | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, frozen=True):
    """How the text shall look."""

    format: TextFormat | None = None


class ResponsesBody(GenerationBody, frozen=True, kw_only=True):
    """POST /v1/responses."""

    input: str | Annotated[list[InputItem], Meta(min_length=1, max_length=2048)]
    instructions: str | None = None
    max_output_tokens: TokenCount | None = None
    top_logprobs: Alternatives | None = None
    include: Annotated[list[str], Meta(max_length=64)] | None = None
    text: TextConfig | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None
    store: bool | None = None
    background: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    previous_response_id: str | None = None
    conversation: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT
    tools: list[msgspec.Raw] | None = None
    tool_choice: str | dict[str, msgspec.Raw] | None = None


OWN_NAMES: Mapping[str, str] = MappingProxyType(
    {"messages": "input", "max_completion_tokens": "max_output_tokens", "response_format": "text"}
)
"""A chat's field -> what the same is called here."""

OWN_WORDS: Mapping[str, str] = MappingProxyType({"response_format.json_schema": "text.format"})
"""A chat's words in messages about errors -> those of this API."""


def as_chat(body: ResponsesBody) -> ChatBody:
    """The chat that a body asks for; raises ApiError 400 for what a chat cannot say."""
    _refuse_unsupported(body)
    common = {name: getattr(body, name) for name in GenerationBody.__struct_fields__}
    return ChatBody(
        **common | {"response_format": _response_format(body.text)},
        messages=_messages(body),
        max_completion_tokens=body.max_output_tokens,
        logprobs=wants_logprobs(body),
        top_logprobs=body.top_logprobs,
    )


def _response_format(text: TextConfig | None) -> ResponseFormat | None:
    if text is None or text.format is None:
        return None
    asked = text.format
    schema = JsonSchema(asked.schema, asked.name, asked.description, asked.strict)
    return ResponseFormat(asked.type, schema if asked.type == "json_schema" else None)


def wants_logprobs(body: ResponsesBody) -> bool:
    """Asking for alternatives is asking for log-probabilities too."""
    return LOGPROBS in (body.include or ()) or bool(body.top_logprobs)


def _messages(body: ResponsesBody) -> list[Message]:
    told = [] if body.instructions is None else [Message("system", body.instructions)]
    if isinstance(body.input, str):
        return [*told, Message("user", body.input)]
    return [*told, *(_message(item, f"input[{place}]") for place, item in enumerate(body.input))]


def _message(item: InputItem, path: str) -> Message:
    if item.type != "message":
        raise bad_request(f"{path}.type: only 'message' is supported", "input", "unsupported")
    if item.role is None:
        raise bad_request(f"{path}.role: is missing", "input")
    return Message(item.role, join_content(item.content, f"{path}.content", ("input_text", "output_text")))


def _refuse_unsupported(body: ResponsesBody) -> None:
    """Raise ApiError 400 for the first field that asks for what is not there."""
    asked = (
        ("store", body.store, "nothing is stored here; leave it out or set it to false"),
        ("background", body.background, "answers come in the response only; leave it out"),
        ("previous_response_id", body.previous_response_id, "nothing is stored here; send the whole conversation"),
        ("conversation", is_given(body.conversation), "nothing is stored here; send the whole conversation"),
        ("prompt", is_given(body.prompt), "there are no stored prompts here; use instructions and input"),
        ("truncation", body.truncation == "auto", "nothing is left out of a conversation; use 'disabled'"),
        ("tools", body.tools, "use /v1/chat/completions for tools"),
        ("tool_choice", body.tool_choice not in (None, "none", "auto"), "use /v1/chat/completions for tools"),
        ("n", (body.n or 1) > 1, "there is one answer to a response; use /v1/chat/completions for several"),
        ("max_tokens", body.max_tokens is not None, "is called max_output_tokens here"),
        ("response_format", body.response_format, "is called text.format here"),
        ("prompt_logprobs", body.prompt_logprobs is not None, "use /v1/chat/completions or /v1/completions for them"),
    )
    refuse_asked(asked)
