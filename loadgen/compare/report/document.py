"""report.json, with every figure of every round and the verdicts; the summary on a terminal; and the sentences that a
reader must know before believing the figures.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import join

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadgen.columns import COLUMNS
from loadgen.compare.machine import HIDDEN, hide, hide_all
from loadgen.compare.record import Comparison, Contestant, Play, Point, Setting
from loadgen.compare.verdict import CONFIDENCE, Spread, Verdict, find_spread, judge_all, list_rows
from loadgen.console import format_number

SECRET_FLAGS = frozenset({"api_key", "header"})
NOT_FLAGS = frozenset({"run"})


def collect_flags(args: argparse.Namespace) -> dict[str, object]:
    """Every flag with its value, whether given or not; keys stay out."""
    return {
        name: HIDDEN if name in SECRET_FLAGS and value else _plain(hide_all(value))
        for name, value in sorted(vars(args).items())
        if name not in NOT_FLAGS
    }


def make_document(comparison: Comparison, setting: Setting) -> dict[str, object]:
    """The content of report.json."""
    plan = comparison.plan
    return {
        **asdict(setting),
        "seed": plan.flags.seed,
        "rounds": plan.flags.rounds,
        "rounds_finished": {one.name: comparison.rounds_finished(one) for one in plan.contestants},
        "num_warmups": plan.flags.num_warmups,
        "interrupted": comparison.interrupted,
        "baseline": plan.baseline,
        "contestants": [_contestant_json(comparison, one) for one in plan.contestants],
        "troubles": [asdict(one) for one in comparison.troubles],
        "summary": _summary_json(comparison),
        "verdicts": [_verdict_json(one) for one in judge_all(comparison)],
        "plays": [_play_json(play) for play in comparison.plays],
    }


def _contestant_json(comparison: Comparison, one: Contestant) -> dict[str, object]:
    command = hide(join(comparison.plan.command(one))) if one.strategy else None
    url = None if one.url is None else hide(one.url)
    return {"name": one.name, "strategy": one.strategy, "url": url, "command": command}


def _summary_json(comparison: Comparison) -> list[dict[str, object]]:
    plan = comparison.plan
    rows = sorted(
        list_rows(comparison), key=lambda one: (plan.contestants.index(one.contestant), plan.points.index(one.point))
    )
    return [
        {
            "contestant": row.contestant.name,
            **_load_json(row.point),
            "quantity": row.quantity.key,
            "unit": row.quantity.unit,
            "median": row.spread.median,
            "lowest": row.spread.low,
            "highest": row.spread.high,
            "rounds": row.spread.values,
        }
        for row in rows
    ]


def _verdict_json(one: Verdict) -> dict[str, object]:
    named = {"contestant": one.contestant, "baseline": one.baseline, **_load_json(one.point)}
    return {**named, "quantity": one.quantity.key, "outcome": one.outcome, "text": one.text}


def _play_json(play: Play) -> dict[str, object]:
    return {
        "contestant": play.contestant,
        "round": play.round,
        **_load_json(play.point),
        **play.figures,
        "errors": play.errors,
        "jcts_s": play.latencies,
        "predicted_and_actual_tokens": play.predictions,
    }


def _load_json(point: Point) -> dict[str, object]:
    return {"request_rate": _plain(point.rate), "burstiness": _plain(point.burstiness)}


def _plain(value: object) -> object:
    """A value as JSON can hold it, which knows neither infinity nor paths."""
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value


MUCH_STOLEN = 0.02
"""The share of the processors' time from which on a warning says that the host took it."""


def find_warnings(comparison: Comparison) -> Iterator[str]:
    """The faults of this comparison, the gravest first."""
    if comparison.interrupted:
        played, planned = len(comparison.plays), _count_planned(comparison)
        yield f"It was interrupted: {played} of {planned} runs were begun, and one that was cut short does not count."
    for trouble in comparison.troubles:
        yield f"{trouble.contestant} was left out from round {trouble.round} on: {trouble.message}"
    for contestant in comparison.plan.contestants:
        yield from _warn_of_lost_requests(comparison, contestant)
    for point in comparison.plan.points:
        yield from _warn_of_uneven_work(comparison, point)
    yield from _warn_of_busy_client(comparison)
    yield from _warn_of_busy_host(comparison)
    if (count := _count_fewest_requests(comparison)) is not None and count < 100:
        yield f"Runs have as few as {count:g} completed requests, so the 99th percentile is the slowest of them."


def describe_judging(comparison: Comparison, judged: Sequence[Verdict]) -> dict[str, object]:
    """The values of the template's sentences on how to read the report."""
    decided = sum(one.outcome != "no verdict" for one in judged)
    return {
        "confidence": f"{CONFIDENCE:.0%}",
        "one_in": f"{1 / (1 - CONFIDENCE):.0f}",
        "decided": decided,
        "by_chance": _round(decided * (1 - CONFIDENCE)),
        "warm_up": warm_up(comparison.plan.flags.num_warmups),
        "elsewhere": any(contestant.url for contestant in comparison.plan.contestants),
        "silent": [one.name for one in comparison.plan.contestants if _is_silent(comparison, one)],
    }


