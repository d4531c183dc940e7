"""Clients that leave, and a process that is killed, at any moment: nothing stays, and nothing promised is lost.

Many more of both with LENGTHWISE_TEST_FAULTS set, as `make test-faults` does.
"""

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
from contextlib import closing, suppress
from pathlib import Path

import aiohttp
import pytest

from tests import tiny
from tests.faults.scenario import CALLS
from tests.faults.test_faults import EVERY
from tests.live_server import serve, started
from tests.tools.soak import SLOTS, Soak, process_of

POOLED = 12
"""Threads that pools may start when they are first needed."""

ABORTS, KILLS = (10_000, 25) if EVERY else (200, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("models") / "tiny", context=1024)


@pytest.mark.slow
@pytest.mark.timeout(3600 if EVERY else 240)
def test_nothing_stays_of_calls_that_are_broken_off_at_any_phase(folder: Path) -> None:
    with serve(folder, *SLOTS) as url:
        server = process_of(url)
        threads = server.num_threads()
        soak = Soak(url, server)
        left = asyncio.run(soak.run(lambda soak: soak.ended["left"] >= ABORTS, leaving=0.9))
        assert not left and not soak.faults() and soak.ended["whole"]
        assert server.num_threads() <= threads + POOLED
        assert server.num_fds() <= soak.samples[0][2] + 8


async def answered(url: str, seed: int, kill_after: float, process: subprocess.Popen[str]) -> int:
    """Calls whose last byte has come when the server is killed, with sixteen clients at a time."""
    whole = 0

    async def client(session: aiohttp.ClientSession, number: int) -> None:
        nonlocal whole
        for call in random.Random(f"{seed} {number}").choices(CALLS[:10], k=200):
            async with session.post(url + call.path, json=call.body) as response:
                await response.read()
                whole += response.status == 200

    async with aiohttp.ClientSession() as session:
        clients = [asyncio.create_task(client(session, number)) for number in range(16)]
        while not whole:  # so that there is something to lose
            await asyncio.sleep(0)
        await asyncio.wait(clients, timeout=kill_after)
        process.send_signal(signal.SIGKILL)
        for one in clients:
            with suppress(aiohttp.ClientError):
                await one
    return whole


@pytest.mark.slow
@pytest.mark.timeout(3600 if EVERY else 240)
def test_what_was_promised_outlives_a_kill_at_any_moment(folder: Path, tmp_path: Path) -> None:
    """With --journal-sync each answer whose end was sent is in the journal, which no kill damages."""
    journal, promised, choice = tmp_path / "journal.sqlite3", 0, random.Random(0)
    flags = (*SLOTS, "--journal", str(journal), "--journal-sync", "--log-level", "error")
    for seed in range(KILLS):
        with started(folder, *flags, ends=-signal.SIGKILL) as (url, process):
            promised += asyncio.run(answered(url, seed, choice.uniform(0, 1), process))
        with closing(sqlite3.connect(journal)) as connection:
            (found,) = connection.execute("SELECT count(*) FROM requests WHERE outcome = 'length'").fetchone()
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert found >= promised > 0
    assert os.listdir(tmp_path) == [journal.name], "nothing was set aside"
