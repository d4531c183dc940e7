"""Rows of SCLS: claims and figures of its section 5 beside those of runs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from loadgen.experiments.paper import published
from loadgen.experiments.paper.gains import by_point, compare, gain_rows, increase
from loadgen.experiments.paper.plan import Line
from loadgen.experiments.paper.published import PERCENT
from loadgen.experiments.paper.row import AnyRow, Claim, Finding, Row, chain, less, more, rising

SLICES_OF = "slices of "
WORKERS_OF = "workers: "
"""Beginnings of the names of points in two of the sweeps."""

READ_ANEW, KEPT = "K and V read anew", "K and V kept"
"""Names of points: K and V between two slices in the paper's way, and, where copying takes less time, kept."""


def main_rows(lines: Sequence[Line], backend: str, baselines: Sequence[str]) -> list[AnyRow]:
    """Rows of section 5.2: scls against its baselines, at every point of the sweep."""
    over = {"sls": published.SCLS_OVER_SLS[backend], "ils": published.SCLS_OVER_ILS}
    best = by_point(lines, "scls")
    sizes = increase(lines, "scls", "sls", "batch_size")
    fewer = compare(lines, "scls", "sls", "invalid", lambda new, old: 100 * new / max(old, 1e-9)).values()
    few = [trial.few_slices for trial in best.values()]
    return [
        *(row for name in baselines for row in gain_rows(lines, "scls", name, over[name])),
        Row("scls over sls: batch size", sizes, published.SCLS_BATCH_SIZE[backend]),
        Claim(
            "scls has far fewer invalid tokens than sls",
            max(fewer) < 50,
            f"{min(fewer):.0f} to {max(fewer):.0f} % of them",
            "5.2, Fig. 13a",
        ),
        Claim(
            "the vast majority of requests needs at most three slices",
            min(few) > 80,
            f"{min(few):.1f} to {max(few):.1f} %",
            "5.2, Fig. 14a",
        ),
        Row(
            "scls: batches that return early",
            {point: trial.early_returns for point, trial in best.items()},
            published.SCLS_EARLY_RETURNS,
        ),
        _balance(lines, baselines),
    ]


def _balance(lines: Sequence[Line], baselines: Sequence[str]) -> Claim:
    spreads = {
        name: {point: trial.imbalance for point, trial in by_point(lines, name).items()}
        for name in (*baselines, "scls")
    }
    least = all(spread <= spreads[name][point] for name in baselines for point, spread in spreads["scls"].items())
    means = {name: fmean(spread.values()) for name, spread in spreads.items()}
    return Claim("scls's completion times differ least", least, f"mean STD in s: {chain(means)}", "5.3, Fig. 17")


def ablation_rows(lines: Sequence[Line]) -> list[AnyRow]:
    """Rows of section 5.4: each step of the ablation."""
    throughput, mean, size, pad = (
        {line.strategy: getattr(line.trial, figure) for line in lines}
        for figure in ("throughput", "mean", "batch_size", "pad")
    )
    sizes = {name: size[name] for name in ("pm", "ab", "lb")}
    pads = {name: pad[name] for name in ("pm", "ab", "lb")}
    faster, sooner = rising(list(throughput.values())), rising([-one for one in mean.values()])
    return [
        Claim("each step has more throughput", faster, chain(throughput, 2), "5.4, Fig. 15a"),
        Claim("each step has less mean response time", sooner, chain(mean), "5.4, Fig. 15b"),
        Claim(
            "pm has fewer pad tokens than so",
            pad["pm"] < pad["so"],
            chain({name: pad[name] for name in ("so", "pm")}),
            "5.4, Fig. 16c",
        ),
        Claim(
            "ab and lb have larger batches than pm",
            sizes["pm"] < min(sizes["ab"], sizes["lb"]),
            chain(sizes),
            "5.4, Fig. 16b",
        ),
        Claim(
            "ab and lb have slightly more pad tokens than pm",
            pads["pm"] < min(pads["ab"], pads["lb"]),
            chain(pads),
            "5.4, Fig. 16c",
        ),
    ]


def slice_rows(lines: Sequence[Line]) -> list[AnyRow]:
    """Rows of section 5.5; lines by rising slice length."""
    trials = {line.point.removeprefix(SLICES_OF): line.trial for line in lines}
    throughput = [one.throughput for one in trials.values()]
    best = throughput.index(max(throughput))
    invalid, size, slices, early, imbalance = (
        {length: getattr(one, name) for length, one in trials.items()}
        for name in ("invalid", "batch_size", "slices", "early_returns", "imbalance")
    )
    short, long = next(iter(trials)), list(trials)[-1]
    return [
        Claim(
            "throughput first rises with the slice length, then falls",
            0 < best < len(throughput) - 1 and rising(throughput[: best + 1]) and rising(throughput[best:][::-1]),
            chain({length: one.throughput for length, one in trials.items()}, 2),
            "5.5, Fig. 18a",
        ),
        Claim(
            "longer slices have more invalid tokens", rising(list(invalid.values())), chain(invalid), "5.5, Fig. 19a"
        ),
        Claim(
            "longer slices have smaller batches", rising([-one for one in size.values()]), chain(size), "5.5, Fig. 19b"
        ),
        Claim(
            "longer slices are fewer a request",
            rising([-one for one in slices.values()]),
            chain(slices, 2),
            "5.5, Fig. 20a",
        ),
        Claim("long slices return early more often", early[long] > early[short], chain(early), "5.5, Fig. 20b"),
        Claim(
            "the longest slices balance load worse than the best",
            imbalance[long] > list(imbalance.values())[best],
            chain(imbalance),
            "5.5, Fig. 21",
        ),
    ]


def keeping_rows(lines: Sequence[Line]) -> list[AnyRow]:
    """Gains of keeping K and V between slices; the paper has no figures of it."""
    trials = {line.point: line.trial for line in lines}
    old, new = trials[READ_ANEW], trials[KEPT]
    return [
        Finding("keeping K and V: throughput", more(new.throughput, old.throughput), PERCENT),
        Finding("keeping K and V: mean response time less by", less(new.mean, old.mean), PERCENT),
        Finding("keeping K and V: 95 % response time less by", less(new.tail, old.tail), PERCENT),
    ]


def worker_rows(lines: Sequence[Line]) -> list[AnyRow]:
    """Throughput a worker next to that of one worker alone."""
    counts = {int(line.point.removeprefix(WORKERS_OF)): line.trial.throughput for line in lines}
    one = counts[min(counts)] / min(counts)
    shares = {f"{count}": throughput / count / one for count, throughput in counts.items()}
    held = all(abs(share - 1) < 0.1 for share in shares.values())
    return [
        Claim(
            "throughput grows linearly with workers (10 %)",
            held,
            f"a worker's, to one alone: {chain(shares, 2)}",
            "5.6, Fig. 22",
        )
    ]
