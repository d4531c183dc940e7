"""The grid's figures as tables for a terminal, and what is asked of the default."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from loadgen.columns import COLUMNS
from loadgen.experiments.grid.cells import MISLEADING, OVERLOADS, USUAL, group_cells
from loadgen.experiments.grid.run import KINDS, Difference, Results, compare

HEADS = ("", "JCT", "TTFT", "normalized latency", "slowdown", "median TTFT", "worst cells", "latest", "least req/s")
READING = (
    "Differences to first come, first served in %, geometric means over cells: mean / p99 / worst request. "
    "Worst cells: the largest difference of mean / p99 JCT. Latest: by how much a request ended later, at most, as a "
    "share of the p99 JCT of first come, first served. Normalized latency: JCT by tokens of the answer."
)
DEFAULT = "lengthwise"
QUEUE = f"a queue, predictions {USUAL}"

Bound = tuple[str, str, str, float, bool]
BOUNDS: Sequence[Bound] = (
    (QUEUE, "mean_jct_ms", "typical", -20, True),
    (QUEUE, "mean_normalized_latency_s", "typical", -50, True),
    (QUEUE, "median_ttft_ms", "typical", -75, True),
    (QUEUE, "p99_jct_ms", "typical", 6, True),
    (QUEUE, "p99_jct_ms", "most", 25, True),
    *((f"a queue, predictions {one}", "mean_jct_ms", "most", 3, True) for one in MISLEADING),
    *((f"a queue, predictions {one}", "p99_jct_ms", "most", 20, True) for one in MISLEADING),
    *(
        (f"an overload of {count} requests", "mean_jct_ms", "typical", mean, True)
        for count, mean in zip(OVERLOADS, (-10, -40), strict=True)
    ),
    *((f"an overload of {count} requests", "p99_jct_ms", "most", 25, True) for count in OVERLOADS),
    *((name, "mean_jct_ms", "most", 1, True) for name in ("no queue", "lengths alike")),
    *((name, "p99_jct_ms", "most", 2, True) for name in ("no queue", "lengths alike")),
    ("all", "later", "most", 0.7, True),
    ("all", "request_throughput", "least", -1, False),
)
"""What is asked of the default: group, figure, over its cells the typical, the most or the least difference, the bound
in percent (`later`: a share), and whether it is an upper one."""


def show(results: Results, contenders: Sequence[str], requests: int, console: Console) -> None:
    """Print a table for each group of cells, and what is asked of the default where it has run."""
    console.print(READING)
    for title, cells in group_cells([*results], requests).items():
        table = Table(*HEADS, title=f"{title}: {len(cells)} cells")
        for one in compare(results, contenders, cells):
            table.add_row(*_cells(one))
        console.print(table)
    if DEFAULT in contenders and results:
        table = Table("cells", "figure", "measured", "bound", "within", title=f"What is asked of {DEFAULT}")
        for row in check_bounds(results, requests):
            table.add_row(*row)
        console.print(table)


def _cells(one: Difference) -> tuple[str, ...]:
    kinds = (" / ".join(f"{one.typical[f'{part}_{kind}']:+.1f}" for part in ("mean", "p99", "p100")) for kind in KINDS)
    worst = f"{one.most['mean_jct_ms']:+.1f} / {one.most['p99_jct_ms']:+.1f}"
    last = (
        f"{one.typical['median_ttft_ms']:+.1f}",
        worst,
        f"{one.later:.2f}",
        f"{one.least['request_throughput']:+.1f}",
    )
    return (one.contender, *kinds, *last)


def check_bounds(results: Results, requests: int) -> Iterator[tuple[str, str, str, str, str]]:
    """A row for each of BOUNDS whose cells were played."""
    groups = group_cells([*results], requests) | {"all": [*results]}
    for group, figure, how, bound, upper in BOUNDS:
        if group in groups:
            [found] = compare(results, (DEFAULT,), groups[group])
            value = found.later if figure == "later" else getattr(found, how)[figure]
            word, unit = "at most" if upper else "at least", "" if figure == "later" else " %"
            name = f"{COLUMNS[figure].short}, {'geometric mean' if how == 'typical' else f'{how} of any cell'}"
            holds = value <= bound if upper else value >= bound
            yield group, name, f"{value:+.2f}{unit}", f"{word} {bound:+g}{unit}", "yes" if holds else "no"
