"""What programs send at their defaults, turn for turn: fields, types and the order of turns are those seen in November
2026, the values are our own. `make docs-clients` runs the programs themselves."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.server.live import CHAT, MESSAGES, RESPONSES

Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool's call as the server answered it."""

    id: str
    item: str | None  # id of a response's item
    name: str
    arguments: str


PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def chat_call(call: Call, content: str | None, arguments: str | None = None) -> Item:
    """The turn in which the assistant called a tool."""
    function = {"name": call.name, "arguments": arguments or call.arguments}
    called = {"id": call.id, "type": "function", "function": function}
    return {"role": "assistant", "content": content, "tool_calls": [called]}


def result(call: Call, content: object) -> Item:
    return {"role": "tool", "tool_call_id": call.id, "content": content}


def write_chat(call: Call, told: object) -> list[Item]:
    return [chat_call(call, None), result(call, told)]


def close_chat(answer: str, _: str) -> list[Item]:
    return [{"role": "assistant", "content": answer}, {"role": "user", "content": "Go on."}]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A program that calls a tool in three turns, and is then asked once more."""

    path: str
    more: Mapping[str, Any]  # of the body, beside model and turns
    history: Sequence[Item]
    calls: Sequence[tuple[str, Mapping[str, Any], Any]]  # tool, arguments, result
    write: Callable[[Call, Any], list[Item]] = write_chat  # a call and its result
    close: Callable[[str, str], list[Item]] = close_chat  # text and item of the last answer; the user's next turn
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return "input" if self.path == RESPONSES else "messages"

    @property
    def body(self) -> Item:
        return {"model": "fake", **self.more}


PLACE: Item = {"type": "string", "description": "Where it is."}
STREAMED: Item = {"stream": True, "stream_options": {"include_usage": True}}
DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema(**properties: Item) -> Item:
    return {"type": "object", "properties": properties, "required": [*properties][:1], "additionalProperties": False}


def of_zod(**properties: Item) -> Item:
    return {"$schema": DRAFT, **schema(**properties)}


def function(name: str, parameters: Item, **more: object) -> Item:
    """A tool of chats."""
    return {"type": "function", "function": {"name": name, "description": "Does it.", "parameters": parameters, **more}}


def flat(name: str, parameters: Item, **more: object) -> Item:
    """A tool of responses."""
    return {"type": "function", **function(name, parameters, **more)["function"]}


def text(role: str, *texts: str, kind: str = "text", **more: object) -> Item:
    return {"role": role, "content": [{"type": kind, "text": one} for one in texts], **more}


NUMBER: Item = {"type": "integer", "minimum": 0, "exclusiveMinimum": 0, "maximum": 2**53 - 1, "default": 10}
ANY_MAP: Item = {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {}}
ADDRESS: Item = {"type": "string", "format": "uri", "pattern": r"^(?!file:)\w+://", "minLength": 1}
STATE: Item = {"anyOf": [{"type": "string", "enum": ["new", "done"]}, {"type": "string", "const": "gone"}]}

# Codex 0.171.0
SESSION = "0c0ffee0-0000-7000-8000-000000000001"


def codex_item(number: int, role: str, *texts: str) -> Item:
    return {"type": "message", "id": f"msg_{SESSION}-{number}", **text(role, *texts, kind="input_text")}


def items_of(call: Call, told: Any, **more: object) -> list[Item]:
    """A call and its result, as items of responses."""
    called = {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments, **more}
    return [called, {"type": "function_call_output", "call_id": call.id, "output": told}]


def said(answer: str, item: str) -> Item:
    part = {"type": "output_text", "text": answer, "annotations": [], "logprobs": []}
    return {"type": "message", "status": "completed", "id": item, "role": "assistant", "content": [part]}


def codex_write(call: Call, told: Any) -> list[Item]:
    called, output = items_of(call, told, status="completed", id=call.item)
    return [called, {**output, "id": f"fco_{SESSION}"}]


SHELL = flat("exec_command", schema(cmd=PLACE, tty={"type": "boolean"}, wait={"type": "number"}), strict=False)
VIEW = flat("view_image", schema(path=PLACE), strict=False)
CLOSE, WAIT = flat("close_agent", schema(target=PLACE), strict=False), flat("wait_agent", schema(), strict=False)
AGENTS = {"type": "namespace", "name": "agents_v1", "description": "Others.", "tools": [CLOSE, WAIT]}
CODEX_PICTURE = {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}", "detail": "high"}
CODEX = Shape(
    path=RESPONSES,
    more={
        **{"stream": True, "store": False, "tool_choice": "auto", "parallel_tool_calls": True},
        "tools": [SHELL, VIEW, AGENTS, {"type": "web_search", "external_web_access": False}],
        "reasoning": {"summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": SESSION,
        "client_metadata": {"session_id": SESSION, "turn": '{"request_kind":"turn","window_number":0}'},
    },
    history=(
        codex_item(1, "developer", "You write code."),
        codex_item(2, "developer", "No skills.", "Files may be read."),
        codex_item(3, "user", "<environment><cwd>/home/me</cwd></environment>"),
        codex_item(4, "user", "Read the note."),
    ),
    calls=(
        ("exec_command", {"cmd": "cat note.txt"}, "Exit code: 0\nOutput:\nA note.\n"),
        ("view_image", {"path": "/home/me/dot.png"}, [CODEX_PICTURE]),
        ("exec_command", {"cmd": "ls", "tty": False, "wait": 0.5}, "Exit code: 1\nOutput:\n"),
    ),
    write=codex_write,
    close=lambda answer, item: [said(answer, item), codex_item(9, "user", "Go on.")],
    headers={  # the id is the session's, the same in all its calls
        **{"originator": "codex_exec", "x-client-request-id": SESSION, "session-id": SESSION},
        **{"Accept": "text/event-stream", "Accept-Encoding": "zstd,gzip"},
    },
)

# Claude Code 2.1.197
BILLING = "x-anthropic-billing-header: cc_version=2.1.197.b63; cc_entrypoint=sdk-cli;"
CLAUDE_PICTURE = {"type": "base64", "data": PICTURE, "media_type": "image/png"}
CACHED = {"cache_control": {"type": "ephemeral"}}


def claude_system(billing: str, *texts: str) -> list[Item]:
    return [{"type": "text", "text": billing}, *({"type": "text", "text": one, **CACHED} for one in texts)]


def claude_history(task: str, told: str) -> list[Item]:
    return [text("user", "<reminder>Be kind.</reminder>", task), {"role": "system", "content": told}]


def claude_write(call: Call, told: Any) -> list[Item]:
    used = {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
    more = {"is_error": False} if isinstance(told, str) else CACHED
    told = {"tool_use_id": call.id, "type": "tool_result", "content": told, **more}
    return [{"role": "assistant", "content": [used]}, {"role": "user", "content": [told]}]


def claude_tool(name: str, **properties: Item) -> Item:
    return {"name": name, "description": "Does it.", "input_schema": of_zod(**properties)}


CLAUDE_CODE = Shape(
    path=f"{MESSAGES}?beta=true",
    more={
        **{"stream": True, "max_tokens": 64_000, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
        "system": claude_system(BILLING, "You write code.", "You are brief."),
        "tools": [
            claude_tool("Read", file_path=PLACE, limit=NUMBER),
            claude_tool("WebFetch", url=ADDRESS),
            claude_tool("TaskUpdate", status=STATE, metadata=ANY_MAP),
        ],
        "metadata": {"user_id": '{"device_id":"0","session_id":"0"}'},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    },
    history=claude_history("Read the note.", "These are the agents: none."),
    calls=(
        ("Read", {"file_path": "/home/me/note.txt"}, "1\tA note.\n2\t"),
        ("Read", {"file_path": "/home/me/dot.png"}, [{"type": "image", "source": CLAUDE_PICTURE}]),
        ("TaskUpdate", {"status": "done", "metadata": {"of": "me"}}, "Updated."),
    ),
    write=claude_write,
    close=lambda answer, _: [text("assistant", answer), text("user", "Go on.")],
    headers={
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,context-1m-2025-08-07,mid-conversation-system-2026-04-07",
        **{"x-app": "cli", "X-Stainless-Retry-Count": "0"},
    },
)


# opencode 1.18.33
def opencode_write(call: Call, told: Any) -> list[Item]:
    turns = [chat_call(call, ""), result(call, told if isinstance(told, str) else "The picture is read.")]
    return turns if isinstance(told, str) else [*turns, text("user", "What the tool has attached:", *told)]


OPENCODE = Shape(
    path=CHAT,
    more={
        "max_tokens": 32_000,
        "tools": [
            function("read", of_zod(filePath=PLACE, offset=NUMBER)),
            function("bash", of_zod(command=PLACE, timeout={"type": "integer", "exclusiveMinimum": 0})),
        ],
        "tool_choice": "auto",
        **STREAMED,
    },
    history=({"role": "system", "content": "You write code."}, {"role": "user", "content": '"Read the note."'}),
    calls=(
        ("read", {"filePath": "/home/me/note.txt"}, "<content>A note.</content>"),
        ("read", {"filePath": "/home/me/dot.png"}, ["ERROR: no pictures."]),
        ("bash", {"command": "echo hello"}, "hello\n"),
    ),
    write=opencode_write,
    headers={"x-session-affinity": "ses_1", "x-session-id": "ses_1"},
)

# qwen-code 0.15.10
DAY: Item = {"type": "array", "items": {"type": "string", "minLength": 2, "enum": ["mon", "tue"]}}
QWEN_TOOLS = [function("read_file", schema(file_path=PLACE)), function("plan", schema(days=DAY))]
QWEN_CODE = Shape(
    path=CHAT,
    more={**STREAMED, "tools": QWEN_TOOLS, "max_tokens": 8000},
    history=(
        {"role": "system", "content": "You write code."},
        text("user", "The day is Monday."),
        {"role": "assistant", "content": "I see."},
        text("user", "Read the note."),
    ),
    calls=(
        ("read_file", {"file_path": "/home/me/note.txt"}, "A note.\n"),
        ("read_file", {"file_path": "/home/me/dot.png"}, "[A picture cannot be read.]"),
        ("plan", {"days": ["mon", "tue"]}, "Planned."),
    ),
    write=lambda call, told: [chat_call(call, None), result(call, [{"type": "text", "text": told}])],
)

CODING_AGENTS = {"Codex": CODEX, "Claude Code": CLAUDE_CODE, "opencode": OPENCODE, "qwen-code": QWEN_CODE}


# The SDKs of agents: AI SDK 6.0.326, openai-agents 0.24.0, inspect-ai 0.3.285
CITIES = tuple(("weather", {"city": city}, f"20 degrees in {city}") for city in ("Graz", "Wien", "Linz"))
ASKED: Item = {"role": "user", "content": "How warm is it?"}
STRICT = {**schema(city={**PLACE, "title": "City"}), "title": "weather_args"}

AI_SDK = Shape(
    path=RESPONSES,
    more={"tools": [flat("weather", of_zod(city=PLACE))], "tool_choice": "auto", "stream": True},
    history=(text("user", "How warm is it?", kind="input_text"),),
    calls=CITIES,
    write=items_of,
    close=lambda _, item: [{"type": "item_reference", "id": item}, text("user", "Go on.", kind="input_text")],
)
AGENTS_RESPONSES = Shape(
    path=RESPONSES,
    more={"include": [], "tools": [flat("weather", STRICT, strict=True)], "stream": True},
    history=(ASKED,),
    calls=CITIES,
    write=lambda call, told: items_of(call, told, id=call.item, status="completed"),
    close=lambda answer, item: [said(answer, item), {"role": "user", "content": "Go on."}],
)
AGENTS_CHATS = Shape(
    path=CHAT, more={"tools": [function("weather", STRICT, strict=True)]}, history=(ASKED,), calls=CITIES
)
INSPECT = replace(
    AGENTS_CHATS,
    more={"tools": [function("weather", schema(city=PLACE), strict=True)], "tool_choice": "auto"},
    write=lambda call, told: [chat_call(call, "", json.dumps(json.loads(call.arguments))), result(call, told)],
)

SDKS: Mapping[str, Shape] = {
    "AI SDK": AI_SDK,
    "openai-agents, responses": AGENTS_RESPONSES,
    "openai-agents, chats": AGENTS_CHATS,
    "inspect-ai": INSPECT,
}
