"""Threads of a whole service: what it started is gone when it ends, whatever was under way."""

import threading
from pathlib import Path

from engine.sampling.params import SamplingParams
from scheduler.request import Failure, State
from server.composition.app import open_service
from tests.live_server import config_of


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
