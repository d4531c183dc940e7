"""`lengthwise strategy new`, and what its files are good for."""

import sys
from pathlib import Path

import pytest

from server.cli.main import main
from server.config import ConfigError, load_config
from tests.server.cli.commands.runner import Told

ROOT = Path(__file__).parents[4]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_says_next_what_the_tutorial_does_next(folder: Path, told: Told) -> None:
    """Which tests/server/test_tutorials.py runs."""
    said = told("strategy", "new", "my_order").replace(sys.executable, "python")
    tutorial = (ROOT / "docs/tutorial-researcher.md").read_text("utf-8").splitlines()
    tests, simulation, _ = map(str.strip, said.splitlines()[1:])
    assert {tests, simulation} <= {*tutorial} and " -m pytest " in tests and " simulate " in simulation


def test_the_settings_of_serve_take_it(folder: Path) -> None:
    assert main(["strategy", "new", "my_order"]) == 0
    assert load_config({}, {"LENGTHWISE_STRATEGY": "my_order.py:MY_ORDER"}, None).strategy == "my_order.py:MY_ORDER"
    absent = "LENGTHWISE_STRATEGY: strategy my_order.py:ABSENT: my_order.py has no ABSENT"
    with pytest.raises(ConfigError, match=absent):
        load_config({}, {"LENGTHWISE_STRATEGY": "my_order.py:ABSENT"}, None)


def test_what_is_there_is_not_written_over(folder: Path, told: Told) -> None:
    (folder / "test_my_order.py").write_text("mine")
    said = told("strategy", "new", "my_order", code=1)
    assert "test_my_order.py is there" in said and not (folder / "my_order.py").exists()
