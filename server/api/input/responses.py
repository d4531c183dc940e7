"""The body of OpenAI's POST /v1/responses, and the chat that it stands for."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from models.network.generation_config import TokenCount
from server.api.errors import invalid
from server.api.input import schema as chat
from server.api.input.refused import ABSENT, ignore, is_given, is_own, refuse_asked, required
from server.api.input.turns import join_content, join_past, read_past

LOGPROBS = "message.output_text.logprobs"  # in `include`


class InputItem(msgspec.Struct, frozen=True):
    """One turn of the conversation, thoughts, a call of a function, a call's result, or the `id` of a stored item; of
    other servers' items what has such fields. Arguments are any text."""

    type: str | None = None
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: chat.Content | None = None
    summary: chat.Content | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT
    action: msgspec.Raw = ABSENT
    operation: msgspec.Raw = ABSENT
    output: msgspec.Raw = ABSENT

    @property
    def kind(self) -> str:
        return self.type or "message"


OWN_CALLS = ("function_call", "custom_tool_call")


TEXT_TOOL = msgspec.Raw(
    b'{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}'
)

OWN_TOOLS = ("function", "custom")  # run by the client; others are ignored


class ResponseTool(msgspec.Struct, frozen=True):
    """A tool: a function, which lies flat, or a custom tool, which takes a text."""

    type: Annotated[str, Meta(max_length=256)]
    name: chat.FunctionName | None = None
    description: str | None = None
    parameters: msgspec.Raw = ABSENT
    strict: bool | None = None


class AllowedName(msgspec.Struct, frozen=True):
    """A tool that may be called; those that the client does not run have no name."""

    type: str
    name: str | msgspec.UnsetType = msgspec.UNSET


