"""`lengthwise doctor`: what it finds, and its exit codes."""

import socket
from functools import partial
from pathlib import Path

import pytest

from server.cli.commands import doctor
from tests.server.cli.commands.runner import run_command

pytestmark = pytest.mark.usefixtures("cache")

run = partial(run_command, doctor.add_parser, "doctor", "--device", "cpu")


def examine(capsys: pytest.CaptureFixture[str], *flags: object, code: int = 0) -> dict[str, tuple[str, str]]:
    """Each part of the machine -> ok or FAIL, and the words."""
    assert run(*flags) == code
    parts = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    return {name: (state, words) for state, name, words in parts}


def test_a_machine_that_is_well_gets_0(cache: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = examine(capsys, tiny_folder, "--port", "0", "--dtype", "float32", "--max-num-seqs", "4")
    assert [*told] == ["journal", "keys", "certificate", "model", "port", "devices", "memory", "predictor"]
    assert {state for state, _ in told.values()} == {"ok"}
    assert str(tiny_folder) in told["model"][1]
    assert "KV cache of 4 slots with" in told["memory"][1]
    assert str(cache) in told["journal"][1]


def test_a_model_that_is_not_here_is_not_fetched(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = examine(capsys, "--port", "0", "--no-journal")
    assert "fetched, or converted, at the first start" in told["model"][1]
    assert not (cache / "packaged").exists()


def test_what_would_fail_is_told_with_remedy_and_gets_1(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flags = ("--journal", tiny_folder, "--length-predictor", "proxy", "--executors", 1)
        told = examine(capsys, "smollm2", "--port", taken.getsockname()[1], *flags, code=1)
    fine = {"devices", "keys", "certificate"}
    assert {name for name, (state, _) in told.items() if state == "FAIL"} == {*told} - fine
    for name, remedy in (
        ("port", "choose another with --port"),
        ("model", "did you mean smollm2-135m-instruct?"),
        ("journal", "or give --no-journal"),
        ("predictor", "run `lengthwise train --predictor proxy`"),
    ):
        assert remedy in told[name][1]
