"""The report on which strategies would have served a journal's requests better, for a terminal and as HTML."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from loadgen.console import format_number
from loadgen.html.page import SUMMARY, render_page
from loadgen.html.plot import Plot, Point, Series, specify_points
from loadgen.html.table import Table
from loadgen.html.terminal import show_table
from loadgen.result_file import Json
from loadgen.simulate.latencies import Latencies, latencies_json
from loadgen.whatif.trials import Trial, WhatIf

HEADS = ("", "mean JCT s", "", "p99 s", "", "longest s", "mean TTFT s", "mean TPOT ms", "req/s")
WORST_P99 = 1.05
"""The ratio to the own strategy's p99 up to which another strategy may be called better."""


def find_better(found: WhatIf) -> Trial | None:
    """The trial with the least mean JCT whose p99 is not above the own one's by more than 5 %; None where its gain is
    no larger than the simulator's error on these requests. Other executors are no choice: they cost another device."""
    own = found.own.latencies.jct
    able = [
        one
        for one in found.others
        if "executor" not in one.sizes and one.latencies.jct.percentiles[99.0] <= WORST_P99 * own.percentiles[99.0]
    ]
    best = min(able, key=lambda one: one.latencies.jct.mean, default=None)
    return best if best is not None and 1 - best.latencies.jct.mean / own.mean > abs(found.errors[0]) else None


def write_sentences(found: WhatIf) -> Iterator[str]:
    """The verdict, and what it rests on."""
    replay, (mean_error, p99_error), (mean, p99) = found.replay, found.errors, found.held_out
    own, better = found.own.latencies.jct, find_better(found)
    if better is None:
        yield f"Nothing tried here would have served these requests better than {replay.strategy} by a sure margin."
    else:
        jct, sizes = better.latencies.jct, f" with {better.sizes}" if better.sizes else ""
        yield (
            f"{better.strategy}{sizes} would have served them better: mean JCT {_share(jct.mean, own.mean)}, "
            f"p99 {_share(jct.percentiles[99.0], own.percentiles[99.0])}."
        )
    yield (
        f"How far to trust this: of {replay.strategy}, which served them, the simulator says a mean JCT "
        f"{mean_error:+.1%} and a p99 {p99_error:+.1%} from what was recorded. Prices are those learned on this node; "
        f"it was {found.slowdown:.2f} times as slow on the average, and at each moment as slow as these requests tell. "
        "What others do to its speed is the same for all strategies here. Held out: had it kept the mean speed of the "
        f"first half, the second half of the requests would have had a mean JCT {mean:+.1%} and a p99 {p99:+.1%} from "
        "what was recorded."
    )
    yield (
        f"{len(replay.trace)} requests to {replay.model}; {replay.left_out} without a token are left out. Predicted "
        + ("lengths as recorded. " if replay.predicted else "lengths are made up with errors, the journal has none. ")
        + "Prompts that were kept from earlier ones count as read, since the journal has no texts."
    )


def tabulate(found: WhatIf) -> tuple[Table, Table]:
    """Strategies on this machine, the least mean first, below what was recorded; and other machines."""
    own = found.own.latencies
    by_mean = sorted(found.trials, key=lambda one: one.latencies.jct.mean)
    recorded = _row(f"{found.replay.strategy}, as recorded", found.recorded, own)
    here = [_row(one.strategy, one.latencies, own) for one in by_mean if not one.sizes]
    elsewhere = [_row(f"{one.strategy}, {one.sizes}", one.latencies, own) for one in by_mean if one.sizes]
    return (
        Table(f"Strategies, beside {found.replay.strategy} as simulated", HEADS, (recorded, *here)),
        Table("Other sizes", HEADS, tuple(elsewhere)),
    )


def _row(name: str, one: Latencies, own: Latencies) -> tuple[str, ...]:
    mean, p99 = one.jct.mean, one.jct.percentiles[99.0]
    return (
        name,
        format_number(mean),
        _share(mean, own.jct.mean),
        format_number(p99),
        _share(p99, own.jct.percentiles[99.0]),
        format_number(one.jct.percentiles[100.0]),
        format_number(one.ttft.mean),
        format_number(1000 * one.tpot.mean),
        format_number(one.throughput),
    )


def _share(value: float, base: float) -> str:
    return f"{value / base - 1:+.0%}"


def show(found: WhatIf) -> RenderableType:
    """The page for a terminal."""
    return Group(*(Text(f"{line}\n") for line in write_sentences(found)), *map(show_table, tabulate(found)))


def make_page(found: WhatIf) -> str:
    """The text of the HTML page."""
    tables = tabulate(found)
    points = [(one.strategy, one.latencies.jct) for one in found.trials if not one.sizes]
    series = [Series(name, [Point(jct.percentiles[99.0], jct.mean)], look) for look, (name, jct) in enumerate(points)]
    spec = specify_points(series, "p99 JCT, s", "mean JCT, s")
    plot = Plot("Mean against p99", "Each strategy's mean and p99 of job completion times, as simulated.", spec)
    return render_page(
        SUMMARY,
        title="What if another strategy had served?",
        lines=list(write_sentences(found)),
        tables=tables,
        plots=[plot],
    )


def whatif_json(found: WhatIf) -> Json:
    """The figures of all replays."""
    return {
        "model": found.replay.model,
        "requests": len(found.replay.trace),
        "slowdown": found.slowdown,
        "recorded": latencies_json(found.recorded),
        "held_out": {"mean_jct": found.held_out[0], "p99_jct": found.held_out[1]},
        "trials": [
            {"strategy": one.strategy, "sizes": one.sizes, **latencies_json(one.latencies)} for one in found.trials
        ],
    }
