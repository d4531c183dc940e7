"""Real prose and real functions from the source of the Python that runs this. Nothing is imported or run.

It knows no task: what is asked about the texts is made in tasks.py.
"""

from __future__ import annotations

import ast
import random
import re
import sysconfig
import textwrap
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from models.errors import UserError

Definition: TypeAlias = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

LONGEST_FUNCTION = 4000
"""Characters; longer functions are generated tables more often than code."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function's source without its docstring, from the left margin, and that docstring."""

    source: str
    docstring: str


@dataclass(frozen=True, slots=True)
class Material:
    """The texts and functions of some modules."""

    documents: tuple[tuple[str, ...], ...]
    """The sentences of each module, in order."""
    functions: tuple[Function, ...]
    documented: tuple[Function, ...]
    """The functions that have a docstring."""


def read_material(rng: random.Random, modules: int, root: Path | None = None) -> Material:
    """Texts of so many modules, drawn at random from the standard library or from another folder.

    A module takes about 15 ms. Raises UserError where there is no source.
    """
    folder = Path(sysconfig.get_path("stdlib")) if root is None else root
    files = sorted(folder.glob("*.py"))
    trees = list(_trees(rng.sample(files, min(modules, len(files)))))
    documents = tuple(filter(None, (tuple(_sentences(tree)) for _, tree in trees)))
    functions = tuple(function for source, tree in trees for function in _functions(source, tree))
    documented = tuple(function for function in functions if function.docstring)
    if not documents or not documented:
        raise UserError(
            f"--dataset-name builtin: {folder} has no readable Python source: "
            "use a Python with its standard library as files, or another dataset"
        )
    return Material(documents, functions, documented)


def _trees(files: Sequence[Path]) -> Iterator[tuple[str, ast.Module]]:
    """Each file that can be read and parsed, with its source; others are passed over."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd escapes in others' strings
        for file in files:
            try:
                with tokenize.open(file) as stream:
                    source = stream.read()
                yield source, ast.parse(source)
            except (OSError, SyntaxError, ValueError, RecursionError):
                continue


def _definitions(node: Definition) -> Iterator[Definition]:
    """The module, class or function and those within, outside of branches: much faster than a walk over everything."""
    yield node
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _definitions(child)


# Prose


def _sentences(tree: ast.Module) -> Iterator[str]:
    seen: set[str] = set()
    for node in _definitions(tree):
        for sentence in prose(ast.get_docstring(node) or ""):
            if sentence not in seen:
                seen.add(sentence)
                yield sentence


def prose(docstring: str) -> Iterator[str]:
    """The sentences of a docstring; lists, examples and headings are left out."""
    for paragraph in re.split(r"\n\s*\n", docstring):
        text = " ".join(paragraph.split())
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", text):
            if _is_prose(sentence):
                yield sentence


def _is_prose(sentence: str) -> bool:
    ends = re.match(r"[A-Z].*[a-z)'\"][.!?]$", sentence) is not None
    plain = sum(character.isalpha() or character in " ,.'-" for character in sentence)
    return ends and sentence.isascii() and 3 <= len(sentence.split()) <= 80 and plain >= 0.92 * len(sentence)


# Code


def _functions(source: str, tree: ast.Module) -> Iterator[Function]:
    lines = source.splitlines()
    for node in _definitions(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            text = _without_docstring(lines, node)
            if text.startswith(("def ", "async def ")) and text.count("\n") >= 2 and len(text) <= LONGEST_FUNCTION:
                yield Function(text, ast.get_docstring(node) or "")


def _without_docstring(lines: list[str], node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The function's lines; empty when nothing but a docstring, or one on the line of `def`, makes its body."""
    first, last = node.lineno - 1, node.end_lineno or node.lineno
    if ast.get_docstring(node, clean=False) is None:
        return textwrap.dedent("\n".join(lines[first:last]))
    docstring = node.body[0]
    body = lines[docstring.end_lineno or docstring.lineno : last]
    if len(node.body) == 1 or docstring.lineno == node.lineno:
        return ""
    return textwrap.dedent("\n".join(lines[first : docstring.lineno - 1] + body))
