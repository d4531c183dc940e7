"""The bodies of POST /v1/messages and /v1/messages/count_tokens, and the chat that they stand for.

Anthropic's words; text and tools only, whatever else those messages know is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from models.network.generation_config import Temperature, TokenCount, TopK, TopP
from server.api.errors import ApiError, bad_request
from server.api.input import schema as chat_schema
from server.api.input.fields import ABSENT, read_object, refuse_asked
from server.api.input.prompts import join_content

TextParts: TypeAlias = str | Annotated[list[chat_schema.ContentPart], Meta(max_length=2048)]


class Block(msgspec.Struct, frozen=True):
    """A piece of a turn: text, a call of a tool, or its result."""

    type: str
    text: str | None = None
    id: str | None = None
    name: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    input: msgspec.Raw = ABSENT
    tool_use_id: str | None = None
    content: TextParts | None = None
    is_error: bool | None = None


class InputMessage(msgspec.Struct, frozen=True):
    """One turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Meta(max_length=2048)]


class MessageTool(msgspec.Struct, frozen=True):
    """A tool of the client's."""

    name: chat_schema.FunctionName
    description: str | None = None
    input_schema: msgspec.Raw = ABSENT
    type: str | None = None
    strict: bool | None = None


class MessageToolChoice(msgspec.Struct, frozen=True):
    """Whether tools may or must be called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True):
    """Whether the model shall think apart from its answer."""

    type: Literal["enabled", "disabled", "adaptive"]


class OutputFormat(msgspec.Struct, frozen=True):
    """The JSON schema that the answer must match."""

    type: Literal["json_schema"]
    schema: msgspec.Raw = ABSENT


class OutputConfig(msgspec.Struct, frozen=True):
    """How the answer shall look."""

    format: OutputFormat | None = None


class CountBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/messages/count_tokens."""

    model: chat_schema.ModelName | None = None
    messages: Annotated[list[InputMessage], Meta(min_length=1, max_length=2048)]
    system: TextParts | None = None
    tools: Annotated[list[MessageTool], Meta(max_length=128)] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    mcp_servers: Annotated[list[msgspec.Raw], Meta(max_length=64)] | None = None


class MessagesBody(CountBody, frozen=True, kw_only=True):
    """POST /v1/messages."""

    max_tokens: TokenCount
    stop_sequences: Annotated[list[chat_schema.StopString], Meta(max_length=16)] | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    priority: chat_schema.Priority | None = None
    deadline_ms: chat_schema.Deadline | None = None


CHAT_WORDS: Mapping[str, str] = MappingProxyType(
    {".function.parameters": ".input_schema", ".function.name": ".name", "response_format.json_schema": "output_config"}
)
"""A chat's words in messages about errors -> those of this API."""


SAMPLING = ("max_tokens", "stream", "temperature", "top_p", "top_k", "priority", "deadline_ms")
"""Fields that mean the same in a chat."""


def as_chat(body: CountBody) -> chat_schema.ChatBody:
    """The chat that a body asks for; raises ApiError 400 for what a chat cannot say."""
    refuse_asked(("mcp_servers", body.mcp_servers, "this server calls no others; leave it out"))
    turns = [turn for place, one in enumerate(body.messages) for turn in _turns(one, f"messages[{place}]")]
    told = (
        [] if body.system is None else [chat_schema.Message("system", join_content(body.system, "system", ("text",)))]
    )
    choice, form = body.tool_choice, None
    if body.output_config is not None and body.output_config.format is not None:
        schema = chat_schema.JsonSchema(body.output_config.format.schema)
        form = chat_schema.ResponseFormat("json_schema", schema)
    sampling: dict[str, Any] = {}
    if isinstance(body, MessagesBody):
        sampling = {name: getattr(body, name) for name in SAMPLING} | {"stop": body.stop_sequences}
    return chat_schema.ChatBody(
        **sampling,
        model=body.model,
        messages=[*told, *turns],
        # A last turn of the assistant's is the beginning of the answer.
        continue_final_message=bool(turns) and turns[-1].role == "assistant",
        tools=[_tool(tool) for tool in body.tools or [] if tool.type in OWN_TOOLS],
        tool_choice=None if choice is None else _tool_choice(choice),
        parallel_tool_calls=None if choice is None else not choice.disable_parallel_tool_use,
        response_format=form,
    )


def _turns(message: InputMessage, path: str) -> Iterator[chat_schema.Message]:
    """A message as turns of a chat, which has a turn for each result of a tool. Raises ApiError 400."""
    if isinstance(message.content, str):
        yield chat_schema.Message(message.role, message.content)
        return
    blocks = [(block, f"{path}.content[{place}]") for place, block in enumerate(message.content)]
    for block, where in blocks:
        if block.type not in KINDS[message.role]:
            fault = f"{block.type[:64]!r} is not supported for {message.role}; only text and tools are"
            raise bad_request(f"{where}.type: {fault}", "messages", "unsupported")
        if block.type == "text" and block.text is None:
            raise _missing(f"{where}.text")
    results = [_result(block, where) for block, where in blocks if block.type == "tool_result"]
    text = "".join(block.text or "" for block, _ in blocks if block.type == "text")
    calls = [_call(block, where) for block, where in blocks if block.type == "tool_use"]
    yield from results
    if text or not results:
        yield chat_schema.Message(message.role, text, tool_calls=calls or None)


KINDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "user": frozenset({"text", "tool_result"}),
        "system": frozenset({"text"}),  # which Claude Code sends among the turns too
        # Thoughts of another model are passed over, as no chat template here has a place for them.
        "assistant": frozenset({"text", "tool_use", "thinking", "redacted_thinking"}),
    }
)
"""Kinds of blocks by role."""


def _call(block: Block, path: str) -> chat_schema.PastCall:
    if block.name is None or block.id is None:
        raise _missing(f"{path}.{'name' if block.name is None else 'id'}")
    read_object(bytes(block.input), f"{path}.input", "messages")
    return chat_schema.PastCall(chat_schema.PastFunction(block.name, bytes(block.input).decode()), block.id)


def _result(block: Block, path: str) -> chat_schema.Message:
    if not block.tool_use_id:
        raise _missing(f"{path}.tool_use_id")
    said = "" if block.content is None else join_content(block.content, f"{path}.content", ("text",))
    return chat_schema.Message("tool", f"Error: {said}" if block.is_error else said, tool_call_id=block.tool_use_id)


def _missing(path: str) -> ApiError:
    return bad_request(f"{path}: is missing", "messages")


OWN_TOOLS = (None, "custom")
"""Types of tools that the client runs."""


def _tool(tool: MessageTool) -> chat_schema.ChatTool:
    return chat_schema.ChatTool(
        "function", chat_schema.FunctionTool(tool.name, tool.description, tool.input_schema, tool.strict)
    )


def _tool_choice(choice: MessageToolChoice) -> Literal["none", "auto", "required"] | chat_schema.NamedTool:
    match choice.type:
        case "auto" | "none":
            return choice.type
        case "any":
            return "required"
        case "tool":
            if choice.name is None:
                raise bad_request("tool_choice.name: is missing", "tool_choice")
            return chat_schema.NamedTool(chat_schema.NamedFunction(choice.name))
