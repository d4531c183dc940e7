"""`lengthwise strategy new`, and what its files are good for."""

import sys
from pathlib import Path

import pytest

from server.cli.main import main
from server.config import ConfigError, load_config

ROOT = Path(__file__).parents[4]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_says_next_what_the_tutorial_does_next(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which tests/server/test_tutorials.py runs."""
    assert main(["strategy", "new", "my_order"]) == 0
    told = capsys.readouterr().out.replace(sys.executable, "python")
    tutorial = (ROOT / "docs/tutorial-researcher.md").read_text("utf-8").splitlines()
    tests, simulation, _ = map(str.strip, told.splitlines()[1:])
    assert {tests, simulation} <= {*tutorial} and " -m pytest " in tests and " simulate " in simulation


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
