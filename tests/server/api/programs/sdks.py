"""Agents that people write with SDKs and with Inspect."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tests.server.api.programs.shapes import (
    CHATS,
    PLACE,
    RESPONSES,
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
