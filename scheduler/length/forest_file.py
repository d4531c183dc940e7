"""Forests on disk: the rows that they grow from and how, and growing them again, which takes seconds.

So a file holds numbers only, and no version of any library matters.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from models.files import replace_file
from scheduler.length.forest import Examples, Forest, Growth, grow

FORMAT = 2  # of the file, and the meaning of the features in it


class ForestError(Exception):
    """A forest's file cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the rows of a forest were made with, and how it grows from them."""

    embedder: str
    """Name of the sentence embedder whose features it knows."""
    max_tokens: int
    """Tokens of a text that this embedder read."""
    growth: Growth = Growth()
    format: int = FORMAT


def save(path: Path, examples: Examples, about: Manifest) -> None:
    """Write the rows of a forest in one step: readers see the old file or the new one. Raises OSError."""
    about = replace(about, growth=replace(about.growth, jobs=1))
    with replace_file(path) as file:
        manifest = np.frombuffer(msgspec.json.encode(about), dtype=np.uint8)
        np.savez(file, manifest=manifest, features=examples.features, lengths=examples.lengths)


def read(path: Path) -> tuple[Examples, Manifest]:
    """The rows in a file. Raises ForestError with the remedy."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            about = msgspec.json.decode(content["manifest"].tobytes(), type=Manifest)
            examples = Examples(content["features"], content["lengths"])
    except FileNotFoundError:
        raise ForestError(f"there is no forest at {path}: make one with `lengthwise train`") from None
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, msgspec.DecodeError) as error:
        raise ForestError(f"{path} is no forest of this version: make it with `lengthwise train` ({error})") from error
    if about.format != FORMAT:
        raise ForestError(f"{path} has format {about.format}, not {FORMAT}: make it anew with `lengthwise train`")
    features, lengths = examples.features, examples.lengths
    if features.dtype != np.float32 or lengths.dtype != np.float32 or features.shape[:1] != lengths.shape:
        raise ForestError(f"{path} is damaged, its rows do not fit each other: make it anew with `lengthwise train`")
    return examples, about


def load(path: Path) -> tuple[Forest, Manifest]:
    """Grow the forest of a file again. Raises ForestError with the remedy."""
    examples, about = read(path)
    try:
        return grow(examples, about.growth), about
    except ValueError as error:
        raise ForestError(f"{path} is damaged: make it anew with `lengthwise train` ({error})") from error
