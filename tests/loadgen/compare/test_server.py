"""Starting and stopping a server, with programs that behave as servers may."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadgen.compare.server import ServerFailure, run_server

SAID = "print('Lengthwise ready on http://127.0.0.1:9 (m)', flush=True);"
READY = f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); {SAID}"
WAIT = "signal.pause()"


def program(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_it_is_ready_and_ends_with_sigterm(tmp_path: Path) -> None:
    with run_server(program(READY + WAIT), tmp_path / "log", 60) as server:
        assert server.url == "http://127.0.0.1:9"
        server.require_alive()
    assert server.process.returncode == 0


LOG = "print('\\n'.join(f'line {n}' for n in range(30)));"
FAILURES = {
    "does not start": (f"{LOG} raise SystemExit(78)", 60, "did not start: exit code 78(?!.*line 9\\n).*line 29"),
    "is never ready": ("import signal; print('loading', flush=True); signal.pause()", 0.1, "not ready within 0.1 s"),
    **{
        address: (READY.replace("http://127.0.0.1:9", address) + WAIT, 60, f"listens on {address}.*plain HTTP")
        for address in ("https://127.0.0.1:9", "unix:/run/lengthwise.sock")
    },
}


@pytest.mark.parametrize(("code", "patience", "said"), FAILURES.values(), ids=FAILURES)
def test_one_that_cannot_be_asked_is_stopped_and_told(tmp_path: Path, code: str, patience: float, said: str) -> None:
    """With the end of its log."""
    failure = pytest.raises(ServerFailure, match=f"(?s){said}")
    with failure, run_server(program(code), tmp_path / "log", patience):
        pytest.fail("it cannot be asked")


def test_one_that_dies_is_found_out(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerFailure, match="by itself"),
        run_server(program(f"{READY} sys.exit(3)"), tmp_path / "log", 60) as server,
    ):
        server.process.wait()
        with pytest.raises(ServerFailure, match="exit code 3"):
            server.require_alive()


def test_one_that_ignores_sigterm_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN); import subprocess;"
    child = "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()']);"
    code = f"import signal, sys; {ignore} {child} {SAID} signal.pause()"
    with (
        pytest.raises(ServerFailure, match="had to be killed 0.1 s after SIGTERM"),
        run_server(program(code), tmp_path / "log", 60, stop_timeout=0.1) as server,
    ):
        (started,) = psutil.Process(server.process.pid).children()
    assert psutil.wait_procs([started], timeout=60)[1] == []


def test_an_interruption_stops_it_too(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), run_server(program(READY + WAIT), tmp_path / "log", 60) as server:
        raise KeyboardInterrupt
    assert server.process.returncode is not None


def test_ctrl_c_while_a_server_starts_leaves_none_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that was interrupted in that moment left its server running."""
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), run_server(program(READY + WAIT), tmp_path / "log", 60):
            pass
    finally:
        signal.signal(signal.SIGINT, before)
    assert [process.poll() is not None for process in started] == [True]