def warm_up(requests: int) -> str:
    """How servers were warmed up, given the requests for that in each turn."""
    if not requests:
        return "No server was warmed up (--num-warmups 0): what is slow at first is part of the figures."
    sent = "1 request" if requests == 1 else f"{requests} requests"
    return f"Each server was warmed up with {sent} before each of its turns, which the figures leave out."


def _count_planned(comparison: Comparison) -> int:
    plan = comparison.plan
    return plan.flags.rounds * len(plan.contestants) * len(plan.points)


def _warn_of_lost_requests(comparison: Comparison, contestant: Contestant) -> Iterator[str]:
    own = [play for play in comparison.plays if play.contestant == contestant.name and play.whole]
    failed, rejected = (sum(play.figure(key) or 0.0 for play in own) for key in ("failed", "rejected"))
    if failed or rejected:
        first = next((line for play in own for line in play.errors), "")
        yield f"{contestant.name}: {failed:g} requests failed and {rejected:g} were rejected, such as: {first}"


def _warn_of_uneven_work(comparison: Comparison, point: Point) -> Iterator[str]:
    """A warning where answers differ in length, since their latencies then say little about schedulers."""
    made = {
        contestant.name: max(tokens)
        for contestant in comparison.plan.contestants
        if (tokens := comparison.values(contestant, point, "total_output_tokens"))
        and not any(comparison.values(contestant, point, key) != (0.0,) * len(tokens) for key in ("failed", "rejected"))
    }
    if made and max(made.values()) > min(made.values()) * 1.01:
        told = ", ".join(f"{name} {tokens:,.0f}" for name, tokens in made.items())
        yield f"At {point.label} contestants did not generate equally many tokens ({told}), so they did unequal work."


def _warn_of_busy_client(comparison: Comparison) -> Iterator[str]:
    slow = [play for play in comparison.plays if play.figures.get("client_warning")]
    if slow:
        yield (
            f"In {len(slow)} of {len(comparison.plays)} runs the load generator was short of CPU itself, such as: "
            f"{slow[0].figures['client_warning']}"
        )


def _warn_of_busy_host(comparison: Comparison) -> Iterator[str]:
    shares = {
        contestant.name: [
            share for point in comparison.plan.points for share in comparison.values(contestant, point, "stolen_share")
        ]
        for contestant in comparison.plan.contestants
    }
    if max((share for own in shares.values() for share in own), default=0.0) >= MUCH_STOLEN:
        told = ", ".join(
            f"{name} {min(own) * 100:.0f} to {max(own) * 100:.0f} %" for name, own in shares.items() if own
        )
        yield (
            f"This is a virtual machine, and its host took CPU time from it while contestants ran ({told}): "
            "differences of that size may come from the host."
        )


def _count_fewest_requests(comparison: Comparison) -> float | None:
    counts = [play.figure("completed") or 0.0 for play in comparison.plays if play.whole]
    return min(counts, default=None)


def _is_silent(comparison: Comparison, contestant: Contestant) -> bool:
    own = [play for play in comparison.plays if play.contestant == contestant.name]
    return bool(own) and not any(key.startswith("server_") for play in own for key in play.figures)


def _round(value: float) -> str:
    return f"{value:.1f}" if value < 10 and not math.isclose(value, round(value)) else f"{value:.0f}"


SHOWN = ("request_throughput", "mean_jct_ms", "p99_jct_ms", "mean_ttft_ms", "mean_normalized_latency_s")


def make_summary(comparison: Comparison) -> RenderableType:
    """The figures that matter most; the report has the others."""
    tables = (_table(comparison, point) for point in comparison.plan.points)
    return Group(*tables, Text(warm_up(comparison.plan.flags.num_warmups)), *_verdicts(comparison))


def _table(comparison: Comparison, point: Point) -> Table:
    quantities = [COLUMNS[key] for key in SHOWN]
    table = Table("", *(one.axis for one in quantities), title=f"{point.label}: median (lowest to highest)")
    for contestant in comparison.plan.contestants:
        cells = (_show_spread(find_spread(comparison, contestant, point, one)) for one in quantities)
        table.add_row(Text(contestant.name), *cells)
    return table


def _show_spread(one: Spread | None) -> str:
    if one is None:
        return "-"
    return f"{format_number(one.median)} ({format_number(one.low)} to {format_number(one.high)})"


def _verdicts(comparison: Comparison) -> Iterator[Text]:
    for one in judge_all(comparison):
        if one.baseline == comparison.plan.baseline and one.quantity.key in SHOWN:
            yield Text(f"{one.contestant} against {one.baseline}, {one.point.label}, {one.quantity.short}: {one.text}")
