"""The tools of a chat request: which the model is told of, which it may call, and whether it must.

It knows no prompt and no answer: how calls are worded is the business of turns.py, grammar.py and reading.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from server.api.errors import bad_request
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
    _refuse_duplicates(tools)
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
        raise bad_request("tool_choice: asks for a call, but there are no tools; give some in tools", "tool_choice")
    if wanted is not None and wanted not in {tool.name for tool in tools}:
        raise bad_request(f"tool_choice: {wanted!r} is none of the tools", "tool_choice")
    parallel = body.parallel_tool_calls is not False and wanted is None
    return Toolbox(tools, wanted, must, parallel)


def _tool(function: FunctionTool, path: str, closed: bool) -> Tool:
    if function.name.endswith("\n"):  # which the schema's pattern lets pass
        raise bad_request(f"{path}.name: must not end with a line break", "tools")
    parameters: Mapping[str, Any] = NO_PARAMETERS
    if is_given(function.parameters):
        parameters = read_object(bytes(function.parameters), f"{path}.parameters", "tools")
    if parameters.get("type", "object") != "object":
        raise bad_request(f"{path}.parameters.type: must be 'object', as a call's arguments are one", "tools")
    if closed or function.strict:
        parameters = close_schema(parameters)
    return Tool(function.name, function.description, parameters, function.strict is False)


def _refuse_duplicates(tools: tuple[Tool, ...]) -> None:
    seen: set[str] = set()
    for place, tool in enumerate(tools):
        if tool.name in seen:
            raise bad_request(f"tools[{place}].function.name: {tool.name!r} is the name of two tools", "tools")
        seen.add(tool.name)


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
