"""The workload `builtin`: Magnus's eight tasks (section IV) on prose and functions of Python's own sources, never
imported. Mending and commenting have references; translations' lengths are assumed, a scattered ratio of the
original's.
"""

import ast
import random
import re
import sysconfig
import textwrap
import tokenize
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from loadgen.workload.sample import Sample
from models.errors import UserError
from models.files import read_toml

Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

LONGEST_FUNCTION = 4000  # characters; longer ones are mostly generated tables


@dataclass(frozen=True, slots=True)
class Function:
    """Source without docstring, dedented, and docstring."""

    source: str
    docstring: str


@dataclass(frozen=True, slots=True)
class Material:
    documents: tuple[tuple[str, ...], ...]  # sentences by module
    functions: tuple[Function, ...]
    documented: tuple[Function, ...]  # with docstrings


def read_material(rng: random.Random, modules: int, root: Path | None = None) -> Material:
    """Of random modules of the standard library or a folder, 15 ms each. Raises UserError without source."""
    folder = Path(sysconfig.get_path("stdlib")) if root is None else root
    files = sorted(folder.glob("*.py"))
    read = [_read_module(file) for file in rng.sample(files, min(modules, len(files)))]
    documents = tuple(sentences for sentences, _ in read if sentences)
    functions = tuple(function for _, functions in read for function in functions)
    documented = tuple(function for function in functions if function.docstring)
    if not documents or not documented:
        remedy = "use a Python with its library as files, or another dataset"
        raise UserError(f"--dataset-name builtin: {folder} has no readable Python source: {remedy}")
    return Material(documents, functions, documented)


