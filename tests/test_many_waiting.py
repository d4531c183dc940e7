"""Ten thousand requests that wait in a whole service: whatever it is asked then, no callback of its loop takes long."""

import asyncio
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
import pytest

from engine.sampling.params import SamplingParams
from scheduler.request import Failure, Request, State
from server.api.output.sse import LOOKS, PlaceNotes, look_often
from server.composition.app import open_service
from server.http.service import Service
from server.process.life import listen, shorten_pauses
from tests.live_server import config_of
from tests.speed import slowness

WAITING = 10_000
MOST = 0.02
"""Seconds of the loop's own thread that a callback may take, twice what each does on a machine to itself; a machine
that is slower at Python gets as much longer."""

ATTEMPTS = 10
"""Rounds, as a busy machine now and then makes a callback longer than that."""

PATHS = ("/metrics", "/load", "/v1/requests", "/health/ready", "/v1/requests/last?explain=1")
FRAMES = 8
"""Snapshots for a dashboard, of which there are eight a second."""

LAST = {"prompt": [3, 4, 5], "max_tokens": 5, "priority": 2, "stream": True}
"""A call behind all others."""


class Comments:
    """A stream that is told its places."""

    told = 0

    async def comment(self, text: str) -> None:
        self.told += 1


@contextmanager
def timed_callbacks() -> Iterator[dict[str, float]]:
    """Seconds of this thread that each kind of callback has taken at most."""
    longest: dict[str, float] = {}
    run = asyncio.Handle._run

    def run_timed(handle: asyncio.Handle) -> None:
        callback: Any = handle._callback  # type: ignore[attr-defined]
        begin = time.thread_time()
        run(handle)
        seconds = time.thread_time() - begin
        owner = getattr(callback, "__self__", callback)
        coroutine: Any = owner.get_coro() if isinstance(owner, asyncio.Task) else None
        name = repr(callback) if coroutine is None else coroutine.__qualname__
        if not name.startswith("test_"):  # which is the client
            longest[name] = max(longest.get(name, 0.0), seconds)

    with mock.patch.object(asyncio.Handle, "_run", run_timed):
        yield longest


async def submit_many(service: Service, rng: random.Random) -> list[Request]:
    """Requests of many lengths and clients, some of them with a deadline, a few in each iteration of the loop."""
    requests = []
    for number in range(WAITING):
        most = rng.randint(1, 200)
        request = service.dispatcher.submit(
            range(3, 3 + rng.randint(1, 60)),
            SamplingParams(max_tokens=most, ignore_eos=True),
            priority=rng.randint(0, 1),
            deadline=service.dispatcher.now() + 10**6 if number % 10 == 0 else None,
            client=f"client {number % 50}",
            predicted_length=rng.uniform(1.0, most),
        )
        requests.append(request)
        if number % 20 == 0:
            await asyncio.sleep(0)
    return requests


async def ask_everything(session: aiohttp.ClientSession) -> None:
    """Ask for all that looks at what waits, beside an open dashboard."""
    async with session.get("/dashboard/events") as frames:
        for path in PATHS:
            async with session.get(path) as response:
                assert response.status == 200, path
                await response.read()
        for _ in range(FRAMES):
            await frames.content.readuntil(b"\n\n")


@pytest.mark.slow
@pytest.mark.usefixtures("interpreter_settings")
@pytest.mark.parametrize("strategy", ["lengthwise", "baton-pd"])
async def test_no_callback_takes_long_while_ten_thousand_requests_wait(tiny_folder: Path, strategy: str) -> None:
    """Four thousand of them that were told their places at once made the loop late by 0.1 s."""
    most = {"max_num_queued_reqs": 2 * WAITING, "max_num_queued_tokens": 10**9}
    config = config_of(tiny_folder, strategy=strategy, max_num_seqs=16, **most)
    rng, comments = random.Random(0), Comments()
    with socket.create_server(("127.0.0.1", 0)) as port:
        url = f"http://127.0.0.1:{port.getsockname()[1]}"
        async with open_service(config) as service, listen(service, port) as app:
            shorten_pauses()  # as a server does, or the collector looks through all that the tests before left behind
            requests = await submit_many(service, rng)
            async with (
                aiohttp.ClientSession(url) as session,
                session.post("/v1/completions", json=LAST, headers={"X-Request-Id": "last"}),
            ):
                with ExitStack() as stack:
                    for request in requests:
                        notes = PlaceNotes(comments, [request], service.dispatcher)  # type: ignore[arg-type]
                        stack.enter_context(look_often(notes.look, rng.uniform(0.0, 1.0), app[LOOKS]))
                    for _ in range(ATTEMPTS):
                        most_seconds = MOST * slowness()
                        with timed_callbacks() as longest:
                            await ask_everything(session)
                        late = {name: seconds for name, seconds in longest.items() if seconds > most_seconds}
                        if not late:
                            break
            assert comments.told and not late
            assert len(service.dispatcher.waiting) > WAITING / 2


# Threads: what a service started is gone when it ends, whatever was under way


async def test_no_thread_outlives_its_service(tiny_folder: Path) -> None:
    before = set(threading.enumerate())
    async with open_service(config_of(tiny_folder, max_num_seqs=2)) as service:
        assert {thread.name for thread in set(threading.enumerate()) - before} >= {"executor-0"}
        assert service.responsive()
        params = SamplingParams(max_tokens=100_000, ignore_eos=True)
        requests = [service.dispatcher.submit((5, 6, 7), params) for _ in range(3)]
        await anext(aiter(requests[0].stream))
        service.dispatcher.abort_all("the server is shutting down")
    assert [(one.state, one.failure) for one in requests] == [(State.FAILED, Failure.SHUTDOWN)] * 3
    # The loop's own, and that of templates' time limit, which ends within a second of the last one.
    after = {thread for thread in threading.enumerate() if not thread.name.startswith(("asyncio_", "deadline"))}
    assert after - before == set()
