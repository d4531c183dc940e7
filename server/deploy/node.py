"""One node of a cluster: a `lengthwise serve` of its own on a Unix socket, and calls to it, passed on as they are.

Knows no cluster: a replica of one holds a node, and ends with it. As `python -P -m server.deploy.node PID ...` it is
the program as a child that ends with its parent, however that ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TypeAlias

import aiohttp
import msgspec

from scheduler.placement import NodeLoad
from server.api.health import Load
from server.api.output.reply import Expectation
from server.http.proxy import HOPS, PROXYS, without

Headers: TypeAlias = Sequence[tuple[str, str]]

HOST = "http://lengthwise"
"""Stands in for a host where there is a socket."""

POLL = 0.1
PATIENCE = 2.0
"""Seconds that an estimate or a load may take, beyond which a router does without."""


class NodeFailure(Exception):
    """The server did not start; the message is for the log."""


class Node:
    """A server process, from its start to its end."""

    def __init__(self, flags: Sequence[str], key: str | None) -> None:
        """`flags` are those of `lengthwise serve`; `key` is one of its API keys, where it has any."""
        self._folder = Path(tempfile.mkdtemp(prefix="lengthwise-"))
        self._socket = self._folder / "node.sock"
        self._flags = [*flags, "--uds", str(self._socket)]
        self._own = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._process: asyncio.subprocess.Process | None = None
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Return when the server is ready; raises NodeFailure when it ends before."""
        words = [sys.executable, "-P", "-m", "server.deploy.node", str(os.getpid()), "serve", *self._flags]
        self._process = await asyncio.create_subprocess_exec(*words, stdin=asyncio.subprocess.DEVNULL)
        self._session = aiohttp.ClientSession(
            HOST,
            connector=aiohttp.UnixConnector(str(self._socket), limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        while not self._socket.exists():  # it is there once the server listens
            if self._process.returncode is not None:
                raise NodeFailure(f"lengthwise serve ended with exit code {self._process.returncode}; see its log")
            await asyncio.sleep(POLL)

    async def ended(self) -> int:
        """Wait for the server's end; returns its exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """Let the server drain, and return when it has ended."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()
        if self._session is not None:
            await self._session.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def call(
        self, method: str, path: str, headers: Headers, body: bytes
    ) -> AsyncIterator[tuple[int, Headers] | bytes]:
        """The server's answer: first its status and headers, then its body as it comes. Raises aiohttp.ClientError."""
        async with self._open().request(method, path, headers=without(headers, HOPS), data=body or None) as answer:
            yield answer.status, without(answer.headers.items(), HOPS | PROXYS)
            async for piece in answer.content.iter_any():
                yield piece

    async def estimate(self, headers: Headers, body: bytes) -> tuple[int, float | None] | None:
        """Tokens of a call's prompts, and of its answers if they can be predicted; None where it cannot be told."""
        patience = aiohttp.ClientTimeout(PATIENCE)
        asked = self._open().post("/v1/estimate", headers=without(headers, HOPS), data=body, timeout=patience)
        try:
            async with asked as answer:
                told = msgspec.json.decode(await answer.read(), type=Expectation) if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None
        if told is None:
            return None
        return told.prompt_tokens, None if told.predicted_tokens is None else told.predicted_tokens.median

    async def load(self) -> NodeLoad:
        """The server's load, at a time of this machine's clock. Raises aiohttp.ClientError and TimeoutError."""
        patience = aiohttp.ClientTimeout(PATIENCE)
        async with self._open().get("/load", headers=self._own, timeout=patience, raise_for_status=True) as answer:
            told = msgspec.json.decode(await answer.read(), type=Load)
        at = time.time() - told.age_s
        return NodeLoad(at, told.work_s, told.prices, told.requests, told.slots, told.mean_output_tokens)

    def _open(self) -> aiohttp.ClientSession:
        assert self._session is not None, "it has started"
        return self._session


PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run the program with the words behind the parent's process id; returns its exit code."""
    parent = int(sys.argv.pop(1))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        return 1
    import lengthwise

    return lengthwise.main()


if __name__ == "__main__":
    sys.exit(main())
