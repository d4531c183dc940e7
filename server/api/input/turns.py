"""Messages -> turns for chat templates; earlier turns may hold anything readable."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from server.api.errors import invalid
from server.api.input.refused import ignore, is_deep, required
from server.api.input.schema import TEXTS, Content, Message, PastCall
from server.api.input.tools import Turn

# OpenAI's aliases
ROLES: Mapping[str, str] = {"developer": "system", "function": "tool"}


def as_turn(message: Message, path: str, names: dict[str, str], objects: bool) -> Turn:
    """Arguments become `objects` where they can; adds to `names`."""
    role = ROLES.get(message.role, message.role)
    calls = message.tool_calls or ([PastCall(message.function_call)] if message.function_call else [])
    if calls and role != "assistant":
        raise invalid(f"{path}.tool_calls", "only the assistant calls tools")
    content = message.content
    if not isinstance(content, str):
        is_past = role in ("assistant", "tool")
        where = f"{path}.content"
        content = join_past(content, where, of_tool=role == "tool") if is_past else join_content(content, where)
    turn: Turn = {"role": role, "content": content or message.refusal or ""}
    if calls:
        turn["tool_calls"] = [_call(one, f"{path}.tool_calls[{at}]", objects) for at, one in enumerate(calls)]
        names.update((one["id"], one["function"]["name"]) for one in turn["tool_calls"] if one["id"])
    if message.role == "tool":
        why = "; it names the call whose result this is"
        turn["tool_call_id"] = required(message.tool_call_id or None, f"{path}.tool_call_id", why)
    told = {"name": message.name or names.get(message.tool_call_id or "") if role == "tool" else message.name}
    told["reasoning_content"] = message.reasoning_content or message.reasoning
    return turn | {name: text for name, text in told.items() if text}


def _call(call: PastCall, path: str, objects: bool) -> dict[str, Any]:
    called = required(call.function or call.custom, f"{path}.function")
    given = bytes(called.arguments)  # any text, or else a JSON value as it stands
    text = msgspec.json.decode(given, type=str) if given.startswith(b'"') else given.decode()
    arguments = "{}" if text.strip() in ("", "null") else text
    if called.input is not None:
        arguments = json.dumps({"input": called.input}, ensure_ascii=False, separators=(",", ":"))
    function = {"name": called.name or "", "arguments": _object_of(arguments) if objects else arguments}
    return {"id": call.id, "type": "function", "function": function}


def _object_of(text: str) -> Any:
    """Keeps all digits of numbers; other text as is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) and not is_deep(value) else text


def join_content(content: Content | None, path: str) -> str:
    """Raises ApiError 400 for what is not text."""
    if content is None:
        raise invalid(path, "must be a string or a list of text parts")
    if isinstance(content, str):
        return content
    for place, part in enumerate(content):
        if part.type not in TEXTS:
            raise invalid(f"{path}[{place}]", "only parts of type 'text' are supported", "unsupported")
        required(part.text, f"{path}[{place}].text")
    return "".join(part.text or "" for part in content)


def join_past(content: Content | None, path: str, *, of_tool: bool) -> str:
    """Of an answer or a result `of_tool`; a note replaces what cannot be read."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for place, part in enumerate(content):
        if part.type in TEXTS or part.refusal is not None:
            texts.append(part.text or part.refusal or "")
            continue
        ignore(f"{path}[{place}]", part.type)
        if of_tool:
            kind = part.type[:64].removeprefix("input_").removesuffix("_url")
            texts.append(f"[{kind} left out: only text can be read]")
    return "".join(texts)


def read_past(raw: msgspec.Raw) -> Content | None:
    if not bytes(raw):
        return None
    try:
        content: Content | None = msgspec.json.decode(raw, type=Content | None)
    except msgspec.ValidationError:
        return bytes(raw).decode()
    return content
