"""Rows of SCLS: claims and figures of its section 5 beside those of runs."""

from __future__ import annotations

from collections.abc import Sequence
from operator import truediv
from statistics import fmean

from loadgen.experiments.paper.gains import by_point, compare, gain_rows
from loadgen.experiments.paper.plan import Line
from loadgen.experiments.paper.row import (
    PERCENT,
    Published,
    Row,
    chain,
    claim,
    claim_rise,
    find,
    less,
    more,
    rises,
    skip,
)

SLICES_OF = "slices of "
WORKERS_OF = "workers: "
"""Beginnings of the names of points in two of the sweeps."""
READ_ANEW, KEPT = "K and V read anew", "K and V kept"
"""Names of points: K and V between two slices in the paper's way, and, where copying takes less time, kept."""
EARLY_RETURNS = Published(0, 1, PERCENT, "5.2, Fig. 14b")
"""Batches that end before their slice does, of all batches: "a maximal proportion less than 1 %"."""


def main_rows(lines: Sequence[Line], backend: str) -> list[Row]:
    """Rows of section 5.2: scls against its baselines, at every point of the sweep."""
    best = by_point(lines, "scls")
    few = [trial.few_slices for trial in best.values()]
    slices = f"{min(few):.1f} to {max(few):.1f} %"
    early = {point: trial.early_returns for point, trial in best.items()}
    return [
        *gain_rows(lines, f"scls-{backend}"),
        _claim_fewer_invalid(lines),
        claim("the vast majority of requests needs at most three slices", min(few) > 80, slices, "5.2, Fig. 14a"),
        EARLY_RETURNS.beside("scls: batches that return early", early),
        _claim_balance(lines),
    ]


def _claim_fewer_invalid(lines: Sequence[Line]) -> Row:
    what = "scls has far fewer invalid tokens than sls"
    shares = [100 * share for share in compare(lines, "scls", "sls", "invalid", truediv).values()]
    if not shares:
        return skip(what, "sls has none")
    return claim(what, max(shares) < 50, f"{min(shares):.0f} to {max(shares):.0f} % of them", "5.2, Fig. 13a")


def _claim_balance(lines: Sequence[Line]) -> Row:
    spreads = {
        name: {point: trial.imbalance for point, trial in by_point(lines, name).items()}
        for name in dict.fromkeys(line.strategy for line in lines)
    }
    least = all(spread <= other[point] for other in spreads.values() for point, spread in spreads["scls"].items())
    means = {name: fmean(spread.values()) for name, spread in spreads.items()}
    return claim("scls's completion times differ least", least, f"mean STD in s: {chain(means)}", "5.3, Fig. 17")


def ablation_rows(lines: Sequence[Line]) -> list[Row]:
    """Rows of section 5.4: each step of the ablation."""
    throughput, mean, size, pad = (
        {line.strategy: getattr(line.trial, figure) for line in lines}
        for figure in ("throughput", "mean", "batch_size", "pad")
    )
    steps = ("pm", "ab", "lb")
    sizes, pads = ({name: one[name] for name in steps} for one in (size, pad))
    before = {name: pad[name] for name in ("so", "pm")}
    larger, slightly = (one["pm"] < min(one["ab"], one["lb"]) for one in (sizes, pads))
    return [
        claim_rise("each step has more throughput", throughput, "5.4, Fig. 15a", 2),
        claim_rise("each step has less mean response time", mean, "5.4, Fig. 15b", falls=True),
        claim_rise("pm has fewer pad tokens than so", before, "5.4, Fig. 16c", falls=True),
        claim("ab and lb have larger batches than pm", larger, chain(sizes), "5.4, Fig. 16b"),
        claim("ab and lb have slightly more pad tokens than pm", slightly, chain(pads), "5.4, Fig. 16c"),
    ]


def slice_rows(lines: Sequence[Line]) -> list[Row]:
    """Rows of section 5.5; lines by rising slice length."""
    throughput, invalid, size, slices, early, imbalance = (
        {line.point.removeprefix(SLICES_OF): getattr(line.trial, name) for line in lines}
        for name in ("throughput", "invalid", "batch_size", "slices", "early_returns", "imbalance")
    )
    rates, spreads = list(throughput.values()), list(imbalance.values())
    best = rates.index(max(rates))
    between = 0 < best < len(rates) - 1 and rises(rates[: best + 1]) and rises(rates[best:][::-1])
    *_, late = returns = list(early.values())
    return [
        claim(
            "throughput first rises with the slice length, then falls", between, chain(throughput, 2), "5.5, Fig. 18a"
        ),
        claim_rise("longer slices have more invalid tokens", invalid, "5.5, Fig. 19a"),
        claim_rise("longer slices have smaller batches", size, "5.5, Fig. 19b", falls=True),
        claim_rise("longer slices are fewer a request", slices, "5.5, Fig. 20a", 2, falls=True),
        claim("long slices return early more often", late > returns[0], chain(early), "5.5, Fig. 20b"),
        claim(
            "the longest slices balance load worse than the best",
            spreads[-1] > spreads[best],
            chain(imbalance),
            "5.5, Fig. 21",
        ),
    ]


def keeping_rows(lines: Sequence[Line]) -> list[Row]:
    """Gains of keeping K and V between slices; the paper has no figures of it."""
    trials = {line.point: line.trial for line in lines}
    old, new = trials[READ_ANEW], trials[KEPT]
    return [
        find("keeping K and V: throughput", more(new.throughput, old.throughput), PERCENT),
        find("keeping K and V: mean response time less by", less(new.mean, old.mean), PERCENT),
        find("keeping K and V: 95 % response time less by", less(new.tail, old.tail), PERCENT),
    ]


def worker_rows(lines: Sequence[Line]) -> list[Row]:
    """Throughput a worker next to that of one worker alone."""
    counts = {int(line.point.removeprefix(WORKERS_OF)): line.trial.throughput for line in lines}
    alone = counts[min(counts)] / min(counts)
    shares = {f"{count}": throughput / count / alone for count, throughput in counts.items()}
    held = all(abs(share - 1) < 0.1 for share in shares.values())
    told = f"a worker's, to one alone: {chain(shares, 2)}"
    return [claim("throughput grows linearly with workers (10 %)", held, told, "5.6, Fig. 22")]
