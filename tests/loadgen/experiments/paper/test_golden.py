"""Small shares of the papers' experiments, to the digit: all figures of all runs, and all rows.

`.venv/bin/python -m tests.loadgen.experiments.paper.test_golden` writes the files anew after a change of the scheduler
that is meant to change them.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from server.cli.main import main
from tests.loadgen.workload.args import write_trace

GOLDEN = Path(__file__).with_name("golden")
CELLS = {
    "magnus": "--scale 0.14 --duration 8 --rates 2,4 --experiments main,ablation,correlations,learning",
    "scls": "--scale 0.125 --duration 6 --rates 8,16 --experiments main,ablation,slices,workers,main-ds,ablation-ds",
    "ssjf": "--scale 0.05 --duration 3 --rates 4 --experiments rates-authors,burstiness,sizes,formulations",
    "baton": "--scale 0.05",
}


def measure(paper: str, folder: Path) -> Any:
    """The runs and rows of a paper's cells; Magnus's on a trace, since its tasks are texts of this Python's library."""
    file = folder / "result.json"
    rows = (f"2023-11-16 18:00:{number:02},{20 + 7 * number},{5 + number**2 % 97 * 4}" for number in range(60))
    flags = ["--trace", write_trace(folder / "trace.csv", rows)] if paper == "magnus" else []
    assert main(["paper", paper, *CELLS[paper].split(), *flags, "--save-result", str(file)]) == 0
    document = json.loads(file.read_text())
    return {name: {part: one[part] for part in ("runs", "rows")} for name, one in document["experiments"].items()}


@pytest.mark.parametrize("paper", CELLS)
def test_figures_and_rows_are_as_they_were(paper: str, tmp_path: Path) -> None:
    assert measure(paper, tmp_path) == json.loads((GOLDEN / f"{paper}.json").read_text())


def write_lines(paper: str, folder: Path) -> str:
    """A line a run and row, so that a change of one shows as one."""
    parts = []
    for name, one in measure(paper, folder).items():
        for part, lines in one.items():
            one[part] = "[\n" + ",\n".join(json.dumps(line) for line in lines) + "\n]"
        parts.append(f'"{name}": {{"runs": {one["runs"]}, "rows": {one["rows"]}}}')
    return "{" + ",\n".join(parts) + "}\n"


if __name__ == "__main__":
    for paper in sys.argv[1:] or CELLS:
        with TemporaryDirectory() as folder:
            GOLDEN.mkdir(exist_ok=True)
            (GOLDEN / f"{paper}.json").write_text(write_lines(paper, Path(folder)))
