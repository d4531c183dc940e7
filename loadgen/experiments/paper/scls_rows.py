"""What SCLS says of its experiments (section 5), beside what their runs gave."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.experiments.paper import published
from loadgen.experiments.paper.gains import gain_rows, of
from loadgen.experiments.paper.published import PERCENT
from loadgen.experiments.paper.row import AnyRow, Claim, Finding, Row, chain, less, more, rising
from loadgen.experiments.paper.stage import Line

SLICES_OF = "slices of "
WORKERS_OF = "workers: "
"""How points of two of the sweeps are called."""

READ_ANEW, KEPT = "K and V read anew", "K and V kept"
"""What becomes of them between two slices: the paper's way, and, where copying takes less, its future work."""


def main_rows(lines: Sequence[Line], engine: str, baselines: Sequence[str]) -> list[AnyRow]:
    """What section 5.2 says of scls against its baselines, at every point of the sweep."""
    rows: list[AnyRow] = []
    over = {"sls": published.SCLS_OVER_SLS[engine], "ils": published.SCLS_OVER_ILS}
    for name in baselines:
        rows += gain_rows(lines, "scls", name, over[name])
    best, sls = of(lines, "scls"), of(lines, "sls")
    if not best:
        return rows
    if sls:
        sizes = {point: more(best[point].trial.batch_size, sls[point].trial.batch_size) for point in best}
        rows.append(Row("scls over sls: batch size", sizes, published.SCLS_BATCH_SIZE[engine]))
        fewer = {point: best[point].trial.invalid / max(sls[point].trial.invalid, 1e-9) for point in best}
        rows.append(
            Claim(
                "scls has far fewer invalid tokens than sls",
                all(share < 0.5 for share in fewer.values()),
                f"{100 * min(fewer.values()):.0f} to {100 * max(fewer.values()):.0f} % of them",
                "5.2, Fig. 13a",
            )
        )
    few = {point: line.trial.few_slices for point, line in best.items()}
    rows.append(
        Claim(
            "the vast majority of requests needs at most three slices",
            min(few.values()) > 80,
            f"{min(few.values()):.1f} to {max(few.values()):.1f} %",
            "5.2, Fig. 14a",
        )
    )
    early = {point: line.trial.early_returns for point, line in best.items()}
    rows.append(Row("scls: batches that return early", early, published.SCLS_EARLY_RETURNS))
    return [*rows, *_balance(lines, baselines)]


def _balance(lines: Sequence[Line], baselines: Sequence[str]) -> list[AnyRow]:
    by_name = {name: of(lines, name) for name in (*baselines, "scls")}
    rivals = [one for name, one in by_name.items() if name != "scls" and one]
    best = by_name["scls"]
    if not rivals or not best:
        return []
    least = all(
        line.trial.imbalance <= rival[point].trial.imbalance for rival in rivals for point, line in best.items()
    )
    means = {
        name: sum(line.trial.imbalance for line in one.values()) / len(one) for name, one in by_name.items() if one
    }
    return [Claim("scls's completion times differ least", least, f"mean STD in s: {chain(means)}", "5.3, Fig. 17")]


def ablation_rows(lines: Sequence[Line]) -> list[AnyRow]:
    """What section 5.4 says of each step."""
    by_name = {line.strategy: line.trial for line in lines}
    throughput = {name: one.throughput for name, one in by_name.items()}
    mean = {name: one.mean for name, one in by_name.items()}
    rows: list[AnyRow] = [
        Claim(
            "each step has more throughput", rising(list(throughput.values())), chain(throughput, 2), "5.4, Fig. 15a"
        ),
        Claim(
            "each step has less mean response time",
            rising([-one for one in mean.values()]),
            chain(mean),
            "5.4, Fig. 15b",
        ),
    ]
    if {"pm", "so"} <= by_name.keys():
        pad = {name: by_name[name].pad for name in ("so", "pm")}
        rows.append(Claim("pm has fewer pad tokens than so", pad["pm"] < pad["so"], chain(pad), "5.4, Fig. 16c"))
    if {"pm", "ab", "lb"} <= by_name.keys():
        sizes = {name: by_name[name].batch_size for name in ("pm", "ab", "lb")}
        pad = {name: by_name[name].pad for name in ("pm", "ab", "lb")}
        rows += [
            Claim(
                "ab and lb have larger batches than pm",
                sizes["pm"] < min(sizes["ab"], sizes["lb"]),
                chain(sizes),
                "5.4, Fig. 16b",
            ),
            Claim(
                "ab and lb have slightly more pad tokens than pm",
                pad["pm"] < min(pad["ab"], pad["lb"]),
                chain(pad),
                "5.4, Fig. 16c",
            ),
        ]
    return rows


def slice_rows(lines: Sequence[Line]) -> list[AnyRow]:
    """What section 5.5 says; lines by rising slice length."""
    if not lines:
        return []
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
    """What keeping K and V between slices is worth; the paper has no figures of it."""
    trials = {line.point: line.trial for line in lines}
    if trials.keys() != {READ_ANEW, KEPT}:
        return []
    old, new = trials[READ_ANEW], trials[KEPT]
    return [
        Finding("keeping K and V: throughput", more(new.throughput, old.throughput), PERCENT),
        Finding("keeping K and V: mean response time less by", less(new.mean, old.mean), PERCENT),
        Finding("keeping K and V: 95 % response time less by", less(new.tail, old.tail), PERCENT),
    ]


def worker_rows(lines: Sequence[Line]) -> list[AnyRow]:
    """Throughput a worker next to that of one worker alone."""
    if not lines:
        return []
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
