"""Runs a paper's experiments; prints and saves each beside published figures, with verdicts. Loads no model."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import fmean

import orjson
from rich.console import Group, RenderableType
from rich.table import Table as TextTable
from rich.text import Text

from loadgen.console import Table, show_table, table_console, tell_duration
from loadgen.experiments.options import Experiments
from loadgen.experiments.paper import baton, magnus, scls, ssjf
from loadgen.experiments.paper.experiment import Experiment, Paper
from loadgen.experiments.paper.load import outputs, trace_pool
from loadgen.experiments.paper.row import FIGURES, PUBLISHED, ReportRow
from loadgen.experiments.paper.trial import MINUTES_10, TrialStage
from loadgen.plot import SUMMARY, Plot, render_page, require_report, specify_lines
from loadgen.result_file import require_writable, save
from loadgen.simulate.prediction import SimulatedPrediction
from models.errors import INTERRUPTED
from models.progress import Bars

SEED_STEP = 100  # between runs; repeats use seeds in between

PAPERS: Mapping[str, Paper] = {"magnus": magnus.PAPER, "scls": scls.PAPER, "ssjf": ssjf.PAPER, "baton": baton.PAPER}


def run_paper(asked: Experiments) -> int:
    """Returns the exit code, 130 after Ctrl-C. Raises UserError."""
    asked.refuse()
    paper = PAPERS[asked.paper]
    chosen = asked.choose(list(paper.experiments))
    require_writable(asked.save_result)
    require_report(asked.report)
    stages = [_set_up(replace(asked, seed=asked.seed + SEED_STEP * run), paper) for run in range(asked.seeds)]
    console = table_console()
    console.print(f"requests: {stages[0].pool.source}", highlight=False)
    console.print(tell_duration(asked.seeds * _estimate(asked, chosen)), highlight=False)
    runs: list[dict[str, Experiment]] = [{} for _ in stages]
    interrupted = True
    try:
        with suppress(KeyboardInterrupt):  # also between runs, and in those of baselines
            for done, stage in zip(runs, stages, strict=True):
                for name in chosen:
                    with Bars(latest_only=True) as bars:
                        stage.begin = bars.watch
                        done[name] = paper.experiments[name](stage).carry_out(stage.play)
                    if stage is stages[0]:
                        console.print(report(done[name]))
                    if done[name].interrupted:
                        raise KeyboardInterrupt
            interrupted = False
    finally:  # keep earlier results if a run fails
        if asked.save_result is not None and runs[0]:
            save(asked.save_result, _write_result(asked, stages[0], runs[0], interrupted), "--save-result")
    if asked.report is not None and runs[0]:
        whole = [done for done in runs if done and not any(one.interrupted for one in done.values())]
        page = make_page(f"{asked.paper}: measured beside published", whole or runs[:1])
        save(asked.report, page.encode(), "--report")
    return INTERRUPTED if interrupted else 0


def _set_up(asked: Experiments, paper: Paper) -> TrialStage:
    scale = paper.input_scale if asked.input_scale is None else asked.input_scale
    if asked.tasks is not None:
        pool = magnus.read_pool(asked.tasks, asked.answers, asked.seed, scale)
    elif asked.trace is not None:
        pool = trace_pool(asked.trace, paper.longest, scale)
    else:
        pool = paper.pool(asked.seed, scale)
    prediction = paper.prediction(outputs(pool.lengths)) if pool.lengths else SimulatedPrediction()
    return TrialStage(pool, asked, paper.longest, prediction)


def _estimate(asked: Experiments, chosen: Sequence[str]) -> float:
    seconds = {(paper, name): took for paper, name, took in PUBLISHED["seconds"]}
    known = sum(seconds.get((asked.paper, name.removesuffix("-authors").removesuffix("-ds")), 1.0) for name in chosen)
    arrivals = 1.0 if asked.duration is None or asked.paper == "ssjf" else asked.duration / MINUTES_10
    return float(known * asked.scale * arrivals)


def _write_result(asked: Experiments, stage: TrialStage, done: Mapping[str, Experiment], interrupted: bool) -> bytes:
    document = {
        **{name: getattr(asked, name) for name in ("paper", "scale", "seed", "duration", "input_scale", "rates")},
        "requests": stage.pool.source,
        "prediction_sigma": stage.prediction.sigma,
        "experiments": {name: one.document for name, one in done.items()},
        "interrupted": interrupted,
    }
    text = orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)
    for key in (b'{"title":', b'{"strategy":', b'{"what":'):  # quotes within strings are escaped, so these are keys
        text = text.replace(key, b"\n" + key)
    return text


def report(one: Experiment) -> RenderableType:
    title = f"{one.title} (interrupted: as far as it came)" if one.interrupted else one.title
    warning = [Text(one.warning, style="yellow")] if one.warning else []
    head = (Text(title, style="bold"), Text(one.setting, style="dim"), *warning)
    measured = [show_table(_tabulate_runs(one))] if one.lines else []
    found = Counter(row.verdict for row in one.rows if row.verdict)
    told = ", ".join(f"{count} {verdict}" for verdict, count in found.most_common()) or "nothing to compare"
    return Group(*head, *measured, _tabulate_rows(one), Text(f"{told}; {len(one.rows)} rows"), Text())


def _tabulate_runs(one: Experiment) -> Table:
    names = ("requests", *one.figures)
    rows = (
        (line.strategy, line.point.label, *(f"{line.figures[name]:,.{FIGURES[name][1]}f}" for name in names))
        for line in one.lines
    )
    return Table("", ("strategy", "at", *(FIGURES[name][0] for name in names)), tuple(rows))


def _tabulate_rows(one: Experiment) -> TextTable:
    table = TextTable()
    for head in ("", "measured", "published", "where", "verdict"):
        table.add_column(head, overflow="fold")
    for row in one.rows:
        table.add_row(row.what, row.measured, row.published, row.where, row.verdict)
    return table


def make_page(title: str, seeds: Sequence[Mapping[str, Experiment]]) -> str:
    experiments = [[done[name] for done in seeds if name in done] for name in seeds[0]]
    plots = [plot for same in experiments for rows in _by_name(same).values() for plot in _draw(same, rows)]
    line = "Measured: the mean over the seeds, in a band from the lowest to the highest. Published: what the text says."
    tables = [_tabulate_seeds(same) for same in experiments]
    return render_page(SUMMARY, title=title, lines=[line], plots=plots, tables=tables)


def _by_name(same: Sequence[Experiment]) -> dict[str, list[ReportRow]]:
    names = dict.fromkeys(row.what for one in same for row in one.rows)
    return {name: [row for one in same for row in one.rows if row.what == name] for name in names}


def _draw(same: Sequence[Experiment], rows: Sequence[ReportRow]) -> Iterator[Plot]:
    labels = [[point.label for point in one.points] for one in same]  # a rate may depend on the seed
    found: list[tuple[float, list[float]]] = []
    for place, label in enumerate(labels[0]):
        pairs = zip((row.document.get("measured") for row in rows), labels, strict=False)
        values = [one[names[place]] for one, names in pairs if isinstance(one, dict) and names[place] in one]
        if values and (number := re.search(r"\d+(\.\d+)?", label)):
            found.append((float(number[0]), values))
    published = rows[0].document.get("published")
    if len(found) < 2 or not isinstance(published, list):
        return
    low, high = published
    said = "published", (low + high) / 2, low, high
    lines = [
        {"name": name, "x": x, "y": middle, "low": least, "high": most}
        for x, one in found
        for name, middle, least, most in (("measured", fmean(one), min(one), max(one)), said)
    ]
    axis = re.sub(r"[\d.]+", "", labels[0][0], count=1).strip()
    names = ("measured", "published")
    spec = specify_lines(lines, names, "requests/s" if axis == "/s" else axis, str(rows[0].document["unit"]))
    yield Plot(f"{same[0].title}: {rows[0].what}", f"Published in {rows[0].where}.", spec)


def _tabulate_seeds(same: Sequence[Experiment]) -> Table:
    heads = ("", *(f"measured, run {number}" for number in range(1, len(same) + 1)), "published", "where")
    rows = (
        (name, *(row.measured for row in rows), rows[0].published, rows[0].where)
        for name, rows in _by_name(same).items()
    )
    return Table(f"{same[0].title}. {same[0].setting}", heads, tuple(rows))
