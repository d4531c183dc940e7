"""Real sentences and functions made worse, so that the original is the answer to a request to mend them."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

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
