"""A whole server on a free loopback port: a process as a user would start it, or a thread of this one."""

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from server.cli.main import build_parser
from server.composition.app import open_service
from server.config import ServeConfig
from server.http.front import build_front
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
def serve(folder: Path | str, *flags: str) -> Iterator[str]:
    """Yields the server's URL once its ready line is out; ends it with SIGTERM and checks that it ends well."""
    command = [str(COMMAND), *words_of(folder, *flags)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            yield ready_url(process.stdout)
        finally:
            process.terminate()
            # Reading to the end also keeps a chatty server from blocking on a full pipe.
            rest = process.stdout.read()
    assert process.returncode == 0, rest


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
        with socket.create_server(("127.0.0.1", 0)) as port:
            async with open_service(config) as service, listen(service, port, build_front(config, os.environ)):
                over = asyncio.Event()
                url = f"http://127.0.0.1:{port.getsockname()[1]}"
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
