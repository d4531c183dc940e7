"""Agents that write code, as people start them, and agents that people write with SDKs and with Inspect."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tests.server.api.programs.shapes import (
    CHATS,
    MESSAGES,
    PICTURE,
    PLACE,
    RESPONSES,
    STREAMED,
    Call,
    Item,
    Shape,
    chat_call,
    flat,
    function,
    next_chat,
    of_zod,
    result,
    schema,
    text,
)

NUMBER: Item = {"type": "integer", "minimum": 0, "exclusiveMinimum": 0, "maximum": 2**53 - 1, "default": 10}
ANY_MAP: Item = {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {}}
ADDRESS: Item = {"type": "string", "format": "uri", "pattern": r"^(?!file:)\w+://", "minLength": 1}
STATE: Item = {"anyOf": [{"type": "string", "enum": ["new", "done"]}, {"type": "string", "const": "gone"}]}

# Codex 0.171.0

SESSION = "0c0ffee0-0000-7000-8000-000000000001"


def codex_item(number: int, role: str, *texts: str) -> Item:
    return {"type": "message", "id": f"msg_{SESSION}-{number}", **text(role, *texts, kind="input_text")}


def codex_write(call: Call, told: Any) -> list[Item]:
    called = {"type": "function_call", "status": "completed", "id": call.item, "name": call.name}
    output = {"type": "function_call_output", "id": f"fco_{SESSION}", "call_id": call.id, "output": told}
    return [{**called, "arguments": call.arguments, "call_id": call.id}, output]


def codex_close(answer: str, item: str) -> list[Item]:
    part = {"type": "output_text", "text": answer, "annotations": [], "logprobs": []}
    said = {"type": "message", "status": "completed", "id": item, "role": "assistant", "content": [part]}
    return [said, codex_item(9, "user", "Go on.")]


SHELL = flat("exec_command", schema(cmd=PLACE, tty={"type": "boolean"}, wait={"type": "number"}), strict=False)
VIEW = flat("view_image", schema(path=PLACE), strict=False)
CLOSE, WAIT = flat("close_agent", schema(target=PLACE), strict=False), flat("wait_agent", schema(), strict=False)
AGENTS = {"type": "namespace", "name": "agents_v1", "description": "Others.", "tools": [CLOSE, WAIT]}
CODEX_PICTURE = {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}", "detail": "high"}
CODEX = Shape(
    RESPONSES,
    {
        "model": "fake",
        "stream": True,
        "tools": [SHELL, VIEW, AGENTS, {"type": "web_search", "external_web_access": False}],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": SESSION,
        "client_metadata": {"session_id": SESSION, "turn": '{"request_kind":"turn","window_number":0}'},
    },
    (
        codex_item(1, "developer", "You write code."),
        codex_item(2, "developer", "No skills.", "Files may be read."),
        codex_item(3, "user", "<environment><cwd>/home/me</cwd></environment>"),
        codex_item(4, "user", "Read the note."),
    ),
    (
        ("exec_command", {"cmd": "cat note.txt"}, "Exit code: 0\nOutput:\nA note.\n"),
        ("view_image", {"path": "/home/me/dot.png"}, [CODEX_PICTURE]),
        ("exec_command", {"cmd": "ls", "tty": False, "wait": 0.5}, "Exit code: 1\nOutput:\n"),
    ),
    codex_write,
    codex_close,
    {  # the id is the session's, the same in all its calls
        "originator": "codex_exec",
        "x-client-request-id": SESSION,
        "session-id": SESSION,
        "Accept": "text/event-stream",
        "Accept-Encoding": "zstd,gzip",
    },
)

# Claude Code 2.1.197

CLAUDE_PICTURE = {"type": "base64", "data": PICTURE, "media_type": "image/png"}
CACHED = {"cache_control": {"type": "ephemeral"}}


def claude_write(call: Call, told: Any) -> list[Item]:
    used = {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
    more = {"is_error": False} if isinstance(told, str) else CACHED
    told = {"tool_use_id": call.id, "type": "tool_result", "content": told, **more}
    return [{"role": "assistant", "content": [used]}, {"role": "user", "content": [told]}]


def claude_close(answer: str, _: str) -> list[Item]:
    return [text("assistant", answer), text("user", "Go on.")]


CLAUDE_CODE = Shape(
    f"{MESSAGES}?beta=true",
    {
        "model": "fake",
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.b63; cc_entrypoint=sdk-cli;"},
            {"type": "text", "text": "You write code.", **CACHED},
            {"type": "text", "text": "You are brief.", **CACHED},
        ],
        "tools": [
            {"name": "Read", "description": "Does it.", "input_schema": of_zod(file_path=PLACE, limit=NUMBER)},
            {"name": "WebFetch", "description": "Does it.", "input_schema": of_zod(url=ADDRESS)},
            {"name": "TaskUpdate", "description": "Does it.", "input_schema": of_zod(status=STATE, metadata=ANY_MAP)},
        ],
        "metadata": {"user_id": '{"device_id":"0","session_id":"0"}'},
        "max_tokens": 64_000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
    },
    (
        text("user", "<reminder>Be kind.</reminder>", "Read the note."),
        {"role": "system", "content": "These are the agents: none."},
    ),
    (
        ("Read", {"file_path": "/home/me/note.txt"}, "1\tA note.\n2\t"),
        ("Read", {"file_path": "/home/me/dot.png"}, [{"type": "image", "source": CLAUDE_PICTURE}]),
        ("TaskUpdate", {"status": "done", "metadata": {"of": "me"}}, "Updated."),
    ),
    claude_write,
    claude_close,
    {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,context-1m-2025-08-07,mid-conversation-system-2026-04-07",
        "x-app": "cli",
        "X-Stainless-Retry-Count": "0",
    },
)

# opencode 1.18.33


def opencode_write(call: Call, told: Any) -> list[Item]:
    turns = [chat_call(call, ""), result(call, told if isinstance(told, str) else "The picture is read.")]
    return turns if isinstance(told, str) else [*turns, text("user", "What the tool has attached:", *told)]


OPENCODE = Shape(
    CHATS,
    {
        "model": "fake",
        "max_tokens": 32_000,
        "tools": [
            function("read", of_zod(filePath=PLACE, offset=NUMBER)),
            function("bash", of_zod(command=PLACE, timeout={"type": "integer", "exclusiveMinimum": 0})),
        ],
        "tool_choice": "auto",
        **STREAMED,
    },
    ({"role": "system", "content": "You write code."}, {"role": "user", "content": '"Read the note."'}),
    (
        ("read", {"filePath": "/home/me/note.txt"}, "<content>A note.</content>"),
        ("read", {"filePath": "/home/me/dot.png"}, ["ERROR: no pictures."]),
        ("bash", {"command": "echo hello"}, "hello\n"),
    ),
    opencode_write,
    next_chat,
    {"x-session-affinity": "ses_1", "x-session-id": "ses_1"},
)

# qwen-code 0.15.10


def qwen_write(call: Call, told: Any) -> list[Item]:
    return [chat_call(call, None), result(call, [{"type": "text", "text": told}])]


DAY: Item = {"type": "array", "items": {"type": "string", "minLength": 2, "enum": ["mon", "tue"]}}
QWEN_CODE = Shape(
    CHATS,
    {
        "model": "fake",
        **STREAMED,
        "tools": [function("read_file", schema(file_path=PLACE)), function("plan", schema(days=DAY))],
        "max_tokens": 8000,
    },
    (
        {"role": "system", "content": "You write code."},
        text("user", "The day is Monday."),
        {"role": "assistant", "content": "I see."},
        text("user", "Read the note."),
    ),
    (
        ("read_file", {"file_path": "/home/me/note.txt"}, "A note.\n"),
        ("read_file", {"file_path": "/home/me/dot.png"}, "[A picture cannot be read.]"),
        ("plan", {"days": ["mon", "tue"]}, "Planned."),
    ),
    qwen_write,
    next_chat,
)

CODING_AGENTS: Mapping[str, Shape] = MappingProxyType(
    {"Codex": CODEX, "Claude Code": CLAUDE_CODE, "opencode": OPENCODE, "qwen-code": QWEN_CODE}
)


# The SDKs of agents: AI SDK 6.0.326, openai-agents 0.24.0, inspect-ai 0.3.285

CITIES = tuple(("weather", {"city": city}, f"20 degrees in {city}") for city in ("Graz", "Wien", "Linz"))
ASKED: Item = {"role": "user", "content": "How warm is it?"}
STRICT = {**schema(city={**PLACE, "title": "City"}), "title": "weather_args"}


def ai_sdk_write(call: Call, told: Any) -> list[Item]:
    called = {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
    return [called, {"type": "function_call_output", "call_id": call.id, "output": told}]


def ai_sdk_close(_: str, item: str) -> list[Item]:
    return [{"type": "item_reference", "id": item}, text("user", "Go on.", kind="input_text")]


def agents_write(call: Call, told: Any) -> list[Item]:
    called, output = ai_sdk_write(call, told)
    return [{**called, "id": call.item, "status": "completed"}, output]


def agents_close(answer: str, item: str) -> list[Item]:
    part = {"annotations": [], "text": answer, "type": "output_text", "logprobs": []}
    said = {"id": item, "content": [part], "role": "assistant", "status": "completed", "type": "message"}
    return [said, {"role": "user", "content": "Go on."}]


AI_SDK = Shape(
    RESPONSES,
    {"model": "fake", "tools": [flat("weather", of_zod(city=PLACE))], "tool_choice": "auto", "stream": True},
    (text("user", "How warm is it?", kind="input_text"),),
    CITIES,
    ai_sdk_write,
    ai_sdk_close,
)
AGENTS_RESPONSES = Shape(
    RESPONSES,
    {"model": "fake", "include": [], "tools": [flat("weather", STRICT, strict=True)], "stream": True},
    (ASKED,),
    CITIES,
    agents_write,
    agents_close,
)
AGENTS_CHATS = Shape(
    CHATS,
    {"model": "fake", "tools": [function("weather", STRICT, strict=True)]},
    (ASKED,),
    CITIES,
    lambda call, told: [chat_call(call, None), result(call, told)],
    next_chat,
)
INSPECT = Shape(
    CHATS,
    {"model": "fake", "tools": [function("weather", schema(city=PLACE), strict=True)], "tool_choice": "auto"},
    (ASKED,),
    CITIES,
    lambda call, told: [chat_call(call, "", json.dumps(json.loads(call.arguments))), result(call, told)],
    next_chat,
)

SDKS: Mapping[str, Shape] = MappingProxyType(
    {
        "AI SDK": AI_SDK,
        "openai-agents, responses": AGENTS_RESPONSES,
        "openai-agents, chats": AGENTS_CHATS,
        "inspect-ai": INSPECT,
    }
)
