"""Grammars that ended the process, filled its memory, or stopped its other answers, sent to a server that has to live
through them."""

import re
from collections.abc import AsyncIterator, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from engine.sampling.params import Grammar, GrammarKind
from tests.engine.sampling.bombs import BOMBS
from tests.live_server import serve

GROWTH = 300 * 2**20
"""Bytes that all of them together may cost; one of them took 6 GB."""

QUICK_BOMBS = ("1,300 links by items", "a chain of rules", "alternatives multiplied", "ambiguous by two")


@pytest.fixture(scope="module")
def url(tiny_folder: Path) -> Iterator[str]:
    """A server in a process of its own, which a bomb may end or fill."""
    with serve(tiny_folder) as url:
        yield url


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


async def ask(session: aiohttp.ClientSession, **asked: Any) -> tuple[int, str]:
    """Status of a call, and what is told where it is none of 200."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100, **asked}
    async with session.post("/v1/chat/completions", data=BytesIO(orjson.dumps(body))) as response:
        reply = await response.json()
        return response.status, "" if response.status == 200 else reply["error"]["message"]


async def memory(session: aiohttp.ClientSession) -> float:
    """Bytes that the server has in memory, which also shows that it lives."""
    async with session.get("/metrics") as response:
        found = re.search(r"^process_resident_memory_bytes (\S+)$", await response.text(), re.MULTILINE)
    assert found is not None
    return float(found[1])


async def throw(session: aiohttp.ClientSession, grammar: Grammar, *, as_tools: bool = False) -> None:
    """Send a grammar, in each way that there is; it is served, or refused in words for its client."""
    asked = [fields(grammar)]
    if as_tools and grammar.kind is GrammarKind.JSON_SCHEMA:
        asked += [{"tools": [as_tool(grammar)], "tool_choice": choice} for choice in ("auto", "required")]
    for one in asked:
        status, said = await ask(session, **one)
        assert status in (200, 400), said
        assert said.isprintable() and not any(word in said for word in ("panic", ".rs:", "backtrace"))


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_server_lives_through_every_bomb_and_its_memory_stays(session: aiohttp.ClientSession) -> None:
    before = await memory(session)
    for name, grammar in BOMBS.items():
        await throw(session, grammar, as_tools=name in QUICK_BOMBS)
    assert await memory(session) - before < GROWTH
    assert await ask(session, **fields(BOMBS["a base below the root"])) == (200, "")