@cache  # a sweep reads them again and again
def _read_module(file: Path) -> tuple[tuple[str, ...], tuple[Function, ...]]:
    """Sentences and functions; none of what is not Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in others' strings
        try:
            with tokenize.open(file) as stream:
                source = stream.read()
            tree = ast.parse(source)
        except (OSError, SyntaxError, ValueError, RecursionError):
            return (), ()
    return tuple(dict.fromkeys(_sentences(tree))), tuple(_functions(source, tree))


def _definitions(node: Definition) -> Iterator[Definition]:
    yield node
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _definitions(child)


# Prose


def _sentences(tree: ast.Module) -> Iterator[str]:
    for node in _definitions(tree):
        yield from prose(ast.get_docstring(node) or "")


def prose(docstring: str) -> Iterator[str]:
    """Sentences, without lists, examples and headings."""
    for paragraph in re.split(r"\n\s*\n", docstring):
        yield from filter(_is_prose, re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(paragraph.split())))


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
    first, last = node.lineno - 1, node.end_lineno or node.lineno
    if ast.get_docstring(node, clean=False) is None:
        return textwrap.dedent("\n".join(lines[first:last]))
    docstring = node.body[0]
    body = lines[docstring.end_lineno or docstring.lineno : last]
    if len(node.body) == 1 or docstring.lineno == node.lineno:
        return ""
    return textwrap.dedent("\n".join(lines[first : docstring.lineno - 1] + body))


# words, insults and bugs
TABLES: Mapping[str, Any] = read_toml(__file__, "damage.toml")


def bad_grammar(sentence: str, rng: random.Random) -> str:
    """With one to three common mistakes."""
    words = sentence.split(" ")
    for _ in range(rng.randint(1, 3)):
        rng.choice((_drop_article, _wrong_word, _repeat, _misspell))(words, rng)
    if " ".join(words) == sentence:
        _misspell(words, rng)
    return " ".join(words)


def _drop_article(words: list[str], rng: random.Random) -> None:
    articles = [place for place, word in enumerate(words) if word.lower() in ("a", "an", "the")]
    if articles and len(words) > 1:
        del words[rng.choice(articles)]


def _wrong_word(words: list[str], rng: random.Random) -> None:
    wrong = TABLES["wrong-words"]
    if known := [place for place, word in enumerate(words) if word in wrong]:
        place = rng.choice(known)
        words[place] = wrong[words[place]]


def _repeat(words: list[str], rng: random.Random) -> None:
    place = rng.randrange(len(words))
    words.insert(place, words[place])


def _misspell(words: list[str], rng: random.Random) -> None:
    place = max(range(len(words)), key=lambda one: len(words[one]))
    word = words[place]
    pairs = [at for at in range(len(word) - 1) if word[at] != word[at + 1] and word[at : at + 2].isalpha()]
    if not pairs:
        words[place] = word + word[-1:]
        return
    at = rng.choice(pairs)
    words[place] = word[:at] + word[at + 1] + word[at] + word[at + 2 :]


def rude(sentence: str, rng: random.Random) -> str:
    sworn = re.sub(
        r"\b(the|a|this) (?=[a-z])",
        lambda found: f"{found[1]} {rng.choice(TABLES['insults'])} " if rng.random() < 0.4 else found[0],
        sentence,
    )
    if rng.random() < 0.5:
        return f"{rng.choice(TABLES['openings'])} {sworn}"
    return f"{sworn.rstrip('.!?')}, {rng.choice(TABLES['endings'])}"


def buggy(source: str, rng: random.Random) -> str:
    """With one bug, a lost line if nothing else fits."""
    head, _, body = source.partition("\n")
    sites = [(found, bug) for pattern, bug in TABLES["bugs"] for found in re.finditer(pattern, body)]
    if not sites:
        lines = source.split("\n")
        del lines[rng.randrange(1, len(lines))]
        return "\n".join(lines)
    found, bug = rng.choice(sites)
    return f"{head}\n{body[: found.start()]}{bug}{body[found.end() :]}"


SCATTER = 0.12  # relative deviation of a translation's length

Drawn = tuple[str, str]  # user's text, reference

Draw = Callable[[Material, random.Random], Drawn]


@dataclass(frozen=True, slots=True)
class Task:
    name: str
    draw: str  # in DRAWS
    instruction: str
    ratio: float | None = None  # translation tokens an original token

    def sample(self, material: Material, rng: random.Random) -> Sample:
        text, reference = DRAWS[self.draw](material, rng)
        stretch = 1.0 if self.ratio is None else max(0.5, rng.gauss(self.ratio, SCATTER * self.ratio))
        return Sample(f"builtin/{self.name}", self.instruction, text, reference, stretch)


TASKS = tuple(Task(**task) for task in read_toml(__file__, "tasks.toml")["tasks"])


def samples(material: Material, rng: random.Random) -> Iterator[Sample]:
    """Endless, every task equally often, determined by material and `rng`."""
    tasks = list(TASKS)
    while True:
        rng.shuffle(tasks)
        yield from [task.sample(material, rng) for task in tasks]


def _passage(material: Material, rng: random.Random, longest: int) -> list[str]:
    """One to `longest` sentences, log-uniform."""
    document = rng.choice(material.documents)
    count = min(len(document), round(longest ** rng.random()))
    start = rng.randrange(len(document) - count + 1)
    return list(document[start : start + count])


def _draw_text(longest: int, spoil: Callable[[str, random.Random], str] | None = None) -> Draw:
    """At most `longest` sentences, spoilt one by one."""

    def draw(material: Material, rng: random.Random) -> Drawn:
        right = _passage(material, rng, longest)
        given = right if spoil is None else [spoil(one, rng) for one in right]
        return " ".join(given), " ".join(right)

    return draw


def _draw_function(material: Material, rng: random.Random) -> Drawn:
    source = rng.choice(material.functions).source
    return source, source


def _draw_bug(material: Material, rng: random.Random) -> Drawn:
    right = rng.choice(material.functions).source
    return buggy(right, rng), right


def _draw_documented(material: Material, rng: random.Random) -> Drawn:
    function = rng.choice(material.documented)
    return function.source, function.docstring


DRAWS: Mapping[str, Draw] = {
    "prose": _draw_text(40),
    "function": _draw_function,
    "bad grammar": _draw_text(12, bad_grammar),
    "rudeness": _draw_text(6, rude),
    "bug": _draw_bug,
    "documented function": _draw_documented,
}
