"""The bodies of Anthropic's POST /v1/messages and /v1/messages/count_tokens, and the chats that they stand for."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from models.network.generation_config import Temperature, TokenCount, TopK, TopP
from server.api.errors import invalid
from server.api.input import schema as chat
from server.api.input.refused import ABSENT, ignore, is_given, is_own, refuse_asked, required
from server.api.input.turns import join_content, join_past, read_past


class Block(msgspec.Struct, frozen=True):
    """A piece of a turn: text, thoughts, a call of a tool, or its result, whose content is a text or parts."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = ABSENT
    tool_use_id: str | None = None
    content: msgspec.Raw = ABSENT
    is_error: bool | None = None
    thinking: str | None = None


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


class CountBody(chat.OtherWords, frozen=True, kw_only=True):
    """POST /v1/messages/count_tokens."""

    model: chat.ModelName | None = None
    messages: Annotated[list[InputMessage], Meta(min_length=1, max_length=2048)]
    system: chat.Content | None = None
    tools: Annotated[list[MessageTool], Meta(max_length=128)] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # its name in the beta of November 2025
    response_format: msgspec.Raw = ABSENT
    structured_outputs: chat.StructuredOutputs | None = None
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
    promise: chat.Promise | None = None


CHAT_WORDS: Mapping[str, str] = {
    ".function.parameters": ".input_schema",
    ".function.name": ".name",
    "response_format.json_schema": "output_config.format",
}

# fields that mean the same in a chat
SAME = {*chat.ChatBody.__struct_fields__} - {"messages", "tools", "tool_choice", "response_format"}

OWN_TOOLS = (None, "custom")  # types run by the client

BILLING = "x-anthropic-billing-header:"  # Claude Code's first part, in each run another: no prompt


def as_chat(body: CountBody) -> chat.ChatBody:
    """Raises ApiError 400 for what a chat cannot express."""
    refuse_asked(
        ("mcp_servers", body.mcp_servers, "this server calls no others; leave it out"),
        ("response_format", is_given(body.response_format), "is not supported; use output_config.format"),
    )
    neighbours = groupby(enumerate(body.messages), key=lambda pair: pair[1].role)
    turns = [turn for role, messages in neighbours for turn in _turns(role, messages)]
    system = body.system
    if isinstance(system, list):
        system = [one for one in system if one.text is None or not one.text.startswith(BILLING)]
    told = [] if system is None else [chat.Message("system", join_content(system, "system"))]
    choice, form = body.tool_choice, None if body.output_config is None else body.output_config.format
    form = form or body.output_format
    same: dict[str, Any] = {name: getattr(body, name) for name in body.__struct_fields__ if name in SAME}
    return chat.ChatBody(
        **same,
        stop=body.stop_sequences if isinstance(body, MessagesBody) else None,
        messages=[*told, *turns],
        # A trailing assistant turn is continued.
        continue_final_message=bool(turns) and turns[-1].role == "assistant",
        tools=[_tool(one) for at, one in enumerate(body.tools or []) if is_own(one.type, OWN_TOOLS, f"tools[{at}]")],
        tool_choice=None if choice is None else _tool_choice(choice),
        parallel_tool_calls=None if choice is None else not choice.disable_parallel_tool_use,
        response_format=None if form is None else chat.ResponseFormat("json_schema", chat.JsonSchema(form.schema)),
    )


def _turns(role: chat.Role, messages: Iterable[tuple[int, InputMessage]]) -> Iterator[chat.Message]:
    """Consecutive messages of one role as one turn, tool results as turns before it."""
    texts, thoughts, calls, results = list[str](), list[str](), list[chat.PastCall](), False
    for place, message in messages:
        blocks = [Block("text", message.content)] if isinstance(message.content, str) else message.content
        text = ""
        for at, block in enumerate(blocks):
            where = f"messages[{place}].content[{at}]"
            match role, block.type:
                case _, "text":
                    text += required(block.text, f"{where}.text")
                case "user", "tool_result":
                    results = True
                    yield _result(block, where)
                case "assistant", "tool_use":
                    name, id_ = required(block.name, f"{where}.name"), required(block.id, f"{where}.id")
                    calls.append(chat.PastCall(chat.PastFunction(name, block.input), id_))
                case "assistant", "thinking":
                    thoughts.append(block.thinking or "")
                case "assistant", kind:
                    ignore(where, kind)
                case _, kind:
                    fault = f"{kind[:64]!r} is not supported for {role}; only text and tools are"
                    raise invalid(f"{where}.type", fault, "unsupported")
        texts.append(text)
    said = "\n\n".join(filter(None, texts))
    if said or not results:
        yield chat.Message(role, said, tool_calls=calls or None, reasoning_content="".join(thoughts) or None)


def _result(block: Block, path: str) -> chat.Message:
    call_id = required(block.tool_use_id or None, f"{path}.tool_use_id")
    said = join_past(read_past(block.content), f"{path}.content", of_tool=True)
    return chat.Message("tool", f"Error: {said}" if block.is_error else said, tool_call_id=call_id)


def _tool(tool: MessageTool) -> chat.ChatTool:
    return chat.ChatTool("function", chat.FunctionTool(tool.name, tool.description, tool.input_schema, tool.strict))


def _tool_choice(choice: MessageToolChoice) -> Literal["none", "auto", "required"] | chat.NamedTool:
    if choice.type == "tool":
        return chat.NamedTool(chat.NamedFunction(required(choice.name, "tool_choice.name")))
    return "required" if choice.type == "any" else choice.type