class NamedFunctionChoice(msgspec.Struct, frozen=True):
    """The function, or the custom tool, that must be called, or some tools, one of which may or must be."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    type: Literal["function", "custom", "allowed_tools"] = "function"
    mode: Literal["auto", "required"] | msgspec.UnsetType = msgspec.UNSET
    tools: Annotated[list[AllowedName], Meta(min_length=1, max_length=128)] | msgspec.UnsetType = msgspec.UNSET


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


class ResponsesBody(chat.GenerationBody, frozen=True, kw_only=True):
    """POST /v1/responses."""

    input: str | Annotated[list[InputItem], Meta(min_length=1, max_length=2048)]
    instructions: str | None = None
    max_output_tokens: TokenCount | None = None
    top_logprobs: chat.Alternatives | None = None
    include: Annotated[list[str], Meta(max_length=64)] | None = None
    text: TextConfig | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None
    store: bool | None = None
    background: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    previous_response_id: str | None = None
    conversation: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT
    tools: Annotated[list[ResponseTool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunctionChoice | None = None
    parallel_tool_calls: bool | None = None


OWN_NAMES: Mapping[str, str] = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text",
}

OWN_WORDS: Mapping[str, str] = {
    "response_format.json_schema": "text.format",
    ".function.parameters": ".parameters",
    ".function.name": ".name",
}


def as_chat(body: ResponsesBody, spoken: Sequence[chat.Message]) -> chat.ChatBody:
    """Raises ApiError 400 for what a chat cannot express."""
    _refuse_unsupported(body)
    told = [] if body.instructions is None else [chat.Message("system", body.instructions)]
    if not (told or spoken):
        raise invalid("input", "holds nothing that can be read here; give a message")
    choice = body.tool_choice
    common = {name: getattr(body, name) for name in chat.GenerationBody.__struct_fields__}
    return chat.ChatBody(
        **common | {"response_format": _response_format(body.text)},
        messages=[*told, *spoken],
        tools=[_tool(tool, f"tools[{place}]") for place, tool in own_tools(body)],
        tool_choice=_named(choice) if isinstance(choice, NamedFunctionChoice) else choice,
        parallel_tool_calls=body.parallel_tool_calls,
        max_completion_tokens=body.max_output_tokens,
        logprobs=wants_logprobs(body),
        top_logprobs=body.top_logprobs,
    )


def _named(choice: NamedFunctionChoice) -> chat.NamedTool:
    if choice.type != "allowed_tools":
        return chat.NamedTool(chat.NamedFunction(required(choice.name or None, "tool_choice.name")))
    if choice.mode is msgspec.UNSET or choice.tools is msgspec.UNSET:
        raise invalid("tool_choice", "'allowed_tools' needs mode and tools")
    names = [chat.AllowedTool(chat.NamedFunction(tool.name)) for tool in choice.tools if tool.name]
    return chat.NamedTool(allowed_tools=chat.AllowedTools(choice.mode, names), type=choice.type)


def _response_format(text: TextConfig | None) -> chat.ResponseFormat | None:
    if text is None or (asked := text.format) is None:
        return None
    schema = chat.JsonSchema(asked.schema, asked.name, asked.description, asked.strict)
    return chat.ResponseFormat(asked.type, schema if asked.type == "json_schema" else None, asked.schema)


def wants_logprobs(body: ResponsesBody) -> bool:
    """Alternatives imply log-probabilities."""
    return LOGPROBS in (body.include or ()) or bool(body.top_logprobs)


def conversation(body: ResponsesBody, known: Mapping[str, chat.Message]) -> list[chat.Message]:
    """Turns of the input, and the `known` turns of stored items; raises ApiError 400."""
    if isinstance(body.input, str):
        return [chat.Message("user", body.input)]
    turns: list[chat.Message] = []
    for place, item in enumerate(body.input):
        for turn in _turns(item, f"input[{place}]", known):
            last = turns[-1] if turns else turn
            thought = last.content is None and not last.tool_calls
            if turns and turn.role == last.role == "assistant" and (turn.tool_calls or thought):
                calls = [*(last.tool_calls or ()), *(turn.tool_calls or ())]
                content = turn.content if last.content is None else last.content
                thoughts = "\n\n".join(filter(None, (last.reasoning_content, turn.reasoning_content))) or None
                turns[-1] = chat.Message("assistant", content, calls or None, reasoning_content=thoughts)
            else:
                turns.append(turn)
    return turns


def is_reference(item: InputItem) -> bool:
    bare = item.kind == "message" and item.role is item.content is None
    return item.kind == "item_reference" or (bare and bool(item.id))


def _turns(item: InputItem, path: str, known: Mapping[str, chat.Message]) -> Iterator[chat.Message]:
    """Text, thoughts and calls of one answer come apart; unreadable items are ignored by name."""
    if is_reference(item):
        yield known[required(item.id, f"{path}.id")]
    elif item.kind == "message":
        role: chat.Role = required(item.role, f"{path}.role")
        if role == "assistant":
            yield chat.Message(role, join_past(item.content, f"{path}.content", of_tool=False))
        else:
            yield chat.Message(role, join_content(item.content, f"{path}.content"))
    elif item.kind == "reasoning":
        if thoughts := join_past(item.content or item.summary, f"{path}.content", of_tool=False):
            yield chat.Message("assistant", reasoning_content=thoughts)
    elif item.kind.endswith("_output"):
        call_id = required(item.call_id or item.id, f"{path}.call_id")
        yield _result(item, call_id, path)
    elif item.kind.endswith("_call") and (item.call_id or item.name):
        name = required(item.name, f"{path}.name") if item.kind in OWN_CALLS else item.name or item.kind[:-5]
        call_id = required(item.call_id or item.id, f"{path}.call_id")
        function = chat.PastFunction(name, _arguments(item))
        yield chat.Message("assistant", tool_calls=[chat.PastCall(function, call_id)])
        if bytes(item.output):  # run by a remote server
            yield _result(item, call_id, path)
    else:
        ignore(path, item.kind)


def _result(item: InputItem, call_id: str, path: str) -> chat.Message:
    said = join_past(read_past(item.output), f"{path}.output", of_tool=True)
    return chat.Message("tool", said, tool_call_id=call_id)


def _arguments(item: InputItem) -> msgspec.Raw:
    if item.kind == "custom_tool_call":
        return msgspec.Raw(b'{"input":%b}' % (bytes(item.input) or b'""'))
    return next((raw for raw in (item.arguments, item.input, item.action) if bytes(raw)), item.operation)


def own_tools(body: ResponsesBody) -> list[tuple[int, ResponseTool]]:
    """With their places."""
    return [(at, one) for at, one in enumerate(body.tools or ()) if is_own(one.type, OWN_TOOLS, f"tools[{at}]")]


def _tool(tool: ResponseTool, path: str) -> chat.ChatTool:
    name = required(tool.name, f"{path}.name")
    parameters, strict = (TEXT_TOOL, None) if tool.type == "custom" else (tool.parameters, tool.strict)
    return chat.ChatTool("function", chat.FunctionTool(name, tool.description, parameters, strict))


def _refuse_unsupported(body: ResponsesBody) -> None:
    stored = is_given(body.conversation)
    refuse_asked(
        ("background", body.background, "answers come in the response only; leave it out"),
        ("conversation", stored, "there are no stored conversations here; use previous_response_id"),
        ("prompt", is_given(body.prompt), "there are no stored prompts here; use instructions and input"),
        ("truncation", body.truncation == "auto", "nothing is left out of a conversation; use 'disabled'"),
        ("top_logprobs", body.tools and wants_logprobs(body), "are not there with tools; use /v1/chat/completions"),
        ("n", (body.n or 1) > 1, "there is one answer to a response; use /v1/chat/completions for several"),
        ("max_tokens", body.max_tokens is not None, "is called max_output_tokens here"),
        ("response_format", body.response_format, "is called text.format here"),
        ("prompt_logprobs", body.prompt_logprobs is not None, "use /v1/chat/completions or /v1/completions for them"),
    )
