"""A `lengthwise serve` process for one turn, on a free loopback port."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from models.signals import handle_signals

STOP_TIMEOUT = 60.0  # seconds to end after SIGTERM
POLL = 0.05
LOG_LINES = 12
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ServerFailure(Exception):
    """With the last lines of its log."""


@dataclass(frozen=True, slots=True)
class OwnServer:
    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def require_alive(self) -> None:
        """Raises ServerFailure."""
        if self.process.poll() is not None:
            raise _make_failure(f"the server ended by itself with exit code {self.process.returncode}", self.log)


@contextmanager
def run_server(
    command: Sequence[str], log: Path, ready_timeout: float, stop_timeout: float = STOP_TIMEOUT, **environ: str
) -> Iterator[OwnServer]:
    """Stops it with SIGTERM. Raises ServerFailure. Its own session keeps Ctrl-C from it."""
    process: subprocess.Popen[bytes] | None = None
    try:
        with log.open("wb") as sink, _hold_signals():
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environ},
                start_new_session=True,
            )
        yield OwnServer(_wait_until_ready(process, log, ready_timeout), process, log)
        code = process.poll()
    finally:
        ended = process is None or _stop(process, stop_timeout)
    if code is not None or not ended or process.returncode != 0:
        said = f"ended with exit code {process.returncode}" if ended else f"had to be killed {stop_timeout:g} s"
        raise _make_failure(f"the server {said} {'by itself' if code is not None else 'after SIGTERM'}", log)


@contextmanager
def _hold_signals() -> Iterator[None]:
    held: list[int] = []
    with handle_signals(dict.fromkeys(ENDING, lambda one, frame: held.append(one))):
        yield
    for caught in held:
        signal.raise_signal(caught)


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path, timeout: float) -> str:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL)
        if found := re.search(r"ready on (\S+)", log.read_text("utf-8", "replace")):
            if not found[1].startswith("http://"):
                remedy = "leave `uds`, `ssl_certfile`, `ssl_keyfile` out of flags, --config and LENGTHWISE_ variables"
                raise ServerFailure(f"the server listens on {found[1]}, and only plain HTTP is compared: {remedy}")
            return found[1]
        if process.returncode is not None:
            raise _make_failure(f"the server did not start: exit code {process.returncode}", log)
    raise _make_failure(f"the server was not ready within {timeout:g} s (--ready-check-timeout-sec)", log)


def _stop(process: subprocess.Popen[bytes], timeout: float) -> bool:
    """Whether it ended by itself. A second Ctrl-C kills it at once."""
    process.terminate()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        return False
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return True


def _make_failure(what: str, log: Path) -> ServerFailure:
    lines = log.read_text("utf-8", "replace").strip().splitlines()[-LOG_LINES:]
    said = "; its log is empty" if not lines else "; the end of its log:\n" + "\n".join(f"    {line}" for line in lines)
    return ServerFailure(what + said)
