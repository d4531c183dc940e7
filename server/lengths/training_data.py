"""Training data from JSONL files or the journal, and its features."""

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from models.catalog.catalog import Catalog, default_cache
from models.catalog.checkpoint import weight_files
from models.errors import TextError, UserError
from models.network.embeddings import read_token_embeddings
from models.progress import Bars
from models.proxy.network import Proxy, load as load_proxy
from models.text import Text
from scheduler.journal.file import read
from scheduler.length.features import FEATURES, INSTRUCTION_GROUPS, LengthQuery, TokenFeatures
from scheduler.length.forest import Examples
from scheduler.length.learning import completed, examples as learnable, served_rows
from server.cache_paths import journal_path, model_key, proxy_path
from server.lengths.process import embed, load_embedder

FEWEST = 20  # rows

CHUNK = 64  # rows embedded between progress updates


@dataclass(frozen=True, slots=True, eq=False)
class TrainingData:
    """Rows with the same instruction are one task."""

    examples: Examples
    tasks: Sequence[str]
    queries: Sequence[LengthQuery] = ()  # if texts are known
    own: TokenFeatures | None = None
    proxy: Proxy | None = None


def read_data(args: argparse.Namespace, bars: Bars) -> tuple[TrainingData, int]:
    """With the embedder's token limit. Raises UserError."""
    max_tokens = args.embedder_max_tokens
    if not args.files:
        return _from_journal(journal_path(default_cache(), args.journal), model_key(args.tokenizer)), max_tokens
    catalog = Catalog()
    queries, lengths = read_files(args, catalog)
    embedder = load_embedder(catalog.resolve(args.embedder), max_tokens)
    bar, features = bars.begin("embedding", len(queries)), [np.empty((0, FEATURES), dtype=np.float32)]
    for start in range(0, len(queries), CHUNK):
        features.append(embed(embedder, queries[start : start + CHUNK]))
        bar.advance(len(features[-1]))
    proxy, folder = proxy_path(default_cache(), args.tokenizer), _tokenizer_folder(args.tokenizer, catalog)
    data = TrainingData(
        Examples(np.concatenate(features), lengths),
        [query.instruction for query in queries],
        queries,
        # maybe only a tokenizer
        TokenFeatures.of(read_token_embeddings(folder)) if weight_files(folder) else None,
        load_proxy(proxy) if proxy.exists() else None,
    )
    return data, embedder.max_tokens


def read_files(args: argparse.Namespace, catalog: Catalog) -> tuple[list[LengthQuery], NDArray[np.float32]]:
    """Requests and lengths (n,) in tokens, end token included, completed where truncated. Raises UserError."""
    lines = [line for path in args.files for line in _sample(list(_lines(path)), args.sample, args.seed)]
    _require_enough(len(lines))  # before anything is fetched for them
    try:
        text = Text.load(_tokenizer_folder(args.tokenizer, catalog))
    except TextError as error:
        raise UserError(f"--tokenizer {args.tokenizer}: {error}") from error
    told = np.array([line.count(text) for line in lines], dtype=np.float32)
    lengths = completed(told, np.array([line.cut for line in lines], dtype=bool)).round()
    return [line.query(text, int(length)) for line, length in zip(lines, lengths, strict=True)], lengths


def _require_enough(rows: int) -> None:
    if rows < FEWEST:
        raise UserError(f"only {rows} rows to train from, {FEWEST} is the least: serve more, or name more files")


def _tokenizer_folder(name: str, catalog: Catalog) -> Path:
    folder = Path(name).expanduser()
    return folder if folder.is_dir() else catalog.resolve(name)


def _from_journal(path: Path, model: str) -> TrainingData:
    """Tasks by equal features, since texts may be absent."""
    served = served_rows(read(path, model=model))
    rows = [row for row in served if len(row.features) == FEATURES]  # others are the default's
    if not rows:
        remedy = "serve some with --length-predictor forest, name another model with --tokenizer, or name files"
        raise UserError(f"{path} has no answer of {model} that was predicted and not broken off: {remedy}")
    _require_enough(len(rows))
    return TrainingData(learnable(rows), [str(row.features[:INSTRUCTION_GROUPS]) for row in rows])


class _Line(msgspec.Struct):
    instruction: str
    input: str
    length: Annotated[int, msgspec.Meta(ge=1)] | None = None
    reference: str | None = None
    cut: bool = False  # truncated

    def count(self, text: Text) -> int:
        """Tokens, end token included."""
        return self.length if self.length is not None else len(text.encode(self.reference or "")) + 1

    def query(self, text: Text, length: int) -> LengthQuery:
        user_input = text.encode(self.input)
        tokens = (*(text.encode(self.instruction) if self.instruction else ()), *user_input)
        return LengthQuery(self.instruction, self.input, len(user_input), length, tokens)


def _sample(lines: list[_Line], count: int | None, seed: int) -> list[_Line]:
    return lines if count is None or count >= len(lines) else random.Random(seed).sample(lines, count)


def _lines(path: Path) -> Iterator[_Line]:
    decoder = msgspec.json.Decoder(_Line)
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if not text.strip():
                    continue
                line = decoder.decode(text)
                if line.length is None and line.reference is None:
                    raise UserError(f"{path}:{number}: neither length nor reference says how long the answer is")
                yield line
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        wanted = "each line is an object with instruction, input, and length or reference"
        raise UserError(f"{path}:{number}: {error}; {wanted}") from error
