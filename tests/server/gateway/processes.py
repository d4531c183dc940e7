"""A gateway and cheap backends as processes of their own, started as a user would start them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.live_server import COMMAND, ready_url

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Listener:
    url: str
    """Without a path."""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@dataclass(frozen=True)
class Process(Listener):
    """A server in a process of its own."""

    process: subprocess.Popen[str]

    def cpu_seconds(self) -> float:
        """CPU time that it has taken since its start."""
        told = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(told[11]) + int(told[12])) / TICKS


@contextmanager
def started(*command: str) -> Iterator[Process]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            yield Process(ready_url(process.stdout).removesuffix("/v1"), process)
        finally:
            process.kill()


@contextmanager
def backend(slots: int = 4, step_ms: float = 5.0, *flags: str) -> Iterator[Process]:
    module = (sys.executable, "-m", "tests.server.gateway.fake_backend")
    with started(*module, "--slots", str(slots), "--step-ms", str(step_ms), *flags) as process:
        yield process


@contextmanager
def gateway(*backends: str, flags: tuple[str, ...] = ()) -> Iterator[Process]:
    named = [one for url in backends for one in ("--backend", f"{url}/v1")]
    command = (str(COMMAND), "gateway", "--port", "0", "--no-journal", "--log-level", "error", *named, *flags)
    with started(*command) as process:
        yield process
