"""The program's commands, flags and exit codes, in a wheel without experiments too."""

import argparse
import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from loadgen.result_file import PROGRAM
from server.cli import main as cli
from server.config import ServeConfig
from server.version import VERSION
from tests.server.cli.commands.runner import Told

Started = list[ServeConfig]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """The configurations with which `serve` would have started."""
    configs: Started = []

    def serve(config: ServeConfig, fetch: object, open_service: object) -> int:
        configs.append(config)
        return 0

    root = ModuleType("server.composition.app")
    root.fetch = root.open_service = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "server.composition.app", root)
    monkeypatch.setattr("server.process.life.serve", serve)
    monkeypatch.setattr("server.cli.commands.doctor.taken", lambda host, port, path: nullcontext())
    return configs


def misuse(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a wrong use is told."""
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2
    return capsys.readouterr().err


def run_apart(words: Sequence[str]) -> tuple[list[str], str]:
    """Lines of a command in a process of its own, the last of which names what is heavy and was imported; errors."""
    code = (
        "import sys; from server.cli import main as cli\n"
        "try: print(cli.main(sys.argv[1:]))\n"
        "finally: print(sorted({'torch', 'transformers', 'aiohttp', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    return done.stdout.splitlines(), done.stderr


def test_serve_takes_its_settings_from_flags_environment_and_file(
    started: Started, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "c.toml"
    file.write_text("max_num_seqs = 5\nseed = 5\nport = 5\n")
    for name, value in (("CONFIG", str(file)), ("SEED", "6"), ("PORT", "6"), ("MODEL", "other/model")):
        monkeypatch.setenv(f"LENGTHWISE_{name}", value)
    names = ["--served-model-name", "a", "--served-model-name", "b"]
    assert cli.main(["serve", "--port", "7", *names]) == cli.main(["serve", "some/model"]) == 0
    config, other = started
    assert (config.model, other.model, config.served_model_name) == ("other/model", "some/model", ("a", "b"))
    assert (config.port, config.seed, config.max_num_seqs) == (7, 6, 5)


@pytest.mark.parametrize(("flag", "allowed"), [("--allow-replay", True), ("--no-allow-replay", False)])
def test_a_switch_has_a_flag_for_either_way_that_wins_over_the_environment(
    started: Started, monkeypatch: pytest.MonkeyPatch, flag: str, allowed: bool
) -> None:
    monkeypatch.setenv("LENGTHWISE_ALLOW_REPLAY", str(not allowed).lower())
    assert cli.main(["serve", flag]) == 0
    assert started[0].allow_replay is allowed


def test_serve_without_a_model_serves_the_default(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LENGTHWISE_DTYPE", raising=False)  # the suite may run under one
    assert cli.main(["serve"]) == 0
    assert started == [ServeConfig()]


def test_a_command_that_is_none_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    told = misuse(capsys, "srve")
    assert told.startswith("lengthwise: error: 'srve' is no command; did you mean serve?\nusage: ")


def test_without_a_command_there_is_help(told: Told) -> None:
    assert told().startswith("usage: lengthwise")


@pytest.mark.parametrize("flag", ["--served-model-name", "--api-key", "--allowed-hosts"])
def test_the_model_behind_a_flag_for_several_values_is_the_model(started: Started, flag: str) -> None:
    """`--api-key K models/Qwen` made the path a valid key, and served the default model."""
    assert cli.main(["serve", flag, "one", "models/Qwen", flag, "two"]) == 0
    assert started[0].model == "models/Qwen"
    assert getattr(started[0], flag[2:].replace("-", "_")) == ("one", "two")


def test_a_journal_that_cannot_be_written_is_told_at_the_start(started: Started, tmp_path: Path, told: Told) -> None:
    """The server said that it was ready, and lost what it should record."""
    said = told("serve", "--journal", tmp_path, code=78)
    assert "cannot be written: Is a directory; name another file, or give --no-journal" in said
    told("serve", "--journal", tmp_path / "new" / "j.sqlite3")
    assert len(started) == 1
    assert not (tmp_path / "new" / "j.sqlite3").exists()
    told("serve", "--journal", tmp_path, "--no-journal")


def test_a_port_in_use_is_told_before_anything_heavy_is_imported() -> None:
    """It took six seconds."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        out, err = run_apart(("serve", "--port", str(taken.getsockname()[1])))
    assert out == ["1", "[]"]
    assert "already in use" in err


def test_a_port_in_use_does_not_hide_other_mistakes(tmp_path: Path, told: Told) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        files = ("--api-key-file", tmp_path / "nokey", "--ssl-certfile", tmp_path)
        said = told("serve", "nosuchmodel", *files, "--port", taken.getsockname()[1], code=78)
    for mistake in ("unknown model 'nosuchmodel'", "--api-key-file", "--ssl-certfile", "already in use"):
        assert mistake in said


def test_a_wrong_setting_ends_with_78(monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    monkeypatch.setenv("LENGTHWISE_PORT", "x")
    error = "lengthwise: error: LENGTHWISE_PORT: 'x' is not a whole number between 0 and 65535\n"
    assert told("serve", code=78) == error


def test_a_variable_that_is_no_setting_is_named_with_the_nearest_that_is(
    started: Started, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It does not keep the server from starting: Kubernetes sets some for a service of this name."""
    for name in ("MAX_NUM_SEQ", "SERVICE_HOST", "SEED", "CACHE"):
        monkeypatch.setenv(f"LENGTHWISE_{name}", "5")
    assert cli.main(["serve"]) == 0
    assert started[0].seed == 5
    first, second = capsys.readouterr().err.splitlines()
    assert first == "lengthwise: warning: LENGTHWISE_MAX_NUM_SEQ is no setting; did you mean LENGTHWISE_MAX_NUM_SEQS?"
    assert second.startswith("lengthwise: warning: LENGTHWISE_SERVICE_HOST is no setting")


def test_help_names_every_setting_and_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert all(f"--{field.name.replace('_', '-')}" in shown for field in fields(ServeConfig) if field.name != "model")
    assert "(default: 8000)" in shown
    assert "==SUPPRESS==" not in shown


def test_version_and_help_answer_without_importing_what_is_heavy() -> None:
    for flag, first in (("--version", f"lengthwise {VERSION}"), ("--help", "usage: lengthwise")):
        lines, _ = run_apart([flag])
        assert lines[0].startswith(first)
        assert lines[-1] == "[]"


def test_help_is_shown_on_a_terminal_that_cannot_write_all_of_its_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a traceback: UnicodeEncodeError."""
    shown = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown, "latin-1", write_through=True))
    with pytest.raises(SystemExit) as caught:
        cli.main(["simulate", "--help"])
    assert caught.value.code == 0
    assert b"(\\u0393 of SCLS)" in shown.getvalue()


IMPORTING = "import threading\nprint('importing', flush=True)\nthreading.Event().wait()\n"
ENDING = "import atexit, threading\natexit.register(lambda: (print('ending', flush=True), threading.Event().wait()))\n"


@pytest.mark.parametrize(
    ("module", "steps", "code"),
    [(IMPORTING, ["importing"], 130), (ENDING + IMPORTING, ["importing", "ending"], -signal.SIGINT)],
)
def test_ctrl_c_ends_a_command_that_is_imported_or_on_its_way_out_without_a_traceback(
    tmp_path: Path, module: str, steps: list[str], code: int
) -> None:
    """`lengthwise simulate`, interrupted at each step of this module, which has come in the place of its own."""
    (tmp_path / "msgspec.py").write_text(module)
    with subprocess.Popen(
        [*PROGRAM, "simulate"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # which a shell may have had ignored
        text=True,
    ) as process:
        assert process.stdout is not None
        for step in steps:
            assert process.stdout.readline() == f"{step}\n"
            process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    assert (process.returncode, stderr) == (code, "")


def test_each_command_has_an_example_that_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    parser = cli.build_parser()
    (commands,) = [one.choices for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    for name, command in commands.items():
        words = command.epilog.removeprefix("Example: lengthwise ").split()
        parser.parse_args(words)
        assert words[0] == name
    with pytest.raises(SystemExit):
        cli.main(["run", "--help"])
    assert "Example: lengthwise run\n" in capsys.readouterr().out


def test_who_watches_a_terminal_is_told_what_is_loaded_before_it_is(
    started: Started, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for watched, told in ((False, ""), (True, "Loading some/model, ")):
        monkeypatch.setattr("sys.stderr.isatty", lambda watched=watched: watched, raising=False)
        assert cli.main(["serve", "some/model"]) == 0
        said = capsys.readouterr().err
        assert said.startswith(told) and bool(said) is watched


def test_all_wrong_values_of_a_command_line_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the first was told."""
    told = misuse(capsys, "serve", "--port", "x", "--dtype", "int3", "--strategy", "nope", "--prot", "1")
    assert all(word in told for word in ("'x'", "'int3'", "nope is none of", "--prot", "did you mean --port?"))


@pytest.mark.parametrize("words", [("paper", "scls"), ("bench", "engine"), ("simulate", "--validate")])
def test_experiments_need_a_checkout_and_no_other_command_does(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_experiments", lambda: None)
    assert words[-1] in misuse(capsys, *words) or words[0] == "paper"
    assert cli.build_parser().parse_args(["bench", "--num-prompts", "3"]).num_prompts == 3
