"""Environments that pip and npm make for programs of others, each in a folder of its own, and the tables of what was
found with them."""

import json
import os
import shutil
import subprocess
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ASKED = "LENGTHWISE_TEST_CLIENTS"
HEAVY = "LENGTHWISE_TEST_HEAVY_CLIENTS"
TABLE = "LENGTHWISE_CLIENTS_TABLE"
"""Variables: the folder of the environments, whether to make those that take minutes, and where to write a table."""


def make_python(folder: Path, requirements: Sequence[str], alone: str | None = None) -> Path:
    """The folder of programs of an environment that holds what is required, made or updated; skips where pip cannot.

    `alone` is installed without the packages that it requires.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    flags = ["--quiet", "--disable-pip-version-check", "--no-input", "--upgrade"]
    install([python, "-m", "pip", "install", *flags, *requirements])
    if alone is not None:
        install([python, "-m", "pip", "install", "--no-deps", *flags, alone])
    return python.parent


def make_node(folder: Path, requirements: Sequence[str]) -> Path:
    """The folder of programs of npm's packages, which are installed or updated; skips where there is no Node."""
    npm = shutil.which("npm")
    if shutil.which("node") is None or npm is None:
        pytest.skip("there is no Node here")
    folder.mkdir(parents=True, exist_ok=True)
    install([npm, "install", "--prefix", folder, "--no-audit", "--no-fund", *requirements])
    return folder / "node_modules" / ".bin"


def install(command: Sequence[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"cannot be installed here: {done.stderr.strip().splitlines()[-1]}")


def node_version(folder: Path, package: str) -> str:
    about = folder / "node_modules" / package / "package.json"
    return str(json.loads(about.read_text())["version"])


def python_version(folder: Path, package: str) -> str:
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    command = (folder / "bin" / "python", "-c", code)
    return str(subprocess.run(command, capture_output=True, text=True, check=True).stdout).strip()


@contextmanager
def tabled(heads: Sequence[str]) -> Iterator[dict[str, list[str]]]:
    """The cells of each client; at the end they become the table with these heads, where that is asked for."""
    rows: dict[str, list[str]] = {}
    yield rows
    if TABLE in os.environ:
        replace_table(Path(os.environ[TABLE]), heads, [*rows.values()])


def replace_table(path: Path, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Put a table into the place of the one whose first column has the same head."""
    before, found, after = path.read_text().partition(f"| {heads[0]} |")
    assert found, f"{path} has no table of {heads[0]}"
    rest = after.partition("\n\n")[2]
    lines = "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, ["---"] * len(heads), *rows))
    path.write_text(f"{before}{lines}" + (f"\n{rest}" if rest else ""))
