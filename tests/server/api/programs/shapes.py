"""What a program sends at its defaults, turn for turn: fields, types and the order of turns are those seen in November
2026, the values are our own. `make docs-clients` runs the programs themselves."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Item = dict[str, Any]
CHATS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


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
