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
from server.api.errors import invalid
from server.api.input import schema as chat
from server.api.input.fields import ABSENT, read_object, refuse_asked, required
from server.api.input.prompts import join_content

TextParts: TypeAlias = str | Annotated[list[chat.ContentPart], Meta(max_length=2048)]


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

    name: chat.FunctionName
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

    model: chat.ModelName | None = None
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
    stop_sequences: chat.StopStrings | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    priority: chat.Priority | None = None
    deadline_ms: chat.Deadline | None = None


CHAT_WORDS: Mapping[str, str] = MappingProxyType(
    {".function.parameters": ".input_schema", ".function.name": ".name", "response_format.json_schema": "output_config"}
)
"""A chat's words in messages about errors -> those of this API."""

SAMPLING = ("max_tokens", "stream", "temperature", "top_p", "top_k", "priority", "deadline_ms")
"""Fields that mean the same in a chat."""

OWN_TOOLS = (None, "custom")
"""Types of tools that the client runs."""


def as_chat(body: CountBody) -> chat.ChatBody:
    """The chat that a body asks for; raises ApiError 400 for what a chat cannot say."""
    refuse_asked(("mcp_servers", body.mcp_servers, "this server calls no others; leave it out"))
    turns = [turn for place, one in enumerate(body.messages) for turn in _turns(one, f"messages[{place}]")]
    told = [] if body.system is None else [chat.Message("system", join_content(body.system, "system"))]
    choice, form = body.tool_choice, None if body.output_config is None else body.output_config.format
    sampling: dict[str, Any] = {}
    if isinstance(body, MessagesBody):
        sampling = {name: getattr(body, name) for name in SAMPLING} | {"stop": body.stop_sequences}
    return chat.ChatBody(
        **sampling,
        model=body.model,
        messages=[*told, *turns],
        # A last turn of the assistant's is the beginning of the answer.
        continue_final_message=bool(turns) and turns[-1].role == "assistant",
        tools=[_tool(tool) for tool in body.tools or [] if tool.type in OWN_TOOLS],
        tool_choice=None if choice is None else _tool_choice(choice),
        parallel_tool_calls=None if choice is None else not choice.disable_parallel_tool_use,
        response_format=None if form is None else chat.ResponseFormat("json_schema", chat.JsonSchema(form.schema)),
    )


KINDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "user": frozenset({"text", "tool_result"}),
        "system": frozenset({"text"}),  # which Claude Code sends among the turns too
        # Thoughts of another model are passed over, as no chat template here has a place for them.
        "assistant": frozenset({"text", "tool_use", "thinking", "redacted_thinking"}),
    }
)
"""Kinds of blocks by role."""


def _turns(message: InputMessage, path: str) -> Iterator[chat.Message]:
    """A message as turns of a chat, which has a turn for each result of a tool. Raises ApiError 400."""
    text, calls, results = "", list[chat.PastCall](), False
    blocks = [Block("text", message.content)] if isinstance(message.content, str) else message.content
    for place, block in enumerate(blocks):
        where = f"{path}.content[{place}]"
        if block.type not in KINDS[message.role]:
            fault = f"{block.type[:64]!r} is not supported for {message.role}; only text and tools are"
            raise invalid(f"{where}.type", fault, "unsupported")
        match block.type:
            case "text":
                text += required(block.text, f"{where}.text")
            case "tool_use":
                calls.append(_call(block, where))
            case "tool_result":
                results = True
                yield _result(block, where)
    if text or not results:
        yield chat.Message(message.role, text, tool_calls=calls or None)


def _call(block: Block, path: str) -> chat.PastCall:
    name, id_ = required(block.name, f"{path}.name"), required(block.id, f"{path}.id")
    read_object(bytes(block.input), f"{path}.input")
    return chat.PastCall(chat.PastFunction(name, bytes(block.input).decode()), id_)


def _result(block: Block, path: str) -> chat.Message:
    call_id = required(block.tool_use_id or None, f"{path}.tool_use_id")
    said = "" if block.content is None else join_content(block.content, f"{path}.content")
    return chat.Message("tool", f"Error: {said}" if block.is_error else said, tool_call_id=call_id)


def _tool(tool: MessageTool) -> chat.ChatTool:
    return chat.ChatTool("function", chat.FunctionTool(tool.name, tool.description, tool.input_schema, tool.strict))


def _tool_choice(choice: MessageToolChoice) -> Literal["none", "auto", "required"] | chat.NamedTool:
    match choice.type:
        case "auto" | "none":
            return choice.type
        case "any":
            return "required"
        case "tool":
            return chat.NamedTool(chat.NamedFunction(required(choice.name, "tool_choice.name")))
