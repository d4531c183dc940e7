"""Short figures, tables in narrow windows, and how this program starts itself."""

import io
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.table import Table as TextTable

from loadgen.console import Table, TableConsole, format_number, show_table, table_console
from loadgen.result_file import PROGRAM
from models.catalog.packaged import PIP
from server.version import VERSION

FIGURES = {0: "0", 1234567: "1,234,567", 12.345: "12.3", 0.012345: "0.0123", 100.0: "100", -2.5: "-2.5", 120: "120"}


@pytest.mark.parametrize(("value", "words"), [*FIGURES.items(), (float("inf"), "inf")])
def test_figures_are_written_short(value: float, words: str) -> None:
    assert format_number(value) == words


def test_a_table_shows_its_figures_in_a_window_that_is_too_narrow_for_them() -> None:
    """The columns of strategies had no width: the table was names alone."""
    table = TextTable("", "baton-pd", "lengthwise")
    table.add_row("Output token throughput (tok/s)", "1,234", "5,678")
    shown = io.StringIO()
    TableConsole(file=shown, width=20).print(table)
    assert "baton-pd" in shown.getvalue() and "1,234" in shown.getvalue() and "5,678" in shown.getvalue()


def test_names_of_rows_are_never_cut() -> None:
    """The arena's table had `sjf-oracle-co…` and `sjf-oracle-dy…`."""
    heads = ("", *(f"a measure of some kind, {number}" for number in range(9)))
    names = ("baton-pd, sjf-oracle-continuous", "sjf-oracle-dynamic")
    shown = io.StringIO()
    table = Table("figures", heads, tuple((name, *["1.12 +1000%"] * 9) for name in names))
    TableConsole(file=shown, width=140).print(show_table(table))
    assert "sjf-oracle-continuous" in shown.getvalue() and "sjf-oracle-dynamic" in shown.getvalue()
    assert "…" not in shown.getvalue()


def test_a_table_has_a_line_a_row_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """Names of rows were wrapped at 160 columns, and those of `bench` at 80."""
    cells = tuple(f"{number} words that a window would wrap" for number in range(20))
    table_console().print(show_table(Table("figures", cells, (cells, cells))))
    lines = capsys.readouterr().out.splitlines()
    assert [line.count(cells[-1]) for line in lines] == [0, 0, 1, 0, 1, 1, 0]


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
    assert [(path.name, hit[0]) for path in sources for hit in FROM_HERE.finditer(path.read_text("utf-8"))] == []
