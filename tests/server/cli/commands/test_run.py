"""`lengthwise run`: as a program, with a tiny model."""

import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from loadgen.result_file import PROGRAM
from tests import tiny

SERVED = ("--no-journal", "--files-size", "0", "--dtype", "float32", "--strategy", "baton-pd", "--max-num-seqs", "8")
FLAGS = (*SERVED, "--max-tokens", "5")


def start(model: Path | str, *flags: str) -> subprocess.Popen[str]:
    command = [*PROGRAM, "run", str(model), *FLAGS, *flags]
    pipe = subprocess.PIPE
    root = Path(__file__).parents[4]
    return subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env={**os.environ})


def require_gone(url: str) -> None:
    """Fail while something listens there."""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))).close()


@pytest.mark.slow
def test_it_serves_talks_and_takes_the_server_with_it_whichever_way_it_ends(tmp_path: Path) -> None:
    folder = tiny.build(tmp_path / "tiny")
    by_leaving, by_signal = start(folder), start(folder)
    out, err = by_leaving.communicate("Hi\n")
    assert (by_leaving.returncode, err) == (0, "")
    loading, serving, answer = out.split("\n", 2)
    assert loading == f"Loading {folder} ..." and answer.strip()
    assert (found := re.fullmatch(r"Serving it at (http://127\.0\.0\.1:\d+), with a dashboard .*", serving))
    require_gone(found[1])

    assert by_signal.stdout is not None
    by_signal.stdout.readline()
    url = by_signal.stdout.readline().split()[3].rstrip(",")
    by_signal.send_signal(signal.SIGTERM)
    by_signal.communicate()
    assert by_signal.returncode == 128 + signal.SIGTERM
    require_gone(url)


def test_a_server_that_does_not_start_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    process = start(tiny.build(tmp_path / "tiny"), "--api-key-file", str(tmp_path / "absent"))
    out, err = process.communicate("")
    assert process.returncode == 1
    assert "the server did not start" in err and f"--api-key-file {tmp_path / 'absent'} cannot be read" in err
    assert "Serving" not in out
