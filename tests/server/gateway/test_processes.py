"""A gateway and backends as processes: what is left of calls that were aborted, and of those that met a kill."""

import asyncio
import os
import random
import re
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import pytest

from tests.server.gateway.backends import chat
from tests.server.gateway.processes import Process, backend, gateway

FAULTS = "LENGTHWISE_TEST_FAULTS" in os.environ
CALLS, KILLS = (10_000, 100) if FAULTS else (500, 6)
PATH = "/v1/chat/completions"


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session:
        yield session


async def read(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.get(url) as answer:
        return await answer.json()


async def under_way(session: aiohttp.ClientSession, server: Process) -> int:
    """Calls that a gateway, or a backend, has not come to the end of."""
    if "gateway" in server.process.args:  # type: ignore[operator]
        health = await read(session, f"{server.url}/health")
        return int(health["requests_waiting"] + health["requests_running"])
    state = await read(session, f"{server.url}/state")
    return int(state["waiting"] + state["running"])


async def slots(session: aiohttp.ClientSession, server: Process) -> float:
    async with session.get(f"{server.url}/metrics") as answer:
        found = re.search(r"^lengthwise:executor_slots\{.*\} (\S+)$", await answer.text(), re.MULTILINE)
    assert found is not None
    return float(found[1])


@pytest.mark.timeout(600 if FAULTS else 240)
async def test_calls_that_are_aborted_leave_nothing() -> None:
    chance, left = random.Random(0), iter(range(CALLS))
    with backend(slots=4, step_ms=1.0) as behind, gateway(behind.url) as before:
        async with client() as session:

            async def leave() -> None:
                for _ in left:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(chance.uniform(0.001, 0.05)):
                            body = chat(max_tokens=10_000, stream=chance.random() < 0.5)
                            async with session.post(f"{before.url}{PATH}", json=body) as answer:
                                await answer.read()

            await asyncio.gather(*(leave() for _ in range(50)))

            while await under_way(session, before) + await under_way(session, behind):
                await asyncio.sleep(0.02)
            body = chat(max_tokens=20)
            answers = await asyncio.gather(*(session.post(f"{before.url}{PATH}", json=body) for _ in range(80)))
            assert {answer.status for answer in answers} == {200}
            await asyncio.gather(*(answer.read() for answer in answers))
            assert 4 <= await slots(session, before) <= 20  # steps are shorter than the lag of a first byte


@pytest.mark.timeout(600 if FAULTS else 240)
async def test_a_backend_that_is_killed_loses_no_call_that_had_no_byte() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ends: Counter[str] = Counter()
    over = asyncio.Event()
    with backend(4, 5.0, "--outlive", "--port", str(port)) as behind, gateway(behind.url) as before:
        async with client() as session:

            async def ask(stream: bool) -> None:
                while not over.is_set():
                    async with session.post(f"{before.url}{PATH}", json=chat(max_tokens=20, stream=stream)) as answer:
                        ends[end_of(answer.status, await answer.read(), stream)] += 1

            asking = [asyncio.ensure_future(ask(stream=number % 4 > 0)) for number in range(16)]
            for _ in range(KILLS):
                pid = await pid_of(session, behind)
                enough = ends["whole"] + 4
                while ends["whole"] <= enough:
                    await asyncio.sleep(0.02)
                os.kill(pid, signal.SIGKILL)
            over.set()
            await asyncio.gather(*asking)
            assert await under_way(session, before) == 0
    assert ends.keys() <= {"whole", "broken off behind its first byte"}, ends
    assert ends["whole"] > 4 * KILLS and ends["broken off behind its first byte"] > 0, ends


def end_of(status: int, told: bytes, stream: bool) -> str:
    if status == 200 and told.count(b" word") == 20:
        return "whole"
    ended = told.endswith(b"data: [DONE]\n\n") and b"backend_failed" in told
    if stream and status == 200 and b" word" in told and ended:
        return "broken off behind its first byte"
    return f"{status}: {told[-200:]!r}"


async def pid_of(session: aiohttp.ClientSession, server: Process) -> int:
    """The process that serves now, once it does."""
    while True:
        with suppress(aiohttp.ClientError):
            return int((await read(session, f"{server.url}/state"))["pid"])
        await asyncio.sleep(0.01)


async def test_a_gateway_that_is_killed_closes_every_connection() -> None:
    with backend(slots=4) as behind, gateway(behind.url) as before:
        async with client() as session:
            asked = [asyncio.ensure_future(ask_to_the_end(session, before, bool(number % 2))) for number in range(8)]
            while await under_way(session, before) < 8 or await under_way(session, behind) < 4:
                await asyncio.sleep(0.02)
            before.process.kill()
            assert await asyncio.gather(*asked) == ["closed"] * 8
            while await under_way(session, behind):
                await asyncio.sleep(0.02)


async def ask_to_the_end(session: aiohttp.ClientSession, server: Process, stream: bool) -> str:
    try:
        async with session.post(f"{server.url}{PATH}", json=chat(max_tokens=10**6, stream=stream)) as answer:
            await answer.read()
    except aiohttp.ClientError:
        return "closed"
    return "ended"


async def test_no_more_tokens_are_sent_than_the_backend_has_pages_for() -> None:
    """Eight answers of 160 tokens at a time, in pages for four of them."""

    async def preemptions(session: aiohttp.ClientSession, at: str, behind: Process) -> int:
        async def ask() -> None:
            for _ in range(2):
                async with session.post(f"{at}{PATH}", json=chat(max_tokens=160)) as answer:
                    assert answer.status == 200
                    await answer.read()

        await asyncio.gather(*(ask() for _ in range(8)))
        return int((await read(session, f"{behind.url}/state"))["preemptions"])

    flags = ("--blocks", "45")  # 720 tokens
    async with client() as session:
        with backend(8, 1.0, *flags) as behind:
            assert await preemptions(session, behind.url, behind) > 0
        with backend(8, 1.0, *flags) as behind, gateway(behind.url) as before:
            assert await preemptions(session, before.url, behind) == 0
            assert (await read(session, f"{behind.url}/state"))["most"] == 4
