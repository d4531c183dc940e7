"""A comparison's report.json, report.html and terminal summary, with warnings."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from loadgen.compare.machine import HIDDEN, hide, publish
from loadgen.compare.record import CONFIDENCE, CompareSetting, Comparison, LoadPoint, Play, Verdict, judge_all
from loadgen.console import BRIEF, TABLES, Figures, Table, set_upright, show_table, tabulate
from loadgen.options import CompareFlags
from loadgen.plot import TEMPLATES, Plot, render_page
from loadgen.result_file import Json
from loadgen.simulate.report import draw_frontier, draw_lines


def collect_flags(asked: CompareFlags) -> Json:
    """Keys stay out."""
    shown = {one.name for one in fields(asked) if one.repr}
    given = sorted(vars(asked).items())
    return {name: HIDDEN if value and name not in shown else publish(value) for name, value in given}


def make_document(comparison: Comparison, setting: CompareSetting) -> Json:
    flags = comparison.flags
    return {
        **asdict(setting),
        "seed": flags.seed,
        "rounds": flags.rounds,
        "rounds_finished": {name: comparison.rounds_finished(name) for name in comparison.names},
        "num_warmups": flags.num_warmups,
        "interrupted": comparison.interrupted,
        "baseline": comparison.names[0],
        "contestants": [publish(asdict(one)) for one in comparison.contestants],
        "troubles": [asdict(one) for one in comparison.troubles],
        "verdicts": [_verdict_json(one) for one in judge_all(comparison)],
        "plays": [_play_json(play) for play in comparison.plays],
    }


def _verdict_json(one: Verdict) -> Json:
    named = {"contestant": one.contestant, "baseline": one.baseline, **_load_json(one.point)}
    return {**named, "quantity": one.quantity.key, "outcome": one.outcome, "text": one.text}


def _play_json(play: Play) -> Json:
    named = {"contestant": play.contestant, "round": play.round, **_load_json(play.point)}
    return {**named, **play.figures, "errors": play.errors, "jcts_s": play.latencies}


def _load_json(point: LoadPoint) -> Json:
    return {"request_rate": publish(point.rate), "burstiness": publish(point.burstiness)}


def find_warnings(comparison: Comparison) -> Iterator[str]:
    if comparison.interrupted:
        planned = comparison.flags.rounds * len(comparison.names) * len(comparison.points)
        played = len(comparison.plays)
        yield f"It was interrupted: {played} of {planned} runs were begun, and one that was cut short does not count."
    for trouble in comparison.troubles:
        yield f"{trouble.contestant} was left out from round {trouble.round} on: {trouble.message}"
    for name in comparison.names:
        own = [play for play in comparison.plays if play.contestant == name and play.whole]
        failed, rejected = (sum(play.figure(key) or 0.0 for play in own) for key in ("failed", "rejected"))
        if failed or rejected:
            first = next((line for play in own for line in play.errors), "")
            yield f"{name}: {failed:g} requests failed and {rejected:g} were rejected, such as: {first}"
    for point in comparison.points:
        yield from _warn_of_uneven_work(comparison, point)
    if slow := [play for play in comparison.plays if play.figures.get("client_warning")]:
        runs, told = f"In {len(slow)} of {len(comparison.plays)} runs", slow[0].figures["client_warning"]
        yield f"{runs} the load generator was short of CPU itself, such as: {told}"
    fewest = min((play.figure("completed") or 0.0 for play in comparison.plays if play.whole), default=100.0)
    if fewest < 100:
        yield f"Runs have as few as {fewest:g} completed requests, so the 99th percentile is the slowest of them."


def _warn_of_uneven_work(comparison: Comparison, point: LoadPoint) -> Iterator[str]:
    made = {
        name: max(tokens.values())
        for name in comparison.names
        if (tokens := comparison.by_round(name, point, "total_output_tokens"))
        and not comparison.count_lost(name, point)
    }
    if made and max(made.values()) > min(made.values()) * 1.01:
        told = ", ".join(f"{name} {tokens:,.0f}" for name, tokens in made.items())
        yield f"At {point.label} contestants did not generate equally many tokens ({told}), so they did unequal work."


MARKS = {"better": "▲ ", "worse": "▼ "}


def make_page(comparison: Comparison, setting: CompareSetting) -> str:
    flags, (*first, last) = comparison.flags, comparison.names
    finished = ", ".join(f"{comparison.rounds_finished(name)} by {name}" for name in comparison.names)
    lines = [
        f"{setting.date}. Of {flags.rounds} rounds were finished: {finished}; seeds {flags.seed} to "
        f"{flags.seed + flags.rounds - 1}, one a round. {tell_warm_up(flags.num_warmups)}",
        *(f"Warning: {line}" for line in find_warnings(comparison)),
    ]
    verdicts = list(_tabulate_verdicts(comparison))
    return render_page(
        TEMPLATES / "compare.html.j2",
        confidence=CONFIDENCE,
        title=f"Lengthwise: {', '.join(first)} and {last} compared",
        lines=lines if verdicts else [*lines, "Nothing can be said: no two contestants have played a load to its end."],
        plots=_draw_loads(comparison),
        tables=[*verdicts, *_tabulate_figures(comparison), _tabulate_setting(comparison, setting)],
    )


def make_summary(comparison: Comparison) -> RenderableType:
    tables = (
        show_table(tabulate(f"{point.label}: mean of the rounds (lowest–highest)", [found], _list_brief(found)))
        for point, found in _find_results(comparison)
    )
    verdicts = (
        Text(f"{one.contestant} against {one.baseline}, {one.point.label}, {one.quantity.short}: {one.text}")
        for one in judge_all(comparison)
        if one.baseline == comparison.names[0] and one.quantity.key in BRIEF
    )
    return Group(*tables, Text(tell_warm_up(comparison.flags.num_warmups)), *verdicts)


def _list_brief(found: dict[str, list[Figures]]) -> Sequence[str]:
    return TABLES["runs"] if any("runs" in one for figures in found.values() for one in figures) else BRIEF


def tell_warm_up(requests: int) -> str:
    if not requests:
        return "No server was warmed up (--num-warmups 0): what is slow at first is part of the figures."
    sent = "1 request" if requests == 1 else f"{requests} requests"
    return f"Each server was warmed up with {sent} before each of its turns, which the figures leave out."


def _find_results(comparison: Comparison) -> Iterator[tuple[LoadPoint, dict[str, list[Figures]]]]:
    """Of the loads that somebody has played to the end."""
    for point in comparison.points:
        plays = {name: comparison.whole_plays(name, point) for name in comparison.names}
        if found := {name: [play.figures for play in whole] for name, whole in plays.items() if whole}:
            yield point, found


def _draw_loads(comparison: Comparison) -> list[Plot]:
    """Over rates of one burstiness; mean against p99 where loads stand alone."""
    plots: list[Plot] = []
    played = groupby(_find_results(comparison), key=lambda pair: (pair[0].burstiness, pair[0].rate in (None, math.inf)))
    for (bursts, _), group in played:
        (first, alone), *others = group
        if others:
            over = {point.rate or 0.0: results for point, results in ((first, alone), *others)}
            plots += draw_lines("requests/s", over, "" if bursts == 1 else f" at burstiness {bursts:g}")
        else:
            plots.append(draw_frontier(f"Mean against p99 at {first.label}", alone))
    return plots


def _tabulate_verdicts(comparison: Comparison) -> Iterator[Table]:
    judged = judge_all(comparison)
    for baseline, point in dict.fromkeys((one.baseline, one.point) for one in judged):
        own = [one for one in judged if (one.baseline, one.point) == (baseline, point)]
        names = tuple(dict.fromkeys(one.contestant for one in own))
        cells = {(one.quantity, one.contestant): MARKS.get(one.outcome, "") + one.text for one in own}
        rows = tuple(
            (quantity.title, *(cells.get((quantity, name), "-") for name in names))
            for quantity in dict.fromkeys(one.quantity for one in own)
        )
        yield Table(f"At {point.label}, against {baseline}", ("", *names), rows, "verdicts")


def _tabulate_figures(comparison: Comparison) -> Iterator[Table]:
    for point, found in _find_results(comparison):
        told = {key for figures in found.values() for one in figures for key in one if one[key] is not None}
        keys = [key for key in TABLES["compared"] if key in told]
        yield set_upright(tabulate(f"At {point.label}", [found], keys), keys)


def _tabulate_setting(comparison: Comparison, setting: CompareSetting) -> Table:
    servers = {one.name: hide(one.command or f"{one.url}, which ran before") for one in comparison.contestants}
    return Table("Where and how", (), tuple((servers | {**setting.machine, **setting.versions}).items()), "setting")
