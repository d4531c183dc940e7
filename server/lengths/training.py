"""One run of `lengthwise train`: rows -> features -> the ablations of Magnus's Table II -> a forest on disk."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from models.catalog.catalog import default_cache
from models.errors import UserError
from models.progress import Bars
from scheduler.length import evaluation as ablations
from scheduler.length.evaluation import Contest, Contestant, judge, predict
from scheduler.length.features import Ablation, LengthQuery, TokenFeatures
from scheduler.length.forest import Examples, Forest, ForestError, Growth, Manifest, load, save
from scheduler.length.online import CalibratedForest, fit
from scheduler.length.prediction import LengthDistribution
from server.composition.cache_paths import forest_path
from server.lengths.training_data import FEWEST, TrainingData, read_data
from server.lengths.worker import embed

TIMED = 50
"""Requests whose prediction is timed, one at a time."""

MEAN, OWN, PROXY = "mean", "own-embeddings", "proxy"


@dataclass(frozen=True, slots=True)
class Measured:
    """Quality of a predictor on rows held out."""

    errors: ablations.Accuracy
    coverage: float | None
    """Share of lengths within the predicted 90 % interval; None for a predictor without one."""
    milliseconds: float | None
    """Median time of a request by itself, its text already in tokens; None where it was not taken."""


def train(args: argparse.Namespace, cores: int) -> str:
    """Do what the arguments say; returns the report. Raises CatalogError, JournalError, UserError."""
    growth = Growth(trees=args.trees, seed=args.seed, jobs=cores)
    with Bars(threaded=True, lines=False) as bars:
        data, max_tokens = read_data(args, bars)
        if len(data.examples) < FEWEST:
            raise UserError(f"only {len(data.examples)} rows to train from, {FEWEST} is the least: serve more")
        path = args.output or forest_path(default_cache(), args.tokenizer)
        results, contest = _measure(data, args, growth, bars, _present(path, args.embedder, max_tokens))
        if contest.winner is Contestant.NEW:
            _keep(path, data.examples, Manifest(args.embedder, max_tokens, growth))
    content = _content(results, contest, data, path)
    if args.json:
        return write_json(content)
    tables = {"Rows held out, errors in tokens": content["held_out"], "Magnus, Table II, RMSE": content["paper"]}
    return write_tables(tables, *_notes(contest, data, path))


def _present(path: Path, embedder: str, max_tokens: int) -> Forest | None:
    """The forest that is in use, to be judged beside a new one; None where none is, or the new one's features are not
    those that it knows."""
    try:
        forest, about = load(path)
    except ForestError:
        return None
    return forest if (about.embedder, about.max_tokens) == (embedder, max_tokens) else None


def _keep(path: Path, examples: Examples, about: Manifest) -> None:
    try:
        save(path, examples, about)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; name another with --output") from error


def _measure(
    data: TrainingData, args: argparse.Namespace, growth: Growth, bars: Bars, old: Forest | None
) -> tuple[dict[str, Measured], Contest]:
    """Hold rows out, and tell how well each predictor does on them, and which forest should be kept."""
    parts = ablations.split(data.examples, data.tasks, args.holdout, args.seed, by_task=args.held_out == "tasks")
    if len(parts.test) < 2 or len(parts.train) == 0:
        raise UserError("too few rows of each instruction to hold some out: use more rows, or another --holdout")
    predicted: dict[str, Sequence[LengthDistribution]] = {MEAN: [ablations.guess(parts.train)] * len(parts.test)}
    for ablation in Ablation:
        bar = bars.begin(f"measuring {ablation}", ablations.grown_trees(ablation, parts, growth))
        predicted[ablation] = predict(ablation, parts, growth, bar.advance)
    contest = judge(parts.test, ablations.means(predicted[Ablation.USIN]), old)
    times: dict[str, float] = {}
    held = [query for query, out in zip(data.queries, parts.held.tolist(), strict=False) if out]
    if data.embedder is not None:
        unread = [replace(query, user_input=f"{query.user_input} ") for query in held]  # it remembers what it has read
        times[Ablation.USIN] = _time(partial(embed, data.embedder), unread)
    if data.own is not None:
        forest = _fit_own(data.own, data, parts, args.seed)
        own = partial(_predict_own, data.own, forest)
        predicted[OWN], times[OWN] = own(held), _time(own, held)
    if data.proxy is not None:
        proxy = data.proxy
        texts = [query.conversation for query in held]
        predicted[PROXY] = [LengthDistribution.certain(one) for one in proxy.predict(texts).tolist()]
        times[PROXY] = _time(lambda queries: proxy.predict([query.conversation for query in queries]), held)
    return {
        str(name): _judged(str(name), one, parts.test.lengths, times.get(name)) for name, one in predicted.items()
    }, contest


def _fit_own(features: TokenFeatures, data: TrainingData, parts: ablations.Split, seed: int) -> CalibratedForest:
    """The forest on the served model's own embeddings, as the server grows it from answers in a random order."""
    known = np.random.default_rng(seed).permutation(np.flatnonzero(~parts.held))
    rows = np.array([features.read(data.queries[place].tokens) for place in known.tolist()], dtype=np.float32)
    return fit(Examples(rows, data.examples.lengths[known]), [False] * len(known))


