"""The workload `builtin`: the eight tasks of Magnus (section IV: machine translation and code translation twice each,
grammar correction, text detoxification, bug fixing, code comment) on texts of the standard library.

Where the library holds the answer, as for mending and commenting, the reference is that answer. Translations it does
not hold: their length is the original's times a ratio that scatters, assumed rather than measured.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from loadgen.workload.sample import Sample
from loadgen.workload.stdlib import Material

TABLES: Mapping[str, Any] = MappingProxyType(tomllib.loads(Path(__file__).with_name("damage.toml").read_text("utf-8")))
"""Words, insults and bugs."""


def bad_grammar(sentence: str, rng: random.Random) -> str:
    """The sentence with one to three mistakes that people make; never the sentence itself."""
    words = sentence.split(" ")
    for _ in range(rng.randint(1, 3)):
        rng.choice((_drop_article, _wrong_word, _repeat, _misspell))(words, rng)
    damaged = " ".join(words)
    if damaged == sentence:
        _misspell(words, rng)
    return " ".join(words)


def _drop_article(words: list[str], rng: random.Random) -> None:
    articles = [place for place, word in enumerate(words) if word.lower() in ("a", "an", "the")]
    if articles and len(words) > 1:
        del words[rng.choice(articles)]


def _wrong_word(words: list[str], rng: random.Random) -> None:
    wrong = TABLES["wrong-words"]
    known = [place for place, word in enumerate(words) if word in wrong]
    if known:
        place = rng.choice(known)
        words[place] = wrong[words[place]]


def _repeat(words: list[str], rng: random.Random) -> None:
    place = rng.randrange(len(words))
    words.insert(place, words[place])


def _misspell(words: list[str], rng: random.Random) -> None:
    """Swap two different neighbouring letters of the longest word, or double its last character."""
    place = max(range(len(words)), key=lambda one: len(words[one]))
    word = words[place]
    pairs = [at for at in range(len(word) - 1) if word[at] != word[at + 1] and word[at : at + 2].isalpha()]
    if not pairs:
        words[place] = word + word[-1:]
        return
    at = rng.choice(pairs)
    words[place] = word[:at] + word[at + 1] + word[at] + word[at + 2 :]


def rude(sentence: str, rng: random.Random) -> str:
    """The sentence said rudely, with insults at some nouns and at the reader."""
    sworn = re.sub(
        r"\b(the|a|this) (?=[a-z])",
        lambda found: f"{found[1]} {rng.choice(TABLES['insults'])} " if rng.random() < 0.4 else found[0],
        sentence,
    )
    if rng.random() < 0.5:
        return f"{rng.choice(TABLES['openings'])} {sworn}"
    return f"{sworn.rstrip('.!?')}, {rng.choice(TABLES['endings'])}"


def buggy(source: str, rng: random.Random) -> str:
    """The function with one bug below its first line: a line is lost where none of the known bugs fits."""
    head, _, body = source.partition("\n")
    sites = [(found, bug) for pattern, bug in TABLES["bugs"] for found in re.finditer(pattern, body)]
    if not sites:
        lines = source.split("\n")
        del lines[rng.randrange(1, len(lines))]
        return "\n".join(lines)
    found, bug = rng.choice(sites)
    return f"{head}\n{body[: found.start()]}{bug}{body[found.end() :]}"


SCATTER = 0.12
"""Standard deviation of a translation's length, as a share of the ratio."""

Drawn: TypeAlias = tuple[str, str]
"""The user's text, and the one whose length tells the answer's."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task: its instruction, and how a request of it is drawn."""

    name: str
    draw: str
    """A name in DRAWS."""
    instruction: str
    ratio: float | None = None
    """Tokens of a translation per token of the original."""

    def sample(self, material: Material, rng: random.Random) -> Sample:
        """Draw a request."""
        text, reference = DRAWS[self.draw](material, rng)
        stretch = 1.0 if self.ratio is None else max(0.5, rng.gauss(self.ratio, SCATTER * self.ratio))
        return Sample(f"builtin/{self.name}", self.instruction, text, reference, stretch)


TASKS = tuple(
    Task(**task) for task in tomllib.loads(Path(__file__).with_name("tasks.toml").read_text("utf-8"))["tasks"]
)
"""The eight tasks."""


def samples(material: Material, rng: random.Random) -> Iterator[Sample]:
    """Requests without end, every task equally often; the same ones for the same material and state of `rng`."""
    tasks = list(TASKS)
    while True:
        rng.shuffle(tasks)
        yield from [task.sample(material, rng) for task in tasks]


def _passage(material: Material, rng: random.Random, longest: int) -> list[str]:
    """One to `longest` sentences that follow each other, short passages as likely as ones twice as long."""
    document = rng.choice(material.documents)
    count = min(len(document), round(longest ** rng.random()))
    start = rng.randrange(len(document) - count + 1)
    return list(document[start : start + count])


def _draw_prose(material: Material, rng: random.Random) -> Drawn:
    text = " ".join(_passage(material, rng, 40))
    return text, text


def _draw_function(material: Material, rng: random.Random) -> Drawn:
    source = rng.choice(material.functions).source
    return source, source


def _draw_bad_grammar(material: Material, rng: random.Random) -> Drawn:
    right = _passage(material, rng, 12)
    return " ".join(bad_grammar(one, rng) for one in right), " ".join(right)


def _draw_rudeness(material: Material, rng: random.Random) -> Drawn:
    polite = _passage(material, rng, 6)
    return " ".join(rude(one, rng) for one in polite), " ".join(polite)


def _draw_bug(material: Material, rng: random.Random) -> Drawn:
    right = rng.choice(material.functions).source
    return buggy(right, rng), right


def _draw_documented(material: Material, rng: random.Random) -> Drawn:
    function = rng.choice(material.documented)
    return function.source, function.docstring


DRAWS: Mapping[str, Callable[[Material, random.Random], Drawn]] = MappingProxyType(
    {
        "prose": _draw_prose,
        "function": _draw_function,
        "bad grammar": _draw_bad_grammar,
        "rudeness": _draw_rudeness,
        "bug": _draw_bug,
        "documented function": _draw_documented,
    }
)
