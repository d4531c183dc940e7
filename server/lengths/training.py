"""One run of `lengthwise train`: rows -> features -> the ablations of Magnus's Table II -> a forest on disk."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table

from models.catalog.catalog import Catalog, default_cache
from models.errors import TextError, UserError
from models.progress import Bars
from models.text import Text
from scheduler.journal.file import RequestEntry, read
from scheduler.length.ablation import PAPER, Accuracy, accuracy, grown_trees, predict, split
from scheduler.length.censored import completed
from scheduler.length.contest import Contest, Contestant, judge
from scheduler.length.features import FEATURES, INSTRUCTION_GROUPS, Ablation, LengthQuery
from scheduler.length.forest import Examples, Forest, Growth, grow
from scheduler.length.forest_file import ForestError, Manifest, load, manifest, save
from scheduler.length.learning import examples as learnable
from scheduler.length.learning import served_rows
from server.lengths.training_rows import TrainingRow, read_rows
from server.lengths.worker import embed, load_embedder
from server.process.cache_paths import forest_path, journal_path, model_key

CHUNK = 64
"""Rows that are embedded between two strokes of the progress bar."""

FEWEST = 20
"""Rows below which nothing useful can be learned or measured."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingData:
    """Examples, and the task that each belongs to: rows with the same instruction are of one task."""

    examples: Examples
    tasks: Sequence[str]


def train(args: argparse.Namespace, cores: int) -> str:
    """Do what the arguments say; returns the report. Raises CatalogError, JournalError, UserError."""
    growth = Growth(trees=args.trees, seed=args.seed, jobs=cores)
    with Bars(threaded=True, lines=False) as bars:
        data, max_tokens = _read_data(args, bars)
        if len(data.examples) < FEWEST:
            raise UserError(f"only {len(data.examples)} rows to train from, {FEWEST} is the least: serve more")
        path = args.output or forest_path(default_cache(), args.tokenizer)
        results, contest = _measure(data, args, growth, bars, _present(path, args.embedder, max_tokens))
        if contest.winner is Contestant.NEW:
            forest = grow(data.examples, growth, bars.begin("growing the forest", growth.trees).advance)
            _keep(path, forest, manifest(args.embedder, max_tokens, len(data.examples)))
    return (_json if args.json else _report)(results, contest, data, path)


def _present(path: Path, embedder: str, max_tokens: int) -> Forest | None:
    """The forest that is in use, to be judged beside a new one; None where none is, or the new one's features are not
    those that it knows."""
    try:
        forest, about = load(path)
    except ForestError:
        return None
    return forest if (about.embedder, about.max_tokens) == (embedder, max_tokens) else None


def _keep(path: Path, forest: Forest, about: Manifest) -> None:
    try:
        save(path, forest, about)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; name another with --output") from error


def _read_data(args: argparse.Namespace, bars: Bars) -> tuple[TrainingData, int]:
    """The rows to train on, and the tokens of a text that the embedder reads."""
    max_tokens = args.embedder_max_tokens
    if not args.files:
        return _from_journal(journal_path(default_cache(), args.journal), model_key(args.tokenizer)), max_tokens
    catalog = Catalog()
    rows = read_files(args, catalog)
    embedder = load_embedder(catalog.resolve(args.embedder), max_tokens)
    bar = bars.begin("embedding", len(rows))
    chunks = []
    for start in range(0, len(rows), CHUNK):
        chunk = rows[start : start + CHUNK]
        chunks.append(embed(embedder, [query_of(row) for row in chunk]))
        bar.advance(len(chunk))
    features = np.concatenate(chunks) if chunks else np.empty((0, FEATURES), dtype=np.float32)
    lengths = np.array([row.length for row in rows], dtype=np.float32)
    return TrainingData(Examples(features, lengths), [row.instruction for row in rows]), embedder.max_tokens


def read_files(args: argparse.Namespace, catalog: Catalog) -> list[TrainingRow]:
    try:
        text = Text.load(catalog.resolve(args.tokenizer))
    except TextError as error:
        raise UserError(f"--tokenizer {args.tokenizer}: {error}") from error
    return _completed([row for path in args.files for row in read_rows(path, text, sample=args.sample, seed=args.seed)])


