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

from engine.sampling.json_schema import close_schema
from server.api.errors import invalid
from server.api.input.fields import is_given, read_object, required
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
    allowed: frozenset[str] | None = None
    """Names of those that may be called; None for all."""
    must_call: bool = False
    parallel: bool = True
    """Whether one answer may have several calls."""

    def __bool__(self) -> bool:
        return bool(self.offered)

    @property
    def callable(self) -> list[tuple[int, Tool]]:
        """Those that may be called, behind their places."""
        return [pair for pair in enumerate(self.offered) if self.allowed is None or pair[1].name in self.allowed]


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
    allowed: list[str] | None = None
    must, parallel = body.tool_choice == "required", body.parallel_tool_calls is not False
    match body.tool_choice:
        case "none":
            return NO_TOOLS
        case NamedTool(type="function", function=function):
            allowed, must, parallel = [required(function, "tool_choice.function").name], True, False
        case NamedTool(allowed_tools=several):
            several = required(several, "tool_choice.allowed_tools")
            allowed, must = [one.function.name for one in several.tools], several.mode == "required"
    if must and not (tools if allowed is None else allowed):
        raise invalid("tool_choice", "asks for a call, but there are no tools; give some in tools")
    for name in allowed or ():
        if name not in names:
            raise invalid("tool_choice", f"{name!r} is none of the tools")
    return Toolbox(tools, None if allowed is None else frozenset(allowed), must, parallel)


def _tool(function: FunctionTool, path: str, closed: bool) -> Tool:
    if function.name.endswith("\n"):  # which the schema's pattern lets pass
        raise invalid(f"{path}.name", "must not end with a line break")
    parameters: Mapping[str, Any] = NO_PARAMETERS
    if is_given(function.parameters):
        parameters = read_object(bytes(function.parameters), f"{path}.parameters")
    if function.strict and parameters.get("type", "object") != "object":
        raise invalid(f"{path}.parameters.type", "must be 'object', as a call's arguments are one")
    if closed or function.strict:
        parameters = close_schema(parameters)
    return Tool(function.name, function.description, parameters, function.strict is not True)


OPEN, CLOSE = "<tool_call>", "</tool_call>"
RESULT_OPEN, RESULT_CLOSE = "<tool_response>", "</tool_response>"


def call_head(name: str) -> str:
    """A call up to where its arguments begin."""
    return f'{OPEN}\n{{"name": {orjson.dumps(name).decode()}, "arguments": '


CALL_TAIL = f"}}\n{CLOSE}"
"""The end of a call, behind its arguments. It cannot be part of them: in JSON no string holds a line break."""

BETWEEN = "\n"
"""The text between two calls."""


def call_text(name: str, arguments: str) -> str:
    """A whole call."""
    return f"{call_head(name)}{arguments}{CALL_TAIL}"


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


KEPT = ("name", "reasoning_content")  # what a template that knows no tools may know besides roles and texts


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
            kept = {} if is_result else {name: turn[name] for name in KEPT if name in turn}
            plain.append({"role": "user" if is_result else turn["role"], "content": content, **kept})
        results = is_result
    return _instructed(plain, tools) if tools else plain


def join_turns(turns: Sequence[Turn], *, system: bool) -> list[Turn]:
    """The conversation for a template that refuses it as it is: neighbours of one role are one turn, the system speaks
    at the beginning alone, or where not even there (`system`) as the user, and all arguments are objects."""
    joined: list[Turn] = []
    for turn in turns:
        last = joined[-1] if joined else {"role": "system" if system else "", "content": ""}
        role = "user" if turn["role"] == "system" != last["role"] else turn["role"]
        turn = {**turn, "role": role}
        if "tool_calls" in turn:
            turn["tool_calls"] = [_with_object(call) for call in turn["tool_calls"]]
        if not joined or role != last["role"] or role == "tool":
            joined.append(turn)
            continue
        for name in ("content", "reasoning_content"):
            turn[name] = "\n\n".join(one[name] for one in (last, turn) if one.get(name))
        calls = [*last.get("tool_calls", ()), *turn.get("tool_calls", ())]
        joined[-1] = {**last, **turn, **({"tool_calls": calls} if calls else {})}
    return joined


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    """A call whose arguments are an object, also where they are no more than text."""
    function = call["function"]
    given = function["arguments"]
    return {**call, "function": {**function, "arguments": {"arguments": given} if isinstance(given, str) else given}}


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
