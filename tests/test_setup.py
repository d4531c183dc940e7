"""That what is installed, what was tested and what is in the tree agree."""

import os
import re
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from lengthwise import PACKAGES
from loadgen.result_file import PROGRAM
from server.version import VERSION

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PIN = re.compile(r"([A-Za-z0-9._-]+)==([0-9][A-Za-z0-9.]*)")


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    matches = [PIN.fullmatch(line) for line in lines if line and not line.startswith("#")]
    assert all(matches), "constraints.txt holds exact versions only"
    return {canonical(match[1]): match[2] for match in matches if match}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_wheel_has_every_package_but_the_experiments_and_the_tests() -> None:
    """A list by hand named folders that were gone, and nothing could be installed."""
    find = PROJECT["tool"]["setuptools"]["packages"]["find"]
    folders = {
        file.parent.relative_to(ROOT) for top in ROOT.glob("*/__init__.py") for file in top.parent.rglob("__init__.py")
    }
    names = {folder.as_posix().replace("/", ".") for folder in folders}
    found = {name for name in names if any(fnmatch(name, one) for one in find["include"])}
    found -= {name for name in names if any(fnmatch(name, one) for one in find["exclude"])}
    assert found == {name for name in names if not name.startswith(("tests", "loadgen.experiments"))}


def test_every_requirement_has_a_tested_version() -> None:
    """But for the clients, which are tested at the versions that their ranges allow, in environments of their own."""
    extras = [lines for name, lines in PROJECT["project"]["optional-dependencies"].items() if name != "clients"]
    wanted = [*PROJECT["project"]["dependencies"], *(line for extra in extras for line in extra)]
    names = {canonical(re.split(r"[<>=!~ \[]", line, maxsplit=1)[0]) for line in wanted}
    assert names - pins().keys() == set()


NAMED = re.compile(r"lengthwise[:/-](\d+\.\d+\.\d+)|^version: (\S+)|checkout v(\d\S*)", re.MULTILINE)


def test_what_names_a_version_names_this_one() -> None:
    files = [ROOT / "CITATION.cff", *ROOT.glob("server/deploy/*"), *ROOT.glob("docs/*.md")]
    texts = {path.name: path.read_text("utf-8") for path in files if path.is_file()}
    found = {name: {one for groups in NAMED.findall(text) for one in groups if one} for name, text in texts.items()}
    named = {name: versions for name, versions in found.items() if versions}
    assert named.keys() == {"CITATION.cff", "Dockerfile", "compose.yaml", "kubernetes.yaml", "operations.md"}
    assert set[str]().union(*named.values()) == {VERSION}


def test_a_tag_is_the_version_that_it_tags() -> None:
    """And the changelog has what is in it under its heading."""
    latest = re.findall(r"^## \[?([\w.]+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)[0]
    assert latest in ("Unreleased", VERSION)
    command = ["git", "describe", "--tags", "--exact-match", "--match", "v*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0 or (done.stdout.strip(), latest) == (f"v{VERSION}", VERSION)


@pytest.mark.parametrize("target", ["install", "serve", "chat", "bench", "test", "test-clients", "check", "clean"])
def test_the_makefile_has_every_target_that_the_documents_name(target: str) -> None:
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_make_alone_lists_the_targets() -> None:
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "make serve" in done.stdout


def test_an_interpreter_that_is_missing_is_named_with_the_remedy(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run(["make", "install", "PYTHON=no-such-python"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "no-such-python is missing or older than 3.11" in done.stderr
    assert not (tmp_path / ".venv").exists()


# A package of somebody else with the name of one of this program's is named, and is never run

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
