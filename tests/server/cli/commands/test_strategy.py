"""`lengthwise strategy new`, and what its files are good for."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from server.cli.main import main
from server.config import ConfigError, load_config

ROOT = Path(__file__).parents[4]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_new_strategy_passes_its_own_tests_and_is_simulated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["strategy", "new", "my_order"]) == 0
    told = capsys.readouterr().out
    (command,) = re.findall("  (.* -m pytest .*)", told)
    plugins = ["-p", "no:asyncio", "-p", "no:timeout"]  # which the settings of a clone ask for
    shutil.copy(ROOT / "pyproject.toml", folder)
    done = subprocess.run(
        [*shlex.split(command), *plugins], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0 and "23 passed" in done.stdout, done.stdout + done.stderr
    (simulated,) = re.findall("lengthwise (simulate .*)", told)
    assert main(simulated.split()) == 0
    assert "my_order.py:MY_ORDER" in capsys.readouterr().out


def test_the_settings_of_serve_take_it(folder: Path) -> None:
    assert main(["strategy", "new", "my_order"]) == 0
    assert load_config({}, {"LENGTHWISE_STRATEGY": "my_order.py:MY_ORDER"}, None).strategy == "my_order.py:MY_ORDER"
    with pytest.raises(
        ConfigError, match="LENGTHWISE_STRATEGY: strategy my_order.py:ABSENT: my_order.py has no ABSENT"
    ):
        load_config({}, {"LENGTHWISE_STRATEGY": "my_order.py:ABSENT"}, None)


def test_what_is_there_is_not_written_over(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "test_my_order.py").write_text("mine")
    assert main(["strategy", "new", "my_order"]) == 1
    assert "test_my_order.py is there" in capsys.readouterr().err and not (folder / "my_order.py").exists()
