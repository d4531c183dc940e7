"""Conversations with tools, for chat templates that know tools and for those that do not.

A template that knows them gets the tools and the calls as OpenAI's API words them, but arguments as objects. For any
other, tools become a part of the system message, calls a part of the assistant's text, and results turns of the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import orjson

from server.api.errors import bad_request
from server.api.input.fields import read_object
from server.api.input.schema import Message, PastCall
from server.api.tools.tools import Toolbox

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


def result_text(content: str) -> str:
    """The answer of a tool, marked up."""
    return f"{RESULT_OPEN}\n{content}\n{RESULT_CLOSE}"


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


def tool_fields(message: Message, path: str) -> Turn:
    """The fields of a message besides role and content; raises ApiError 400."""
    if message.tool_calls and message.role != "assistant":
        raise bad_request(f"{path}.tool_calls: only the assistant calls tools", "messages")
    if message.role == "tool":
        if not message.tool_call_id:
            raise bad_request(f"{path}.tool_call_id: is missing; it names the call whose result this is", "messages")
        return {"tool_call_id": message.tool_call_id}
    if not message.tool_calls:
        return {}
    return {"tool_calls": [_call(call, f"{path}.tool_calls[{place}]") for place, call in enumerate(message.tool_calls)]}


def _call(call: PastCall, path: str) -> dict[str, Any]:
    given = call.function.arguments
    arguments = read_object(given.encode(), f"{path}.function.arguments", "messages") if given.strip() else {}
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def plain_turns(turns: Sequence[Turn], tools: Toolbox) -> list[Turn]:
    """The conversation for a template that knows no tools: only roles and texts."""
    plain: list[Turn] = []
    results = False  # whether the last turn is made of results
    for turn in turns:
        is_result = turn["role"] == "tool"
        content = result_text(turn["content"]) if is_result else _with_calls(turn)
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
