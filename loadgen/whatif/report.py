"""The report on which strategies would have served a journal's requests better, for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from loadgen.columns import tabulate as tabulate_figures
from loadgen.console import Table, show_table
from loadgen.result_file import Json
from loadgen.whatif.trials import Trial, WhatIf

KEYS = (
    *("mean_jct_ms", "p99_jct_ms", "p100_jct_ms", "mean_ttft_ms"),
    *("mean_normalized_latency_s", "mean_slowdown", "request_throughput"),
)
WORST_P99 = 1.05  # the ratio to the own strategy's p99 up to which another strategy may be called better


def find_better(found: WhatIf) -> Trial | None:
    """The trial with the least mean JCT whose p99 is not above the own one's by more than 5 %; None where its gain is
    no larger than the simulator's error on these requests. Other executors are no choice: they cost another device."""
    own = found.own.figures
    able = [
        one
        for one in found.others
        if "executor" not in one.sizes and one.figures["p99_jct_ms"] <= WORST_P99 * own["p99_jct_ms"]
    ]
    best = min(able, key=lambda one: one.figures["mean_jct_ms"], default=None)
    gain = 0.0 if best is None else 1 - best.figures["mean_jct_ms"] / own["mean_jct_ms"]
    return best if gain > abs(found.errors[0]) else None


def write_sentences(found: WhatIf) -> Iterator[str]:
    """The verdict, and what it rests on."""
    replay, (mean_error, p99_error) = found.replay, found.errors
    if not found.trusted:
        yield (
            f"No strategy can be judged by these {len(replay.trace)} requests: of {replay.strategy}, which served "
            f"them, the simulator says a mean JCT {mean_error:+.0%} and a p99 {p99_error:+.0%} from what was recorded. "
            "Other programs may have taken the machine's cores for a time, or settings differ from the server's."
        )
        return
    yield _write_verdict(found)
    yield (
        f"How far to trust this: of {replay.strategy}, which served them, the simulator says a mean JCT "
        f"{mean_error:+.1%} and a p99 {p99_error:+.1%} from what was recorded. Prices are those learned on this node, "
        f"times {found.slowdown:.2f}, its mean speed while it served."
    )
    yield (
        f"{len(replay.trace)} requests to {replay.model}; {replay.left_out} without a token are left out. Predicted "
        + ("lengths as recorded. " if replay.predicted else "lengths are made up with errors, the journal has none. ")
        + "Prompts that were kept from earlier ones count as read, since the journal has no texts."
    )
    if found.interrupted:
        yield "Interrupted: strategies that are not in the table were not tried."


def _write_verdict(found: WhatIf) -> str:
    own, better = found.own.figures, find_better(found)
    if better is None:
        return (
            f"Nothing tried here would have served these requests better than {found.replay.strategy} by a sure margin."
        )
    sizes = f" with {better.sizes}" if better.sizes else ""
    mean, p99 = (better.figures[key] / own[key] - 1 for key in ("mean_jct_ms", "p99_jct_ms"))
    return f"{better.strategy}{sizes} would have served them better: mean JCT {mean:+.0%}, p99 {p99:+.0%}."


def tabulate(found: WhatIf) -> list[Table]:
    """Strategies on this machine, the one that served first and then the least mean; and other machines."""
    by_mean = [found.own, *sorted(found.others, key=lambda one: one.figures["mean_jct_ms"])]
    own = {found.own.strategy: [found.own.figures]}
    here = {one.strategy: [one.figures] for one in by_mean if not one.sizes}
    elsewhere = {f"{one.strategy}, {one.sizes}": [one.figures] for one in by_mean if one.sizes}
    if not found.trusted:
        return []
    tables = [tabulate_figures("Strategies, beside the one that served", own | here, KEYS)]
    return [*tables, tabulate_figures("Other sizes", own | elsewhere, KEYS)] if elsewhere else tables


def show(found: WhatIf) -> RenderableType:
    """The page for a terminal."""
    return Group(*(Text(f"{line}\n") for line in write_sentences(found)), *map(show_table, tabulate(found)))


def whatif_json(found: WhatIf) -> Json:
    """The figures of all replays."""
    return {
        "model": found.replay.model,
        "requests": len(found.replay.trace),
        "slowdown": found.slowdown,
        "interrupted": found.interrupted,
        "recorded": found.recorded,
        "errors": {"mean_jct": found.errors[0], "p99_jct": found.errors[1]},
        "trials": [{"strategy": one.strategy, "sizes": one.sizes, **one.figures} for one in found.trials],
    }
