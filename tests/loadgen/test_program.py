"""That this program starts itself, and others, and not what lies in the folder where the user happens to be."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from loadgen.result_file import PROGRAM
from models.catalog.wheel import PIP
from server.version import VERSION

ROOT = Path(__file__).parents[2]
FROM_HERE = re.compile(r"python\S* -m (?!pytest)\S+|sys\.executable, \"-m\"")
"""A module that is looked for in the working directory first; the tests are only ever run from the tree."""


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A folder of somebody who has a `server` and a `pip` of their own."""
    for name, module in (("server", "cli"), ("pip", "__main__")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / f"{module}.py").write_text("print('theirs')\n")
    return tmp_path


@pytest.mark.parametrize(("command", "own"), [(PROGRAM, f"lengthwise {VERSION}\n"), (PIP, "pip ")])
def test_a_package_of_the_same_name_is_left_alone(command: Sequence[str], own: str, trap: Path) -> None:
    done = subprocess.run([*command, "--version"], cwd=trap, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(own)


def test_nothing_is_started_from_the_working_directory() -> None:
    packages = ("server", "engine", "scheduler", "models", "loadgen")
    sources = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    sources += [ROOT / "Makefile", ROOT / "README.md"]
    found = [(path.name, hit[0]) for path in sources for hit in FROM_HERE.finditer(path.read_text("utf-8"))]
    assert found == []
