"""The result files in docs/research/papers are what the program computes, and papers.md says what they hold."""

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from server.cli.main import main
from tests.tools import cells

ROOT = Path(__file__).parents[4]
DOCS = ROOT / "docs" / "research"
MODES = ("none", "dynamic", "continuous")
JCT, OFTEN, TAIL, BATCH = "mean response time less by", "throughput", "95 % response time less by", "batch size"
MAGNUS = ("magnus main", "magnus-comments main")
STEPS = ("magnus ablation", "magnus-comments ablation")

Cell = tuple[Sequence[str], Sequence[str], int]
"""The experiments whose rows make a cell, the rows of each of its ranges, and the digits."""


def over(experiments: Sequence[str], pair: str, figures: Sequence[str]) -> Iterator[Cell]:
    return ((experiments, [f"{pair}: {figure}"], 0) for figure in figures)


def by_mode(experiment: str, order: str, figure: str, digits: int = 0) -> Cell:
    return (f"ssjf {experiment}",), [f"{order}-{mode}: {figure}" for mode in MODES], digits


SHORTER, SERVED = "mean JCT less by", "throughput"
TABLES: dict[str, list[Cell | None]] = {
    "`magnus`, in %": [
        *over(MAGNUS, "magnus over vs", (OFTEN, JCT, TAIL, "all tokens a second")),
        None,
        None,
        *over(MAGNUS, "magnus over ccb", (OFTEN, JCT)),
        *over(MAGNUS, "magnus over ccb-padded", (OFTEN, JCT)),
        *over(STEPS, "glp over vs", ("valid tokens a second",)),
        *over(STEPS, "abp over glp", (OFTEN, JCT)),
        *over(STEPS, "magnus over abp", (JCT,)),
    ],
    "`scls`, in %": [
        *over(("scls main",), "scls over sls", (OFTEN, JCT, TAIL, BATCH)),
        *over(("scls-ds main-ds",), "scls over sls", (OFTEN, JCT, TAIL, BATCH)),
        *over(("scls-ds main-ds",), "scls over ils", (OFTEN, JCT)),
        *over(("scls-ds main-ds",), "scls over ils-padded", (OFTEN, JCT)),
        (("scls main", "scls-ds main-ds"), ["scls: batches that return early"], 0),
    ],
    "none, dynamic, continuous": [
        by_mode("rates", "ssjf", SHORTER),
        by_mode("rates", "sjf-oracle", SHORTER),
        by_mode("rates-authors", "ssjf", SERVED, 1),
        by_mode("rates-authors", "sjf-oracle", SERVED, 1),
        by_mode("burstiness", "ssjf", SHORTER),
        None,
        by_mode("burstiness", "sjf-oracle", SHORTER),
        by_mode("burstiness", "ssjf", SERVED, 1),
        by_mode("burstiness", "sjf-oracle", SERVED, 1),
    ],
}
"""The column "simulator" of papers.md's tables, by their first heads; None: not simulated."""


def read_table(head: str) -> list[list[str]]:
    """The rows of one of papers.md's tables."""
    lines = (DOCS / "papers.md").read_text("utf-8").splitlines()
    begin = next(place for place, line in enumerate(lines) if line.startswith(f"| {head} |"))
    end = next(place for place in range(begin, len(lines)) if not lines[place].startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[begin + 2 : end]]


def read_experiment(name: str) -> Any:
    file, experiment = name.split()
    return json.loads((DOCS / "papers" / f"{file}.json").read_text("utf-8"))["experiments"][experiment]


def tell(cell: Cell) -> str:
    """A cell as the page has it: of each row the least and the most, over all points of all experiments."""
    experiments, rows, digits = cell
    told = []
    for row in rows:
        found = [one for name in experiments for one in read_experiment(name)["rows"] if one["what"] == row]
        values = [value for one in found for value in one["measured"].values()]
        ends = dict.fromkeys(f"{end:.{digits}f}".replace("-0", "0") for end in (min(values), max(values)))
        told.append(" to ".join(ends))
    return ", ".join(told)


@pytest.mark.parametrize("head", TABLES)
def test_the_page_says_what_the_files_hold(head: str) -> None:
    rows, cells = read_table(head), TABLES[head]
    assert len(rows) == len(cells)
    told = [(row[0], re.sub(r" \(.*\)$", "", row[2])) for row in rows]
    assert told == [(row[0], row[2] if cell is None else tell(cell)) for row, cell in zip(rows, cells, strict=True)]


