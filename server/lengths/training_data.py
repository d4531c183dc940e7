"""What a length predictor is trained from: rows of JSONL files or of the journal, and their features. Trains nothing."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from models.catalog.catalog import Catalog, default_cache
from models.catalog.checkpoint import weight_files
from models.errors import TextError, UserError
from models.network.embeddings import read_token_embeddings
from models.progress import Bars
from models.proxy.network import Proxy
from models.proxy.network import load as load_proxy
from models.text import Text
from scheduler.journal.file import RequestEntry, read
from scheduler.length.features import FEATURES, INSTRUCTION_GROUPS, LengthQuery, TokenFeatures
from scheduler.length.forest import Examples
from scheduler.length.history import completed
from scheduler.length.learning import examples as learnable
from scheduler.length.learning import served_rows
from server.composition.cache_paths import journal_path, model_key, proxy_path
from server.lengths.worker import embed, load_embedder

CHUNK = 64
"""Rows that are embedded between two strokes of the progress bar."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingData:
    """Examples, and the task that each belongs to: rows with the same instruction are of one task."""

    examples: Examples
    tasks: Sequence[str]
    queries: Sequence[LengthQuery] = ()
    """The requests, where their texts are known."""
    own: TokenFeatures | None = None
    proxy: Proxy | None = None


def read_data(args: argparse.Namespace, bars: Bars) -> tuple[TrainingData, int]:
    """The rows to train on, and the tokens of a text that the embedder reads. Raises UserError."""
    max_tokens = args.embedder_max_tokens
    if not args.files:
        return _from_journal(journal_path(default_cache(), args.journal), model_key(args.tokenizer)), max_tokens
    catalog = Catalog()
    rows = read_files(args, catalog)
    embedder = load_embedder(catalog.resolve(args.embedder), max_tokens)
    queries = [row.query for row in rows]
    bar = bars.begin("embedding", len(rows))
    chunks = []
    for start in range(0, len(rows), CHUNK):
        chunks.append(embed(embedder, queries[start : start + CHUNK]))
        bar.advance(len(chunks[-1]))
    features = np.concatenate(chunks) if chunks else np.empty((0, FEATURES), dtype=np.float32)
    lengths = np.array([row.length for row in rows], dtype=np.float32)
    proxy = proxy_path(default_cache(), args.tokenizer)
    data = TrainingData(
        Examples(features, lengths),
        [row.instruction for row in rows],
        queries,
        _own_features(_tokenizer_folder(args.tokenizer, catalog)),
        load_proxy(proxy) if proxy.exists() else None,
    )
    return data, embedder.max_tokens


def read_files(args: argparse.Namespace, catalog: Catalog) -> list[TrainingRow]:
    """The rows of the files that the arguments name, with whole answers. Raises UserError."""
    try:
        text = Text.load(_tokenizer_folder(args.tokenizer, catalog))
    except TextError as error:
        raise UserError(f"--tokenizer {args.tokenizer}: {error}") from error
    return _completed([row for path in args.files for row in read_rows(path, text, sample=args.sample, seed=args.seed)])


def _tokenizer_folder(name: str, catalog: Catalog) -> Path:
    """The folder of the model that is to be served; one that is given need not hold more than the tokenizer."""
    folder = Path(name).expanduser()
    return folder if folder.is_dir() else catalog.resolve(name)


def _own_features(folder: Path) -> TokenFeatures | None:
    """The features of requests by the model's own embeddings; None where a folder holds a tokenizer alone."""
    return TokenFeatures.of(read_token_embeddings(folder)) if weight_files(folder) else None


def _completed(rows: list[TrainingRow]) -> list[TrainingRow]:
    """Replace the lengths of answers that were cut by those that they would have come to."""
    lengths = np.array([row.length for row in rows], dtype=np.float32)
    whole = completed(lengths, np.array([row.cut for row in rows], dtype=bool)).round().astype(int).tolist()
    return [replace(row, length=length) for row, length in zip(rows, whole, strict=True)]


def _from_journal(path: Path, model: str) -> TrainingData:
    """The journal keeps features, and only where it may texts: equal instructions are known by equal features."""
    served = served_rows(read(path, RequestEntry, model=model))
    rows = [row for row in served if len(row.features) == FEATURES]  # those of the default are of another kind
    if not rows:
        raise UserError(
            f"{path} has no answer of {model} that was predicted and not broken off: serve some with "
            "--length-predictor forest, name another model with --tokenizer, or name files"
        )
    return TrainingData(learnable(rows), [str(row.features[:INSTRUCTION_GROUPS]) for row in rows])


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A request and the length of its answer in tokens, the end token included."""

    instruction: str
    user_input: str
    user_input_length: int
    length: int
    cut: bool = False
    """Whether the answer would have become longer."""
    tokens: tuple[int, ...] = ()
    """Tokens of instruction and user input."""

    @property
    def query(self) -> LengthQuery:
        """The request as predictors are asked about it."""
        return LengthQuery(self.instruction, self.user_input, self.user_input_length, self.length, self.tokens)


class _Line(msgspec.Struct):
    """One line of a file; `reference` is an answer whose tokens are counted where there is no `length`."""

    instruction: str
    input: str
    length: int | None = None
    reference: str | None = None
    cut: bool = False


def read_rows(path: Path, counter: Text, *, sample: int | None, seed: int) -> list[TrainingRow]:
    """All rows of a file, or `sample` of them at random. Raises UserError."""
    lines = list(_lines(path))
    if sample is not None and sample < len(lines):
        lines = random.Random(seed).sample(lines, sample)
    return [_row(line, counter) for line in lines]


def _lines(path: Path) -> Iterator[_Line]:
    decoder = msgspec.json.Decoder(_Line)
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    yield _checked(decoder.decode(text), f"{path}:{number}")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}:{number}: {error}; each line is an object with instruction, input, and length or reference"
        ) from error


def _checked(line: _Line, place: str) -> _Line:
    if line.length is None and line.reference is None:
        raise UserError(f"{place}: neither length nor reference; one of them says how long the answer is")
    if line.length is not None and line.length < 1:
        raise UserError(f"{place}: length {line.length} is not at least 1")
    return line


def _row(line: _Line, counter: Text) -> TrainingRow:
    length = line.length if line.length is not None else len(counter.encode(line.reference or "")) + 1
    user_input = counter.encode(line.input)
    tokens = (*(counter.encode(line.instruction) if line.instruction else ()), *user_input)
    return TrainingRow(line.instruction, line.input, len(user_input), length, line.cut, tokens)