def _predict_own(
    features: TokenFeatures, forest: CalibratedForest, queries: Sequence[LengthQuery]
) -> list[LengthDistribution]:
    return forest.distributions(np.array([features.read(query.tokens) for query in queries], dtype=np.float32))


def _time(predict: Callable[[Sequence[LengthQuery]], object], queries: Sequence[LengthQuery]) -> float:
    """Milliseconds of a request by itself, in the median."""
    times = []
    for query in queries[:TIMED]:
        begun = time.perf_counter()
        predict([query])
        times.append(time.perf_counter() - begun)
    return 1000 * median(times)


def _judged(
    name: str, predicted: Sequence[LengthDistribution], lengths: NDArray[np.float32], milliseconds: float | None
) -> Measured:
    found = ablations.accuracy(ablations.means(predicted), lengths)
    coverage = None if name in (Ablation.UILO, PROXY) else ablations.covered(predicted, lengths)
    return Measured(found, coverage, milliseconds)


def _content(results: Mapping[str, Measured], contest: Contest, data: TrainingData, path: Path) -> dict[str, Any]:
    """The result as JSON has it."""
    return {
        "rows": len(data.examples),
        "instructions": len(set(data.tasks)),
        "forest": str(path),
        "best": str(contest.winner),
        "installed": contest.winner is Contestant.NEW,
        "mae": {str(one): error for one, error in contest.errors.items()},
        "held_out": {
            name: asdict(one.errors) | {"coverage": one.coverage, "milliseconds": one.milliseconds}
            for name, one in results.items()
        },
        "paper": {
            model: dict(zip(map(str, Ablation), errors, strict=True)) for model, errors in ablations.PAPER.items()
        },
    }


def write_json(content: Mapping[str, Any]) -> str:
    """A result as JSON."""
    return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def write_tables(tables: Mapping[str, Mapping[str, Mapping[str, object]]], *notes: str) -> str:
    """Figures by name and title as tables, then notes, a line each."""
    console = Console(width=100)
    with console.capture() as captured:
        for title, rows in tables.items():
            table = Table("", *next(iter(rows.values())), title=title)
            for name, figures in rows.items():
                table.add_row(str(name), *(_cell(figure) for figure in figures.values()))
            console.print(table)
    return "\n".join((captured.get().rstrip("\n"), *notes, ""))


def _cell(figure: object) -> str:
    return "-" if figure is None else f"{figure:.3g}" if isinstance(figure, float) else str(figure)


def _notes(contest: Contest, data: TrainingData, path: Path) -> tuple[str, str, str]:
    """What was held out, which predictor is kept, and the figures that it is chosen by."""
    errors = ", ".join(f"{one} {error:.1f}" for one, error in contest.errors.items())
    kept = {
        Contestant.NEW: f"the new forest is in {path}",
        Contestant.OLD: f"the old forest is better and stays in {path}",
        Contestant.PLAIN: f"no forest beats the user input length, so none is installed; {path} is left as it is",
    }
    rows = f"{len(data.examples)} rows, {len(set(data.tasks))} instructions"
    return rows, f"mean absolute error on {contest.rows} rows held out: {errors}", kept[contest.winner]
