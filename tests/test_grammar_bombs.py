"""Grammars that ended the process, or filled its memory, sent to a server that has to live through them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from io import BytesIO
from typing import Any

import aiohttp
import orjson
import pytest

from engine.messages import Grammar, GrammarKind
from tests.engine.sampling.bombs import BOMBS

GROWTH = 300 * 2**20
"""Bytes that all of them together may cost; one of them took 6 GB."""


@pytest.fixture
async def session(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(60)) as session:
        yield session


def fields(grammar: Grammar) -> dict[str, Any]:
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return {"response_format": {"type": "json_schema", "json_schema": {"schema": orjson.loads(grammar.text)}}}
        case GrammarKind.LARK:
            return {"structured_outputs": {"grammar": grammar.text}}
        case GrammarKind.REGEX:
            return {"structured_outputs": {"regex": grammar.text}}


def as_tool(grammar: Grammar) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": "f", "parameters": orjson.loads(grammar.text) | {"type": "object"}},
    }


async def refusal(session: aiohttp.ClientSession, **asked: Any) -> str:
    """What is told of a call that must be refused."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, **asked}
    async with session.post("/v1/chat/completions", data=BytesIO(orjson.dumps(body))) as response:
        assert response.status == 400, await response.text()
        message: str = (await response.json())["error"]["message"]
        return message


async def memory(session: aiohttp.ClientSession) -> float:
    """Bytes that the server has in memory, which also shows that it lives."""
    async with session.get("/metrics") as response:
        found = re.search(r"^process_resident_memory_bytes (\S+)$", await response.text(), re.MULTILINE)
    assert found is not None
    return float(found[1])


async def test_a_server_lives_through_every_bomb_and_its_memory_stays(session: aiohttp.ClientSession) -> None:
    before = await memory(session)
    for grammar, _ in BOMBS.values():
        await refusal(session, **fields(grammar))
        if grammar.kind is GrammarKind.JSON_SCHEMA:
            for choice in ("auto", "required"):
                await refusal(session, tools=[as_tool(grammar)], tool_choice=choice)
    assert await memory(session) - before < GROWTH


async def test_many_large_tools_are_refused_without_the_compilers_traceback(session: aiohttp.ClientSession) -> None:
    """The compiler panicked, and the client was told addresses inside the server."""
    schema = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(300)}}
    tools = [{"type": "function", "function": {"name": f"f{one}", "parameters": schema}} for one in range(80)]
    said = await refusal(session, tools=tools, tool_choice="required")
    assert said.startswith("tools: has 24080 subschemas and enum values, and 8192 is the most that is taken")
