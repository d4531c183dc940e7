"""`lengthwise train`: predictors, measured on held-out rows."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch

from models.catalog.catalog import Catalog, default_cache
from models.errors import UsageError, UserError
from models.progress import Bars
from models.proxy import network
from models.proxy.network import Proxy
from models.proxy.task import ProxyTask, Scale, quantile_edges
from models.proxy.training import TextRows, TrainingOptions, TrainingStep, train as tune
from scheduler.length import evaluation
from scheduler.length.evaluation import Contest, PredictorContestant, Split, quality
from scheduler.length.features import Ablation, TokenFeatures
from scheduler.length.forest import Forest, Growth, Manifest, save
from scheduler.length.online import Answers, fit
from scheduler.length.prediction import LengthDistribution
from scheduler.length.words import Prompts, bag
from server.cache_paths import forest_path, proxy_path
from server.lengths.process import load_forest
from server.lengths.training_data import TrainingData, read_data, read_files

WATCHED = 0.1  # share of training rows for early stopping

MEAN, OWN, PROXY = "mean", "own-embeddings", "proxy"

Figures = dict[str, Any]


def train(args: argparse.Namespace, cores: int) -> str:
    """Returns the report. Raises CatalogError, JournalError, UserError."""
    with Bars(threaded=True, lines=False) as bars:
        return (_train_proxy if args.predictor == "proxy" else _train_forest)(args, cores, bars)


def _train_forest(args: argparse.Namespace, cores: int, bars: Bars) -> str:
    data, max_tokens = read_data(args, bars)
    path = args.output or forest_path(default_cache(), args.tokenizer)
    about = Manifest(args.embedder, max_tokens, Growth(trees=args.trees, seed=args.seed, jobs=cores))
    held_out, contest = _measure(data, args, about.growth, bars, load_forest(path, about))
    if contest.winner is PredictorContestant.NEW:
        _write(path, lambda: save(path, data.examples, about))
    rows, instructions = len(data.examples), len(set(data.tasks))
    if args.json:
        return _json(
            rows=rows,
            instructions=instructions,
            forest=str(path),
            best=str(contest.winner),
            installed=contest.winner is PredictorContestant.NEW,
            mae={str(one): error for one, error in contest.errors.items()},
            held_out=held_out,
        )
    errors = ", ".join(f"{one} {error:.1f}" for one, error in contest.errors.items())
    kept = {
        PredictorContestant.NEW: f"the new forest is in {path}",
        PredictorContestant.OLD: f"the old forest is better and stays in {path}",
        PredictorContestant.PLAIN: f"no forest beats the user input length, so none is installed; {path} stays",
    }
    mean = f"mean absolute error on {contest.rows} rows held out: {errors}"
    return _lines(held_out, f"{rows} rows, {instructions} instructions", mean, kept[contest.winner])


def _write(path: Path, save: Callable[[], object]) -> None:
    try:
        save()
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; name another with --output") from error


def _measure(
    data: TrainingData, args: argparse.Namespace, growth: Growth, bars: Bars, old: Forest | None
) -> tuple[dict[str, Figures], Contest]:
    parts = evaluation.split(data.examples, data.tasks, args.holdout, args.seed, by_task=args.held_out == "tasks")
    if len(parts.test) < 2 or len(parts.train) == 0:
        raise UserError("too few rows of each instruction to hold some out: use more rows, or another --holdout")
    predicted = {MEAN: [evaluation.guess(parts.train)] * len(parts.test)}
    for ablation in Ablation:
        bar = bars.begin(f"measuring {ablation}", evaluation.grown_trees(ablation, parts, growth))
        predicted[ablation] = evaluation.predict(ablation, parts, growth, bar.advance)
    contest = evaluation.judge(parts.test, evaluation.means(predicted[Ablation.USIN]), old)
    if data.own is not None:
        predicted[OWN] = _predict_own(data.own, data, parts, args.seed)
    if data.proxy is not None:
        texts = [query.conversation for query, out in zip(data.queries, parts.held.tolist(), strict=True) if out]
        predicted[PROXY] = [LengthDistribution.certain(one) for one in data.proxy.predict(texts).tolist()]
    lengths, figures = parts.test.lengths, {}
    for name, found in predicted.items():
        coverage = None if name in (Ablation.UILO, PROXY) else evaluation.covered(found, lengths)
        figures[str(name)] = {**evaluation.accuracy(evaluation.means(found), lengths), "coverage": coverage}
    return figures, contest


def _predict_own(features: TokenFeatures, data: TrainingData, parts: Split, seed: int) -> list[LengthDistribution]:
    tokens = [query.tokens for query in data.queries]
    prompts = Prompts(np.array([*map(features.read, tokens)], dtype=np.float32), [*map(bag, tokens)])
    known = np.random.default_rng(seed).permutation(np.flatnonzero(~parts.held))
    forest = fit(Answers(prompts.where(known), data.examples.lengths[known], np.zeros(len(known), dtype=bool)))
    return forest.distributions(prompts.where(parts.held))


def _train_proxy(args: argparse.Namespace, cores: int, bars: Bars) -> str:
    if not args.files:
        raise UsageError("a proxy learns from texts, which the journal does not keep: name files to train from")
    torch.set_num_threads(cores)
    catalog = Catalog()
    queries, lengths = read_files(args, catalog)
    tested = max(1, round(args.holdout * len(queries)))
    watched = tested + max(1, round(WATCHED * (len(queries) - tested)))
    order = np.random.default_rng(args.seed).permutation(len(queries))
    parts = np.split(order, [tested, watched])
    test, watch, learn = (TextRows([queries[at].conversation for at in part.tolist()], lengths[part]) for part in parts)
    folder, kept = catalog.resolve(args.embedder), ProxyTask(args.task)

    def tuned(task: ProxyTask) -> tuple[Proxy, Figures]:
        proxy, losses = _tune(folder, task, learn, watch, args, bars)
        found = quality(proxy.predict(test.texts), test.lengths, quantile_edges(learn.lengths))
        classes = {"accuracy": None, "f1": None} if task is ProxyTask.BINARY else {}  # it distinguishes two
        return proxy, found | classes | {"losses": losses}

    outcomes = {task: tuned(task) for task in (kept, *(one for one in ProxyTask if one != kept and args.compare_tasks))}
    path = args.output or proxy_path(default_cache(), args.tokenizer)
    count = len(learn.texts)
    _write(path, lambda: network.save(path, outcomes[kept][0], encoder=args.embedder, rows=count))
    sizes = {"learn": count, "watch": len(watch.texts), "test": len(test.texts)}
    tasks = {str(task): figures for task, (_, figures) in outcomes.items()}
    if args.json:
        return _json(rows=sizes, proxy=str(path), kept=str(kept), tasks=tasks)
    shown = {task: {what: one for what, one in figures.items() if what != "losses"} for task, figures in tasks.items()}
    told = f"{sizes['learn']} rows to learn from, {sizes['watch']} watched, {sizes['test']} held out"
    return _lines(shown, f"{told}; the proxy is in {path}")


def _tune(
    folder: Path, task: ProxyTask, learn: TextRows, watched: TextRows, args: argparse.Namespace, bars: Bars
) -> tuple[Proxy, Figures]:
    try:
        scale = Scale.of(task, learn.lengths)
    except ValueError as error:
        raise UserError(f"--task {task}: {error}") from error
    proxy = Proxy.fresh(folder, task, scale, max_tokens=args.proxy_max_tokens or network.MAX_TOKENS, seed=args.seed)
    if torch.cuda.is_available():
        proxy.network.to("cuda")
    phases = {phase: bars.begin(f"{task}, phase {phase}") for phase in (1, 2)}

    def show(step: TrainingStep) -> None:
        phases[step.phase].show(step.done, total=step.total)

    return proxy, asdict(tune(proxy, learn, watched, TrainingOptions(epochs=args.epochs, seed=args.seed), show))


def _json(**content: object) -> str:
    return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def _lines(held_out: Mapping[str, Figures], *notes: str) -> str:
    lines = [f"{name}: {', '.join(map(_figure, figures.items()))}" for name, figures in held_out.items()]
    return "\n".join((*lines, *notes, ""))


def _figure(named: tuple[str, float | None]) -> str:
    what, figure = named
    return f"{what.replace('_', ' ')} {'-' if figure is None else f'{figure:.3g}'}"
