"""The tools of a chat request, and conversations with tools, as text for templates without support."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any

import orjson

from engine.sampling.json_schema import close_schema
from server.api.errors import invalid
from server.api.input.refused import is_given, read_object, required
from server.api.input.schema import ChatBody, FunctionTool, NamedTool

NO_PARAMETERS: Mapping[str, Any] = MappingProxyType({"type": "object", "properties": {}, "additionalProperties": False})


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str | None
    parameters: Mapping[str, Any]  # JSON schema
    lenient: bool  # ignore what of the schema cannot be enforced

    @property
    def definition(self) -> dict[str, Any]:
        """As in OpenAI's API and chat templates."""
        told = {} if self.description is None else {"description": self.description}
        return {"type": "function", "function": {"name": self.name, **told, "parameters": dict(self.parameters)}}


@dataclass(frozen=True, slots=True)
class Toolbox:
    offered: tuple[Tool, ...] = ()  # shown to the model
    allowed: frozenset[str] | None = None  # names; None for all
    must_call: bool = False
    parallel: bool = True  # several calls an answer

    @property
    def callable(self) -> list[tuple[int, Tool]]:
        """With their places."""
        return [pair for pair in enumerate(self.offered) if self.allowed is None or pair[1].name in self.allowed]


NO_TOOLS = Toolbox()


def toolbox(body: ChatBody, *, closed: bool = False) -> Toolbox:
    """None where calls are forbidden; `closed` schemas allow only named properties. Raises ApiError 400."""
    tools = tuple(_tool(one.function, f"tools[{at}].function", closed) for at, one in enumerate(body.tools or []))
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
    if function.name.endswith("\n"):  # the schema's pattern allows it
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
    """A call up to its arguments."""
    return f'{OPEN}\n{{"name": {orjson.dumps(name).decode()}, "arguments": '


CALL_TAIL = f"}}\n{CLOSE}"  # after the arguments: no JSON string holds a line break

BETWEEN = "\n"  # two calls


def call_text(name: str, arguments: str) -> str:
    return f"{call_head(name)}{arguments}{CALL_TAIL}"


Turn = dict[str, Any]  # a message for chat templates, content always text

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


KEPT = ("role", "name", "reasoning_content")  # also known to templates without tools


def plain_turns(turns: Sequence[Turn], tools: Toolbox) -> list[Turn]:
    """For a template without tools: roles and texts."""
    plain: list[Turn] = []
    for are_results, some in groupby(turns, key=lambda turn: turn["role"] == "tool"):
        if are_results:
            results = (f"{RESULT_OPEN}\n{turn['content']}\n{RESULT_CLOSE}" for turn in some)
            plain.append({"role": "user", "content": "\n".join(results)})
        else:
            for turn in some:
                plain.append({name: turn[name] for name in KEPT if name in turn} | {"content": _with_calls(turn)})
    return _instructed(plain, tools) if tools.offered else plain


def join_turns(turns: Sequence[Turn], *, system: bool) -> list[Turn]:
    """For strict templates: merge neighbours of one role, put the system first, or into the user's turn without
    `system`; arguments become objects.
    """
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
    function = call["function"]
    given = function["arguments"]
    return {**call, "function": {**function, "arguments": {"arguments": given} if isinstance(given, str) else given}}


def _with_calls(turn: Turn) -> str:
    calls = [call_text(call["function"]["name"], call["function"]["arguments"]) for call in turn.get("tool_calls", ())]
    return BETWEEN.join(part for part in (turn["content"], *calls) if part)


def _instructed(turns: list[Turn], tools: Toolbox) -> list[Turn]:
    words = instruction([tool.definition for tool in tools.offered])
    if turns and turns[0]["role"] == "system":
        return [{**turns[0], "content": f"{turns[0]['content']}\n\n{words}"}, *turns[1:]]
    return [{"role": "system", "content": words}, *turns]


def instruction(definitions: Sequence[Mapping[str, Any]]) -> str:
    listed = "\n".join(orjson.dumps(definition["function"]).decode() for definition in definitions)
    return INSTRUCTION.format(tools=listed, open=OPEN, close=CLOSE)
