"""Bodies that the API allows, sent to a whole service: none of them holds the event loop, and with it every stream."""

import asyncio
import gzip
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from scheduler.clock import background
from scheduler.dispatcher import Dispatcher
from server.access import Access
from server.composition.app import open_service
from server.composition.gateway import open_gateway
from server.config import GatewayConfig
from server.http.front import OPEN, Front
from server.http.service import Service
from server.keys import Keyring
from server.process.life import shorten_pauses
from tests import tiny
from tests.live_server import config_of, listening
from tests.server.gateway.test_hostile import Hostile, plain
from tests.server.live import raw_post
from tests.speed import slowness

pytestmark = pytest.mark.usefixtures("interpreter_settings")

MOST = 0.05
"""Seconds that the loop may stand still; a machine that is slower at Python gets as much longer."""

ATTEMPTS = 4
"""Attempts at a body, as a busy machine now and then holds a thread for longer than that."""

CONTEXT = 8192
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
CALL = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
IDS = [7, 8, 9, 10] * 100


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def prose(letters: int) -> str:
    return ("the quick brown fox jumps, 你好 😀 over the lazy dog; " * (letters // 40))[:letters]


PARTS = [{"role": "user", "content": [{"type": "text", "text": ""}] * 2_000}] * 10
CALLS = [*said("Hi"), {"role": "assistant", "content": [CALL] * 2_000}] * 8
TURNS = said(prose(1_000)) * 2_000
NAMES = {str(name): 1 for name in range(60_000)}
BIAS = {str(name): 0.5 for name in range(300)}
ECHOED = {"echo": True, "stream": True}
BODIES: Mapping[str, tuple[str, Callable[[], dict[str, Any]], int]] = {
    "a prompt that is far too long": (COMPLETION, lambda: {"prompt": prose(2_300_000)}, 400),
    "a prompt that is too long by its tokens only": (COMPLETION, lambda: {"prompt": "0123456789" * 10_000}, 400),
    "a chat that is too long by its tokens only": (CHAT, lambda: {"messages": said(prose(80_000))}, 400),
    "a chat of forged control tokens": (CHAT, lambda: {"messages": said(tiny.END * 9_000)}, 400),
    "a chat of many parts": (CHAT, lambda: {"messages": PARTS}, 200),
    "a text to tokenize": ("/tokenize", lambda: {"prompt": prose(60_000), "return_token_strs": True}, 200),
    "ids to detokenize": ("/detokenize", lambda: {"tokens": [9] * 1_000_000}, 200),
    "too many ids to detokenize": ("/detokenize", lambda: {"tokens": [9] * 2_000_000}, 400),
    "a million prompts": (COMPLETION, lambda: {"prompt": [[1]] * 1_000_000}, 400),
    "as many names as there may be": (CHAT, lambda: {"messages": said("Hi"), "chat_template_kwargs": NAMES}, 400),
    "many prompts with a bias each": (COMPLETION, lambda: {"prompt": [[7]] * 256, "logit_bias": BIAS}, 200),
    "prompts' logprobs": (COMPLETION, lambda: {"prompt": [IDS] * 8, "prompt_logprobs": 20}, 200),
    "prompts echoed in a stream": (COMPLETION, lambda: {"prompt": [IDS] * 4, "logprobs": 20, **ECHOED}, 200),
    "too many logprobs": (COMPLETION, lambda: {"prompt": [IDS] * 128, "prompt_logprobs": 20}, 400),
    "an estimate of many answers": ("/v1/estimate", lambda: {"prompt": [IDS] * 256}, 200),
    "a message of many blocks": ("/v1/messages", lambda: {"messages": PARTS}, 200),
    "a message of many calls": ("/v1/messages", lambda: {"messages": CALLS}, 400),
    "a response of many turns": ("/v1/responses", lambda: {"input": TURNS, "max_output_tokens": 1}, 400),
    "a large echoed text": (COMPLETION, lambda: {"prompt": prose(3_000), "echo": True, "n": 32}, 200),
}
"""Path, fields and status of calls that want a token at most."""


MEGABYTES = 4_000_000


def listed(field: str, part: bytes) -> bytes:
    return b'{"max_tokens": 1, "%b": [%b""]}' % (field.encode(), part * (MEGABYTES // len(part)))


SMALL: Mapping[str, Callable[[], bytes]] = {
    **{
        f"{part.decode()} in {field}": partial(listed, field, part)
        for field in ("messages", "unknown")
        for part in (b'"",', b'"!",', b"[],", b"{},", b'{"content":"a"},', b"1,", b"9" * 400 + b",")
    },
    "300,000 unknown names": lambda: b"{%b}" % b",".join(b'"%d":1' % n for n in range(300_000)),
    "60,000 unknown names": lambda: b"{%b}" % b",".join(b'"%d":"%b"' % (n, b"x" * 50) for n in range(60_000)),
    "as many texts as there may be": lambda: b'{"messages": [%b""]}' % (b'"a bc d",' * 250_000),
    "lists in lists": lambda: b'{"messages": ' + b"[" * MEGABYTES,
    "objects in objects": lambda: b'{"messages": ' + b'{"content":' * (MEGABYTES // 11),
    "no UTF-8": lambda: b'{"messages": [{"content": "%b"}]}' % (b"\xff" * MEGABYTES),
    "words": lambda: b'{"messages": [{"content": "%b"}]}' % (b"ab " * (MEGABYTES // 3)),
    "a model of lists": lambda: b'{"model": [%b""]}' % (b"[]," * (MEGABYTES // 3)),
    "a salt of words": lambda: b'{"cache_salt": "%b"}' % (b"ab " * (MEGABYTES // 3)),
}
"""Bodies of which neither program may make all parts where it serves others; each is answered with 200, 400 or 422."""


LINES: Mapping[str, tuple[Callable[[], bytes], str]] = {
    "a line of a million prompts": (lambda: line("a", {"prompt": [[1]] * 950_000}), "completed"),
    "a line of a long prompt": (lambda: line("a", {"prompt": prose(2_300_000)}), "completed"),
    "a line with as many log-probabilities as there may be": (
        lambda: line("a", {"prompt": [IDS] * 7, "prompt_logprobs": 20, "max_tokens": 1}),
        "completed",
    ),
    "as many lines as there may be, the last wrong": (
        lambda: b"".join(line(str(place), {"prompt": "x"}) for place in range(50_000)) + b"x",
        "failed",
    ),
    "more lines than there may be": (lambda: b"x\n" * 1_000_000, "failed"),
    "a line of ten million letters": (lambda: line("a", {"prompt": "x" * 10_000_000}), "failed"),
}
"""Inputs of batches, and how these end."""


def line(name: str, body: dict[str, Any]) -> bytes:
    return orjson.dumps({"custom_id": name, "url": COMPLETION, "body": body}) + b"\n"


class Watched:
    """A server in this very loop, and the longest time for which the loop stood still."""

    def __init__(self, url: str, dispatcher: Dispatcher) -> None:
        self.url, self.port = url, int(url.rpartition(":")[2])
        self._dispatcher = dispatcher
        self.stall = 0.0

    async def watch(self) -> None:
        """Time that the whole process spent computing is what counts: a busy machine spends it on others."""
        wall, spent = time.perf_counter(), time.process_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter(), time.process_time()
            self.stall = max(self.stall, min(now[0] - wall, now[1] - spent))
            wall, spent = now

    def rows(self) -> int:
        return len(self._dispatcher.waiting) + len(self._dispatcher.table.held)

    async def status(self, request: bytes) -> int:
        """The status of an answer, which is read to its end and thrown away."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        status = int((await reader.readline()).split()[1])
        while await reader.read(2**16):
            pass
        writer.close()
        return status

    async def least_stall(self, attempt: Callable[[], Awaitable[object]], right: Container[object], name: str) -> float:
        """Seconds, as of the machine that MOST was set on, that the loop stood still at the first quick attempt, or at
        the last; each ends right."""
        for _ in range(ATTEMPTS):
            self.stall = 0.0
            assert await attempt() in right, name
            stall = self.stall
            if stall > MOST:
                stall /= await asyncio.to_thread(slowness)
            if stall <= MOST:
                break
        return stall


@asynccontextmanager
async def watched(opened: AbstractAsyncContextManager[Service], front: Front = OPEN) -> AsyncIterator[Watched]:
    async with listening(opened, front) as (inner, url):
        shorten_pauses()  # as a server does, or the collector looks through all that the tests before left behind
        service = Watched(url, inner.dispatcher)
        async with background(service.watch(), "watch"):
            yield service


def whole(folder: Path, slots: int = 32) -> AbstractAsyncContextManager[Service]:
    return open_service(config_of(folder, max_num_seqs=slots))


@pytest.fixture(scope="module")
def large_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("models") / "large", context=CONTEXT)


async def test_no_body_that_is_allowed_holds_the_event_loop(large_folder: Path) -> None:
    """One prompt of 2.3 MB held it for 1.6 s, and one reply for 5.2 s."""
    stalls = {}
    async with watched(whole(large_folder)) as service:
        for name, (path, make, status) in BODIES.items():
            limit = {} if path.endswith(("tokenize", "/responses")) else {"max_tokens": 1}
            request = raw_post(path, make() | limit).replace(b"Host: test", b"Host: 127.0.0.1\r\nConnection: close")
            stalls[name] = await service.least_stall(partial(service.status, request), {status}, name)
    assert max(stalls.values()) <= MOST, stalls


async def test_rows_that_leave_at_once_do_not_hold_the_event_loop(large_folder: Path) -> None:
    """Each of sixty calls had a slice of the loop's time for its rows: 0.18 s together."""
    body = {"prompt": [7], "n": 64, "max_tokens": 2_000, "ignore_eos": True, "stream": True}
    request = raw_post(COMPLETION, body).replace(b"Host: test", b"Host: 127.0.0.1")

    async def leave() -> None:
        writers = [(await asyncio.open_connection("127.0.0.1", service.port))[1] for _ in range(60)]
        for writer in writers:
            writer.write(request)
        while service.rows() < 60 * 64:
            await asyncio.sleep(0.05)
        service.stall = 0.0
        for writer in writers:
            writer.transport.abort()
        while service.rows():
            await asyncio.sleep(0.002)

    async with watched(whole(large_folder, slots=16)) as service:
        assert await service.least_stall(leave, {None}, "leave") <= MOST


async def longest_stalls(service: Watched) -> dict[str, float]:
    """Seconds for which each of SMALL held the loop."""
    stalls = {}
    for name, make in SMALL.items():
        body = make()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer right\r\nConnection: close\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        stalls[name] = await service.least_stall(partial(service.status, request), {200, 400, 422}, name)
    return stalls


async def test_no_body_of_small_values_holds_the_event_loop_of_the_server(large_folder: Path) -> None:
    async with watched(whole(large_folder)) as service:
        stalls = await longest_stalls(service)
    assert max(stalls.values()) <= MOST, stalls


async def test_no_body_of_small_values_holds_the_event_loop_of_a_gateway() -> None:
    """4 MB of empty texts held it for 1.1 s."""
    hostile = Hostile(pages={"/metrics": plain(b"vllm:x 1\n")})
    front = Front(Access(Keyring(["right", "other"])))
    async with hostile.listening() as url:
        config = GatewayConfig(backend=(url,), no_journal=True)
        async with watched(open_gateway(config), front) as service:
            stalls = await longest_stalls(service)
    assert max(stalls.values()) <= MOST, stalls


def packed(key: str, body: bytes) -> bytes:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\nContent-Encoding: gzip\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


async def test_packed_bodies_do_not_hold_the_event_loop_after_their_refusal(
    large_folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 MB in 306 kB of gzip held it for 0.75 s behind a 401, as the rest of a refused body was unpacked on it; what
    is no gzip at all wrote three tracebacks."""
    monkeypatch.setattr("server.http.listener.LINGER", 0.5)
    bomb, junk = gzip.compress(bytes(300_000_000)), b"junk!"
    refused = [("wrong", bomb, 401), ("right", bomb, 413), ("wrong", junk, 401), ("right", junk, 400)]

    async def send() -> list[int]:
        statuses = [await service.status(packed(key, body)) for key, body, _ in refused]
        await asyncio.sleep(0.8)  # what is left of the bodies is read meanwhile
        return statuses

    async with watched(whole(large_folder), Front(Access(Keyring(["right"])))) as service:
        assert await service.least_stall(send, [[status for *_, status in refused]], "packed") <= MOST
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.slow
async def test_no_line_holds_the_loop(large_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines were parsed where streams are served, and their answers encoded in one piece."""
    monkeypatch.setenv("LENGTHWISE_CACHE", str(tmp_path))
    stalls = {}
    async with watched(whole(large_folder)) as service, aiohttp.ClientSession(service.url) as session:
        for name, (make, end) in LINES.items():
            stalls[name] = await service.least_stall(partial(run_batch, session, make()), {end}, name)
    assert max(stalls.values()) <= MOST, stalls


async def run_batch(session: aiohttp.ClientSession, content: bytes) -> str:
    """The status in which a batch of these lines ends."""
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", BytesIO(content), filename="in.jsonl")
    async with session.post("/v1/files", data=form) as response:
        body = {"input_file_id": (await response.json())["id"], "endpoint": COMPLETION, "completion_window": "24h"}
    async with session.post("/v1/batches", json=body) as response:
        batch = await response.json()
    while batch["status"] not in ("completed", "failed"):
        async with session.get(f"/v1/batches/{batch['id']}") as response:
            batch = await response.json()
    return str(batch["status"])
