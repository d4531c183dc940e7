"""The tools of a chat request: which the model is told of, which it may call, and whether it must; and conversations
with tools, for chat templates that know tools and for those that do not.

A template that knows them gets the tools and the calls as OpenAI's API words them, but arguments as objects. For any
other, tools become a part of the system message, calls a part of the assistant's text, and results turns of the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import orjson

from server.api.errors import invalid
from server.api.input.fields import is_given, read_object
from server.api.input.schema import ChatBody, FunctionTool, NamedTool

NO_PARAMETERS: Mapping[str, Any] = MappingProxyType({"type": "object", "properties": {}, "additionalProperties": False})


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client would run for the model."""

    name: str
    description: str | None
    parameters: Mapping[str, Any]
    """The JSON schema of its arguments."""
    lenient: bool
    """Whether what of the schema cannot be enforced is passed over."""

    @property
    def definition(self) -> dict[str, Any]:
        """The tool as OpenAI's API and chat templates word it."""
        told = {} if self.description is None else {"description": self.description}
        return {"type": "function", "function": {"name": self.name, **told, "parameters": dict(self.parameters)}}


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of a call, and how they may be used."""

    offered: tuple[Tool, ...] = ()
    """The tools that the model is told of."""
    wanted: str | None = None
    """The only one that may be called; None for any."""
    must_call: bool = False
    parallel: bool = True
    """Whether one answer may have several calls."""

    def __bool__(self) -> bool:
        return bool(self.offered)

    @property
    def callable(self) -> tuple[Tool, ...]:
        return tuple(tool for tool in self.offered if self.wanted in (None, tool.name))

    @property
    def names(self) -> frozenset[str]:
        """Names of the tools that may be called."""
        return frozenset(tool.name for tool in self.callable)


NO_TOOLS = Toolbox()


def toolbox(body: ChatBody, *, closed: bool = False) -> Toolbox:
    """The tools of a request; without any, where it may not call them. With `closed`, the schemas of all tools allow
    only the properties that they name. Raises ApiError 400."""
    tools = tuple(
        _tool(tool.function, f"tools[{place}].function", closed) for place, tool in enumerate(body.tools or [])
    )
    names = [tool.name for tool in tools]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise invalid(f"tools[{place}].function.name", f"{name!r} is the name of two tools")
    match body.tool_choice:
        case "none":
            return NO_TOOLS
        case None | "auto":
            wanted, must = None, False
        case "required":
            wanted, must = None, True
        case NamedTool(function=function):
            wanted, must = function.name, True
    if must and not tools:
        raise invalid("tool_choice", "asks for a call, but there are no tools; give some in tools")
    if wanted is not None and wanted not in names:
        raise invalid("tool_choice", f"{wanted!r} is none of the tools")
    parallel = body.parallel_tool_calls is not False and wanted is None
    return Toolbox(tools, wanted, must, parallel)


def _tool(function: FunctionTool, path: str, closed: bool) -> Tool:
    if function.name.endswith("\n"):  # which the schema's pattern lets pass
        raise invalid(f"{path}.name", "must not end with a line break")
    parameters: Mapping[str, Any] = NO_PARAMETERS
    if is_given(function.parameters):
        parameters = read_object(bytes(function.parameters), f"{path}.parameters")
    if parameters.get("type", "object") != "object":
        raise invalid(f"{path}.parameters.type", "must be 'object', as a call's arguments are one")
    if closed or function.strict:
        parameters = close_schema(parameters)
    return Tool(function.name, function.description, parameters, function.strict is False)


LISTED = ("anyOf", "oneOf", "prefixItems")
NAMED = ("properties", "$defs", "definitions")
INNER = ("items", "additionalProperties")


def close_schema(schema: Any) -> Any:
    """The schema, with all its objects closed whose properties stand in one place."""
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for key in LISTED:
        if isinstance(closed.get(key), list):
            closed[key] = [close_schema(one) for one in closed[key]]
    for key in NAMED:
        if isinstance(closed.get(key), dict):
            closed[key] = {name: close_schema(one) for name, one in closed[key].items()}
    for key in INNER:
        if key in closed:
            closed[key] = close_schema(closed[key])
    properties = closed.get("properties")
    if isinstance(properties, dict) and not closed.keys() & {"allOf", "patternProperties", "if"}:
        closed["required"] = list(properties)
        if closed.get("additionalProperties", True) is True:
            closed["additionalProperties"] = False
    return closed


OPEN, CLOSE = "<tool_call>", "</tool_call>"
RESULT_OPEN, RESULT_CLOSE = "<tool_response>", "</tool_response>"


def call_head(name: str) -> str:
    """A call up to where its arguments begin."""
    return f'{OPEN}\n{{"name": {orjson.dumps(name).decode()}, "arguments": '


CALL_TAIL = f"}}\n{CLOSE}"
"""The end of a call, behind its arguments. It cannot be part of them: in JSON no string holds a line break."""

BETWEEN = "\n"
"""The text between two calls."""


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """A whole call."""
    return f"{call_head(name)}{orjson.dumps(arguments).decode()}{CALL_TAIL}"


Turn: TypeAlias = dict[str, Any]
"""A message as chat templates know it; its content is always text."""

INSTRUCTION = """\
You can call functions. These are their names, what they do, and the JSON schemas of their arguments:
<tools>
{tools}
</tools>
To call a function, answer with its name and its arguments as JSON, between these marks:
{open}
{{"name": "<name of the function>", "arguments": {{<arguments by name>}}}}
{close}
The result comes between <tool_response> and </tool_response> in the next message."""


def plain_turns(turns: Sequence[Turn], tools: Toolbox) -> list[Turn]:
    """The conversation for a template that knows no tools: only roles and texts."""
    plain: list[Turn] = []
    results = False  # whether the last turn is made of results
    for turn in turns:
        is_result = turn["role"] == "tool"
        content = f"{RESULT_OPEN}\n{turn['content']}\n{RESULT_CLOSE}" if is_result else _with_calls(turn)
        if is_result and results:
            plain[-1]["content"] += f"\n{content}"
        else:
            plain.append({"role": "user" if is_result else turn["role"], "content": content})
        results = is_result
    return _instructed(plain, tools) if tools else plain


def _with_calls(turn: Turn) -> str:
    calls = [call_text(call["function"]["name"], call["function"]["arguments"]) for call in turn.get("tool_calls", ())]
    return BETWEEN.join(part for part in (turn["content"], *calls) if part)


def _instructed(turns: list[Turn], tools: Toolbox) -> list[Turn]:
    """The tools go behind what the system message says, or become one."""
    words = instruction([tool.definition for tool in tools.offered])
    if turns and turns[0]["role"] == "system":
        return [{**turns[0], "content": f"{turns[0]['content']}\n\n{words}"}, *turns[1:]]
    return [{"role": "system", "content": words}, *turns]


def instruction(definitions: Sequence[Mapping[str, Any]]) -> str:
    """The description of tools for a model whose template has none."""
    listed = "\n".join(orjson.dumps(definition["function"]).decode() for definition in definitions)
    return INSTRUCTION.format(tools=listed, open=OPEN, close=CLOSE)
