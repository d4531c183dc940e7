"""That a package of somebody else with the name of one of this program's is named, and is never run."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lengthwise import PACKAGES
from loadgen.result_file import PROGRAM
from server.version import VERSION

ROOT = Path(__file__).parent.parent


def start(*path: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run([*PROGRAM, "--version"], env=environment, cwd=path[0], capture_output=True, text=True)


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize("form", ["{}/__init__.py", "{}.py"])
def test_what_comes_before_a_package_on_the_path_is_named_with_the_remedy(tmp_path: Path, name: str, form: str) -> None:
    theirs = tmp_path / form.format(name)
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_text("raise AssertionError('theirs')\n")
    done = start(tmp_path, ROOT)
    assert done.returncode == 78 and done.stderr.count("\n") == 1
    assert f"finds the package `{name}` in {tmp_path / name}" in done.stderr
    assert f"take {tmp_path} off PYTHONPATH" in done.stderr


def test_a_folder_that_is_no_package_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "weights.py").write_text("raise AssertionError('theirs')\n")
    done = start(tmp_path, ROOT)
    assert (done.returncode, done.stdout) == (0, f"lengthwise {VERSION}\n"), done.stderr


def test_a_package_that_another_has_overwritten_or_removed_is_named(tmp_path: Path) -> None:
    """PyPI has a `scheduler`: pip writes both into the same folder, and takes files of both away with either."""
    shutil.copy(ROOT / "lengthwise.py", tmp_path)
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "scheduler" / "__init__.py").write_text("from scheduler.core import Scheduler\n")
    assert f"another package has written over {tmp_path / 'scheduler'}" in start(tmp_path).stderr
    (tmp_path / "scheduler" / "__init__.py").unlink()
    assert f"another package has written over {tmp_path / 'scheduler'}" in start(tmp_path).stderr
