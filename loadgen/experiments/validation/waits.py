"""The default's bound on waits in seconds: `python -P -m loadgen.experiments.validation.waits [REQUESTS]`.

Same arrivals under both orders; beyond: started later than the wait by arrival / (1 - x) plus one mean time of service.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby, product
from statistics import fmean

from loadgen.console import Table, show_table, table_console
from loadgen.experiments.grid.cells import BASE, BURSTS, GRID, HARD, TASKS, USUAL, Cell
from loadgen.experiments.grid.run import play_cell
from loadgen.experiments.options import read_requests
from loadgen.turns import collect
from scheduler.options import Scheduling
from scheduler.strategy import STRATEGIES

SHAPES = ("log-normal", "bimodal", "servegen", TASKS)
PREDICTIONS = ("oracle", USUAL, "inverted")


def measure_waits(cell: Cell, share: float = Scheduling.out_of_turn) -> tuple[list[float], float]:
    """Ratios to the bound, and the most seconds beyond it. `share`: x of the default's order."""
    by_arrival, served = (play_cell(cell, STRATEGIES[name]) for name in (BASE, "lengthwise"))
    service = fmean(one.end - one.started for one in by_arrival)
    bounds = [(one.started - one.arrival) / (1 - share) + service for one in by_arrival]
    waits = [one.started - one.arrival for one in served]
    pairs = list(zip(waits, bounds, strict=True))
    return [wait / bound for wait, bound in pairs], max(wait - bound for wait, bound in pairs)


def list_cells(requests: int) -> Iterator[Cell]:
    for prediction, machine, load in product(PREDICTIONS, GRID[1:], SHAPES):
        usual = Cell(machine, load, HARD, prediction=prediction, requests=requests)
        yield from (usual, Cell(machine, load, *BURSTS, prediction=prediction, requests=requests))


def tabulate(cells: Iterable[Cell]) -> Table:
    """A line for each kind of prediction; equal kinds follow each other. Of what had ended before Ctrl-C."""
    found, _ = collect((cell.prediction, *measure_waits(cell)) for cell in cells)
    rows = []
    for prediction, alike in groupby(found, key=lambda one: one[0]):
        _, waits, beyond = zip(*alike, strict=True)
        ratios = [ratio for each in waits for ratio in each]
        late = sum(ratio > 1 for ratio in ratios)
        figures = len(ratios), late, f"{100 * late / len(ratios):.2f} %", f"{max(ratios):.2f}", f"{max(beyond):.0f} s"
        rows.append((prediction, *map(str, figures)))
    return Table("waits beyond the bound in seconds", ("predictions", *HEADS), tuple(rows))


HEADS = ("requests", "beyond", "share", "worst, times the bound", "by")
READING = (
    "Beyond: started later than the bound, which is the wait by arrival / (1 - x) and a mean service; "
    "worst: the longest wait by its bound; by: the most seconds beyond it."
)


if __name__ == "__main__":
    table_console().print(show_table(tabulate(list_cells(read_requests(1500)))), READING)
