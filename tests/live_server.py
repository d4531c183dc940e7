"""A whole server on a free loopback port: a process as a user would start it, or a thread of this one."""

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import uvloop

from server.cli.main import build_parser
from server.composition.app import open_service
from server.config import ServeConfig, load_config
from server.http.front import OPEN, Front, build_front
from server.http.service import Service
from server.process.life import drain, listen
from server.settings import read_settings

COMMAND = Path(sys.executable).with_name("lengthwise")


def words_of(folder: Path | str, *flags: str) -> list[str]:
    """The command's, with what tests want where `flags` do not say otherwise."""
    words = ["serve", str(folder), "--port", "0", "--log-level", "warning", *flags]
    if "--journal" not in flags:
        words.append("--no-journal")  # the default place is the user's
    usual = {
        "--files-size": "0",  # as is that of files
        "--dtype": "float32",  # answers do not depend on neighbours or on what this CPU is fast at
        "--max-num-seqs": "32",  # not what a busy machine is measured to gain by
        "--strategy": "baton-pd",  # nobody predicts, which would take a process and an embedder
    }
    return words + [word for flag, value in usual.items() if flag not in flags for word in (flag, value)]


@contextmanager
def started(
    folder: Path | str, *flags: str, ends: int = 0, environment: Mapping[str, str] = os.environ
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Yields the URL and the process of a server once its ready line is out; a SIGTERM ends it, if nothing has before,
    and it is checked how it `ends`."""
    command, out = [str(COMMAND), *words_of(folder, *flags)], subprocess.PIPE
    with subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield ready_url(process.stdout), process
        finally:
            process.terminate()
            # Reading to the end also keeps a chatty server from blocking on a full pipe.
            rest = process.stdout.read()
    assert process.returncode == ends, rest


@contextmanager
def serve(folder: Path | str, *flags: str) -> Iterator[str]:
    """Yields the URL of such a server."""
    with started(folder, *flags) as (url, _):
        yield url


def ready_url(lines: Iterator[str]) -> str:
    seen = []
    for line in lines:
        seen.append(line)
        if found := re.search(r"ready on (http://\S+)", line):
            return found[1]
    raise AssertionError(f"no ready line: {''.join(seen)}")


@contextmanager
def serve_here(folder: Path | str, *flags: str) -> Iterator[str]:
    """Yields the URL of the same server in a thread of this process, as a process spends seconds on its imports."""
    config = read_settings(ServeConfig, build_parser().parse_args(words_of(folder, *flags)))
    ready = Future[Any]()

    async def run() -> None:
        async with listening(open_service(config), build_front(config, os.environ)) as (service, url):
            over = asyncio.Event()
            ready.set_result((url, asyncio.get_running_loop(), over))
            await over.wait()
            await drain(service, config.shutdown_timeout, asyncio.Event())

    with ThreadPoolExecutor(1, "server") as pool:
        served: Future[Any] = pool.submit(uvloop.run, run())
        wait((ready, served), return_when=FIRST_COMPLETED)
        if served.done():
            served.result()
        url, loop, over = ready.result()
        try:
            yield url
        finally:
            loop.call_soon_threadsafe(over.set)
            served.result()


@asynccontextmanager
async def listening(
    opened: AbstractAsyncContextManager[Service], front: Front = OPEN
) -> AsyncIterator[tuple[Service, str]]:
    """A service that listens in this very loop, and its URL."""
    with socket.create_server(("127.0.0.1", 0)) as port:
        async with opened as service, listen(service, port, front):
            yield service, f"http://127.0.0.1:{port.getsockname()[1]}"


def config_of(folder: Path, **given: object) -> ServeConfig:
    """For a service in this very loop."""
    usual = {"model": str(folder), "no_journal": "journal" not in given, "strategy": "baton-pd"}
    return load_config(usual | given, {}, None)
