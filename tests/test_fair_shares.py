"""Shares of service over HTTP: a real server and two keys, one of which asks for ten times as much."""

import asyncio
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from tests import tiny
from tests.live_server import serve_here

MODEST, GREEDY = "the-modest-client-00", "the-greedy-client-00"
BODY = {"prompt": "the", "max_tokens": 8, "ignore_eos": True}
FIRST, ANSWERS = 30, 75
"""Each key's answers before both wait all the while, however late its connections were made, and those counted."""


@pytest.mark.slow
async def test_each_key_has_its_share_though_the_other_asks_for_ten_times_as_much(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{MODEST} 2\n{GREEDY}\n")
    file.chmod(0o600)
    flags = ("--api-key-file", str(file), "--max-num-seqs", "2", "--prefill-ahead", "1", "--strategy", "lengthwise")
    answered, counted = Counter[str](), list[str]()
    enough = asyncio.Event()

    async def ask_on(session: aiohttp.ClientSession, url: str, key: str) -> None:
        while True:
            headers = {"Authorization": f"Bearer {key}"}
            async with session.post(f"{url}/v1/completions", json=BODY, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()
            answered[key] += 1
            if min(answered[MODEST], answered[GREEDY]) > FIRST:
                counted.append(key)
            if len(counted) >= ANSWERS:
                enough.set()

    with serve_here(tiny.build(tmp_path / "model"), *flags) as url:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            calls = [asyncio.create_task(ask_on(session, url, key)) for key in [MODEST] * 12 + [GREEDY] * 120]
            await asyncio.wait([*calls, asyncio.create_task(enough.wait())], return_when=asyncio.FIRST_COMPLETED)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
    assert abs(counted[:ANSWERS].count(MODEST) - 50) <= 4  # of 75, with weights of 2 to 1
