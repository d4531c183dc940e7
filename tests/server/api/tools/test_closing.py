"""Schemas that are closed: what strict: true and --close-schemas make of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest

from server.api.input.tools import close_schema
from server.api.limits import Limits
from tests.server.live import chat_body, live_server

CHAT = "/v1/chat/completions"
OPEN = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["age"]}
CLOSED = {**OPEN, "required": ["name", "age"], "additionalProperties": False}
TOOL = {"name": "f", "parameters": OPEN}


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        (OPEN, CLOSED),
        ({"type": "array", "items": OPEN}, {"type": "array", "items": CLOSED}),
        ({"anyOf": [OPEN, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        ({"$ref": "#/$defs/a", "$defs": {"a": OPEN}}, {"$ref": "#/$defs/a", "$defs": {"a": CLOSED}}),
        ({"type": "object"}, {"type": "object"}),  # any object at all is what was asked for
        ({"type": "object", "additionalProperties": OPEN}, {"type": "object", "additionalProperties": CLOSED}),
        ({"allOf": [OPEN], "properties": {"b": {}}}, {"allOf": [OPEN], "properties": {"b": {}}}),
        (
            {"properties": {"properties": OPEN}},
            {"properties": {"properties": CLOSED}, "required": ["properties"], "additionalProperties": False},
        ),
    ],
)
def test_objects_are_closed_wherever_their_properties_stand_in_one_place(
    schema: dict[str, Any], closed: dict[str, Any]
) -> None:
    assert close_schema(schema) == closed


def json_schema(strict: bool | None) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "person", "schema": OPEN, "strict": strict}}


@pytest.mark.parametrize(
    ("flag", "fields", "closes"),
    [
        (False, {"response_format": json_schema(True)}, True),
        (False, {"response_format": json_schema(None)}, False),
        (False, {"response_format": json_schema(False)}, False),
        (True, {"response_format": json_schema(None)}, True),
        (True, {"structured_outputs": {"json": OPEN}}, True),
        (False, {"tools": [{"type": "function", "function": {**TOOL, "strict": True}}]}, True),
        (False, {"tools": [{"type": "function", "function": TOOL}]}, False),
        (True, {"tools": [{"type": "function", "function": TOOL}]}, True),
    ],
)
async def test_strict_schemas_are_closed_and_with_the_flag_all(
    pool: ThreadPoolExecutor, flag: bool, fields: dict[str, object], closes: bool
) -> None:
    async with live_server(pool, Limits(), close_schemas=flag, context_length=4096) as live:
        choice = {"tool_choice": "required"} if "tools" in fields else {}
        status, reply = await live.post(CHAT, {**chat_body(), **fields, **choice})
        assert status == 200, reply
        grammar = live.dispatcher.submitted[0].sampling.grammar
        assert grammar is not None
        assert ('"required":["name","age"]' in grammar.text) == closes
        assert (orjson.dumps({"additionalProperties": False})[1:-1].decode() in grammar.text) == closes