def _completed(rows: list[TrainingRow]) -> list[TrainingRow]:
    """Replace the lengths of answers that were cut by those that they would have come to."""
    lengths = np.array([row.length for row in rows], dtype=np.float32)
    whole = completed(lengths, np.array([row.cut for row in rows], dtype=bool)).round().astype(int).tolist()
    return [replace(row, length=length) for row, length in zip(rows, whole, strict=True)]


def query_of(row: TrainingRow) -> LengthQuery:
    return LengthQuery(row.instruction, row.user_input, row.user_input_length, row.length)


def _from_journal(path: Path, model: str) -> TrainingData:
    """The journal keeps features, and only where it may texts: equal instructions are known by equal features."""
    rows = served_rows(entry for entry in read(path, RequestEntry) if entry.model == model)
    if not rows:
        raise UserError(
            f"{path} has no answer of {model} that was predicted and not broken off: serve some with "
            "--length-predictor forest, name another model with --tokenizer, or name files"
        )
    return TrainingData(learnable(rows), [str(row.features[:INSTRUCTION_GROUPS]) for row in rows])


def _measure(
    data: TrainingData, args: argparse.Namespace, growth: Growth, bars: Bars, old: Forest | None
) -> tuple[dict[Ablation, Accuracy], Contest]:
    """Hold rows out, and tell how well each ablation predicts them, and which forest should be kept."""
    parts = split(data.examples, data.tasks, args.holdout, args.seed)
    if len(parts.test) < 2 or len(parts.train) == 0:
        raise UserError("too few rows of each instruction to hold some out: use more rows, or another --holdout")
    predicted = {}
    for ablation in Ablation:
        bar = bars.begin(f"measuring {ablation}", grown_trees(ablation, parts, growth))
        predicted[ablation] = predict(ablation, parts, growth, bar.advance)
    results = {ablation: accuracy(lengths, parts.test.lengths) for ablation, lengths in predicted.items()}
    return results, judge(parts.test, predicted[Ablation.USIN], old)


def _report(results: Mapping[Ablation, Accuracy], contest: Contest, data: TrainingData, path: Path) -> str:
    table = Table("error in tokens", *Ablation, title="Length prediction on rows held out")
    table.add_row("MAE", *(f"{one.mae:.1f}" for one in results.values()))
    table.add_row("RMSE", *(f"{one.rmse:.1f}" for one in results.values()))
    table.add_row("Kendall's tau", *(f"{one.tau:.3f}" for one in results.values()), end_section=True)
    for model, errors in PAPER.items():
        table.add_row(f"Magnus, Table II: {model}", *(f"{error:.1f}" for error in errors))
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table)
    tasks = len(set(data.tasks))
    return f"{captured.get()}{len(data.examples)} rows, {tasks} instructions\n{_verdict(contest, path)}\n"


def _verdict(contest: Contest, path: Path) -> str:
    """Which predictor is kept, and the figures that it is chosen by."""
    errors = ", ".join(f"{one} {error:.1f}" for one, error in contest.errors.items())
    kept = {
        Contestant.NEW: f"the new forest is in {path}",
        Contestant.OLD: f"the old forest is better and stays in {path}",
        Contestant.PLAIN: f"no forest beats the user input length, so none is installed; {path} is left as it is",
    }
    return f"mean absolute error on {contest.rows} rows held out: {errors}\n{kept[contest.winner]}"


def _json(results: Mapping[Ablation, Accuracy], contest: Contest, data: TrainingData, path: Path) -> str:
    content = {
        "rows": len(data.examples),
        "instructions": len(set(data.tasks)),
        "forest": str(path),
        "best": str(contest.winner),
        "installed": contest.winner is Contestant.NEW,
        "mae": {str(one): error for one, error in contest.errors.items()},
        "held_out": {str(ablation): asdict(one) for ablation, one in results.items()},
        "paper": {model: dict(zip(map(str, Ablation), errors, strict=True)) for model, errors in PAPER.items()},
    }
    return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()