def test_the_page_has_sclss_ablation() -> None:
    shown = ("throughput", 2), ("mean", 0), ("batch_size", 1)
    runs = read_experiment("scls ablation")["runs"]
    told = [[one["strategy"], *(f"{one[name]:.{digits}f}" for name, digits in shown)] for one in runs]
    assert [row[:4] for row in read_table("ablation")] == told


def test_the_page_has_batons_seconds() -> None:
    seconds = [f"{one['duration']:,.0f}" for one in read_experiment("baton table-1")["runs"]]
    simulated = [row[1:] for row in read_table("Table 1, seconds") if row[0].endswith("simulated")]
    assert [cell.partition(" ")[0] for row in simulated for cell in row] == seconds


def test_the_page_has_the_engines_gains() -> None:
    page, kept = cells.PAGE.read_text("utf-8"), json.loads(cells.KEPT.read_text("utf-8"))
    assert cells.fill(page, kept) == page
    assert {name: one["command"] for name, one in kept.items()} == {
        name: cells.CELLS[name].command(Path(), name) for name in kept
    }, "the file's figures are of the commands as they are"


def play(strategy: str, round: int, jct: float, **figures: Any) -> dict[str, Any]:
    """A run of a report of `compare`, at 35/s with a CV of 4."""
    known = {"contestant": strategy, "round": round, "request_rate": 35.0, "burstiness": 1 / 16, "failed": 0}
    return known | {"rejected": 0, **dict.fromkeys(cells.FIGURES, 1.0), "mean_jct_ms": jct} | figures


def report(*plays: dict[str, Any]) -> dict[str, Any]:
    told = {"date": "2026-01-01", "machine": {"processor": "some"}, "flags": {"num_prompts": 50}, "troubles": []}
    return {**told, "rounds": 3, "interrupted": False, "plays": list(plays)}


def test_gains_are_read_from_a_report_of_compare() -> None:
    """Mean JCTs of 60, 50 and 40 % of the other's: 50 % less, but for what a mean of logarithms differs by."""
    runs = [
        play(name, round, jct)
        for round, one in enumerate((60.0, 50.0, 40.0), 1)
        for name, jct in (("fcfs-none", 100.0), ("sjf-oracle-none", one))
    ]
    kept = cells.read_report(report(*runs), "lengthwise compare")
    assert (kept["requests"], kept["rounds"], kept["processor"]) == (50, 3, "some")
    gain = cells.find_gain(kept, "sjf-oracle-none", "fcfs-none", "mean_jct_ms", "35/s, CV 4")
    assert gain is not None and gain.percent == "51 (18 to 70)"
    assert cells.find_gain(kept, "sjf-oracle-none", "fcfs-none", "mean_jct_ms", "all at once") is None
    page = cells.fill(cells.PAGE.read_text("utf-8"), {"ssjf-none-tiny": kept})
    [row] = [line for line in page.splitlines() if line.startswith("| with true lengths | 37.6")]
    assert row.endswith("| 51 (18 to 70), -, - | |") and page.count("(18 to 70)") == 1


@pytest.mark.parametrize("lost", [{"failed": 1}, {"rejected": 2}, {"interrupted": True}])
def test_a_report_in_which_a_request_was_lost_is_refused(lost: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not all requests were answered"):
        cells.read_report(report(play("vs", 1, 1.0, **lost)), "lengthwise compare")


def test_make_evidence_writes_every_file() -> None:
    """In one go; --trace and --tasks name files that the repository has not."""
    given = ("TASKS=tasks/", "TRACE=trace.csv", "EVIDENCE=docs/research/papers")
    shown = subprocess.run(["make", "-n", "evidence", *given], cwd=ROOT, capture_output=True, text=True, check=True)
    written = {Path(name).name for name in re.findall(r"--save-result (\S+)", shown.stdout)}
    assert written == {file.name for file in (DOCS / "papers").glob("*.json")} - {"engine.json"}


@pytest.mark.parametrize(("name", "flags"), [("baton", ()), ("ssjf", ("--experiments", "rates", "--rates", "2"))])
def test_the_files_hold_what_the_program_computes(name: str, flags: Sequence[str], tmp_path: Path) -> None:
    """Those of the runs that take seconds; `make evidence` writes all."""
    file = tmp_path / "result.json"
    assert main(["paper", name, *flags, "--save-result", str(file)]) == 0
    kept = json.loads((DOCS / "papers" / f"{name}.json").read_text("utf-8"))["experiments"]
    for experiment, found in json.loads(file.read_text())["experiments"].items():
        assert found["runs"] and all(run in kept[experiment]["runs"] for run in found["runs"])
        assert flags or found == kept[experiment]
