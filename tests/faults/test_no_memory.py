"""A process that the system gives no more memory, for good: nothing is put in, the limit is the kernel's.

With LENGTHWISE_TEST_FAULTS set only, as `make test-faults` does: the process gives its device a quarter of a minute.
"""

import asyncio
import subprocess
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests import tiny
from tests.faults.test_faults import EVERY
from tests.live_server import COMMAND, ready_url

CALLS = 8

PROMPT, INTERMEDIATE = 600, 2**15
"""Tokens of a prompt, and a width of the network. Between two products a chunk of 512 tokens takes 128 MiB in one
piece: more than the C library keeps of what is freed, so that it has to come from the system, which says no each time.
"""

ROOM = 32 * 2**20
"""Bytes that there still are, for all that is not a prompt."""


async def statuses(url: str) -> list[int]:
    """The statuses of calls at the same time."""

    async def ask(length: int) -> int:
        body = {"prompt": [3] * length, "max_tokens": 4, "ignore_eos": True}
        async with session.post(f"{url}/v1/completions", json=body) as response:
            return response.status

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(120)) as session:
        return list(await asyncio.gather(*(ask(PROMPT + place) for place in range(CALLS))))


@pytest.mark.skipif(not EVERY, reason="takes a minute; test_faults.py has the same within a process")
@pytest.mark.timeout(240)
def test_a_device_that_is_out_of_memory_for_good_ends_the_process_with_70_and_no_call_hangs(tmp_path: Path) -> None:
    folder = tiny.build(tmp_path / "tiny", context=1024, intermediate=INTERMEDIATE)
    command = [str(COMMAND), "serve", str(folder), "--port", "0", "--no-journal", "--files-size", "0"]
    command += ["--strategy", "baton-pd", "--dtype", "float32", "--kv-cache-memory", "0.01"]
    command += ["--max-num-batched-tokens", "512", "--prefix-cache-memory", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        url, server = ready_url(process.stdout), psutil.Process(process.pid)
        assert set(asyncio.run(statuses(url))) == {200}
        size = server.memory_info().vms + ROOM
        server.rlimit(psutil.RLIMIT_AS, (size, size))
        assert set(asyncio.run(statuses(url))) <= {500, 503}
        said = process.stdout.read()
    assert process.returncode == 70, said
    assert "its device has not proved itself for 15 s" in said
