"""A process that the system gives no more memory, for good: nothing is put in, the limit is the kernel's."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests import tiny
from tests.live_server import COMMAND, ready_url

CALLS = 8


async def statuses(url: str) -> list[int]:
    """The statuses of calls with prompts of shapes that the device has not computed yet."""

    async def ask(length: int) -> int:
        body = {"prompt": [3] * length, "max_tokens": 200, "ignore_eos": True}
        async with session.post(f"{url}/v1/completions", json=body) as response:
            return response.status

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(120)) as session:
        return list(await asyncio.gather(*(ask(200 + place) for place in range(CALLS))))


@pytest.mark.skipif("LENGTHWISE_TEST_FAULTS" not in os.environ, reason="what memory is left is left to chance")
@pytest.mark.timeout(240)
def test_a_device_that_is_out_of_memory_for_good_ends_the_process_with_70_and_no_call_hangs(tmp_path: Path) -> None:
    folder = tiny.build(tmp_path / "tiny", context=1024)
    command = [str(COMMAND), "serve", str(folder), "--port", "0", "--no-journal", "--files-size", "0"]
    command += ["--strategy", "baton-pd", "--dtype", "float32", "--kv-cache-memory", "0.01"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        url, server = ready_url(process.stdout), psutil.Process(process.pid)
        assert set(asyncio.run(statuses(url))) == {200}
        size = server.memory_info().vms
        server.rlimit(psutil.RLIMIT_AS, (size, size))
        assert set(asyncio.run(statuses(url))) <= {500, 503}
        said = process.stdout.read()
    assert process.returncode == 70, said
    assert "its device has not proved itself for 15 s" in said
