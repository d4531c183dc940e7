"""One run of `lengthwise train --predictor proxy`: rows -> SSJF's proxy, fine-tuned, measured and kept on disk."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.catalog.catalog import Catalog, default_cache
from models.errors import UserError
from models.progress import Bars
from models.proxy.network import MAX_TOKENS, Proxy, save
from models.proxy.task import Scale, Task, quantile_edges
from models.proxy.training import History, Step, TextRows, TrainingOptions, train
from scheduler.length.evaluation import Quality, quality
from server.composition.cache_paths import proxy_path
from server.lengths.training import write_json, write_tables
from server.lengths.training_data import FEWEST, read_files

PAPER: Mapping[Task, tuple[float, float]] = MappingProxyType(
    {
        Task.ORDINAL_MSE: (0.477, 0.450),
        Task.ORDINAL_L1: (0.580, 0.576),
        Task.CLASSIFICATION: (0.592, 0.590),
        Task.REGRESSION_MSE: (0.601, 0.602),
        Task.REGRESSION_L1: (0.615, 0.615),
    }
)
"""SSJF, Table 2: accuracy and F1 over five classes, on answers of LMSYS-Chat-1M of less than 512 tokens."""

WATCHED = 0.1
"""Share of the rows to learn from that early stopping watches instead."""


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Rows to learn from, to watch while learning, and to measure with."""

    learn: TextRows
    watch: TextRows
    test: TextRows


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The result of training for one task."""

    proxy: Proxy
    history: History
    quality: Quality


def train_proxy(args: argparse.Namespace, cores: int) -> str:
    """Do what the arguments say; returns the report. Raises CatalogError, UserError."""
    if not args.files:
        raise UserError("a proxy learns from texts, which the journal does not keep: name files to train from")
    torch.set_num_threads(cores)
    catalog = Catalog()
    rows = read_files(args, catalog)
    if len(rows) < FEWEST:
        raise UserError(f"only {len(rows)} rows to train from, {FEWEST} is the least: name more")
    texts = [row.query.conversation for row in rows]
    data = split(texts, np.array([row.length for row in rows], dtype=np.float32), args.holdout, args.seed)
    folder = catalog.resolve(args.embedder)
    tasks = [Task(args.task), *(task for task in Task if task != args.task and args.compare_tasks)]
    with Bars(threaded=True, lines=False) as bars:
        outcomes = {task: _train(folder, task, data, args, bars) for task in tasks}
    path = args.output or proxy_path(default_cache(), args.tokenizer)
    try:
        save(path, outcomes[tasks[0]].proxy, encoder=args.embedder, rows=len(data.learn.texts))
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; name another with --output") from error
    content = _content(outcomes, data, path)
    return write_json(content) if args.json else _report(content)


def split(texts: Sequence[str], lengths: NDArray[np.float32], share: float, seed: int) -> Split:
    """Hold a share out to measure with, and a tenth of the others to watch, at random."""
    order = np.random.default_rng(seed).permutation(len(texts))
    tested = max(1, round(share * len(order)))
    watched = tested + max(1, round(WATCHED * (len(order) - tested)))
    parts = (order[watched:], order[tested:watched], order[:tested])
    return Split(*(TextRows([texts[place] for place in part.tolist()], lengths[part]) for part in parts))


def _train(folder: Path, task: Task, data: Split, args: argparse.Namespace, bars: Bars) -> Outcome:
    try:
        scale = Scale.of(task, data.learn.lengths)
    except ValueError as error:
        raise UserError(f"--task {task}: {error}") from error
    proxy = Proxy.fresh(folder, task, scale, max_tokens=args.proxy_max_tokens or MAX_TOKENS, seed=args.seed)
    if torch.cuda.is_available():
        proxy.network.to("cuda")
    phases = {phase: bars.begin(f"{task}, phase {phase}") for phase in (1, 2)}

    def watch(step: Step) -> None:
        phases[step.phase].show(step.done, total=step.total)

    options = TrainingOptions(epochs=args.epochs, seed=args.seed)
    history = train(proxy, data.learn, data.watch, options, watch)
    edges = quantile_edges(data.learn.lengths)
    return Outcome(proxy, history, quality(proxy.predict(data.test.texts), data.test.lengths, edges))


def _content(outcomes: Mapping[Task, Outcome], data: Split, path: Path) -> dict[str, Any]:
    return {
        "rows": {"learn": len(data.learn.texts), "watch": len(data.watch.texts), "test": len(data.test.texts)},
        "proxy": str(path),
        "kept": str(next(iter(outcomes))),
        "tasks": {str(task): _figures(task, outcome) for task, outcome in outcomes.items()},
        "paper": {str(task): {"accuracy": pair[0], "f1": pair[1]} for task, pair in PAPER.items()},
    }


def _figures(task: Task, outcome: Outcome) -> dict[str, Any]:
    """JSON has no NaN, and knows no five classes where there are two."""
    figures = asdict(outcome.quality) | asdict(outcome.quality.errors) | {"losses": asdict(outcome.history)}
    del figures["errors"]
    if math.isnan(outcome.quality.errors.tau):
        figures["tau"] = None
    return figures | ({"accuracy": None, "f1": None} if task is Task.BINARY else {})


def _report(content: Mapping[str, Any]) -> str:
    rows, kept = content["rows"], content["kept"]
    figures = {
        task: {name: one for name, one in told.items() if name not in ("reliability", "losses")}
        for task, told in content["tasks"].items()
    }
    bins = dict(enumerate(content["tasks"][kept]["reliability"], 1))
    tables = {
        "Rows held out, errors in tokens": figures,
        "SSJF, Table 2": content["paper"],
        f"Reliability of {kept}, by predicted length": {str(place): one for place, one in bins.items()},
    }
    told = f"{rows['learn']} rows to learn from, {rows['watch']} watched, {rows['test']} held out"
    return write_tables(tables, f"{told}; the proxy is in {content['proxy']}")
