"""Real sentences and functions made worse, so that the original is the answer to a request to mend them."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

# Grammar

_WRONG_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "is": "are",
        "are": "is",
        "was": "were",
        "were": "was",
        "has": "have",
        "have": "has",
        "does": "do",
        "do": "does",
        "a": "an",
        "an": "a",
        "this": "these",
        "these": "this",
        "its": "it's",
        "than": "then",
        "then": "than",
        "their": "there",
        "in": "on",
        "on": "in",
        "to": "for",
        "of": "from",
        "by": "with",
        "not": "no",
        "returns": "return",
        "return": "returning",
        "returned": "return",
        "used": "use",
        "using": "use",
        "called": "call",
    }
)


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
    known = [place for place, word in enumerate(words) if word in _WRONG_WORDS]
    if known:
        place = rng.choice(known)
        words[place] = _WRONG_WORDS[words[place]]


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


# Manners

_INSULTS = ("stupid", "damn", "bloody", "silly", "useless", "rotten")
_OPENINGS = (
    "Listen, you fool:",
    "Are you blind?",
    "Even an idiot knows this.",
    "What rubbish you write!",
    "Oh, shut up.",
)
_ENDINGS = ("you moron.", "and any fool can see that.", "but you are too lazy to read.", "so stop whining.")


def rude(sentence: str, rng: random.Random) -> str:
    """The sentence said rudely, with insults at some nouns and at the reader."""
    sworn = re.sub(
        r"\b(the|a|this) (?=[a-z])",
        lambda found: f"{found[1]} {rng.choice(_INSULTS)} " if rng.random() < 0.4 else found[0],
        sentence,
    )
    if rng.random() < 0.5:
        return f"{rng.choice(_OPENINGS)} {sworn}"
    return f"{sworn.rstrip('.!?')}, {rng.choice(_ENDINGS)}"


# Bugs

_BUGS: Sequence[tuple[str, str]] = (
    (r" == ", " != "),
    (r" != ", " == "),
    (r" < ", " <= "),
    (r" > ", " >= "),
    (r" <= ", " < "),
    (r" \+ 1\b", ""),
    (r" - 1\b", ""),
    (r" \+ ", " - "),
    (r" \+= ", " = "),
    (r" and ", " or "),
    (r" or ", " and "),
    (r"\bif not ", "if "),
    (r" is None\b", " is not None"),
    (r" is not None\b", " is None"),
    (r" not in ", " in "),
    (r"\bTrue\b", "False"),
    (r"\bFalse\b", "True"),
    (r"\[0\]", "[1]"),
    (r"\[-1\]", "[0]"),
    (r"\breturn (?=[a-z])", ""),
    (r"\bbreak\b", "continue"),
    (r"\brange\(", "range(1, "),
)


def buggy(source: str, rng: random.Random) -> str:
    """The function with one bug below its first line: a line is lost where none of the known bugs fits."""
    head, _, body = source.partition("\n")
    sites = [(found, bug) for pattern, bug in _BUGS for found in re.finditer(pattern, body)]
    if not sites:
        lines = source.split("\n")
        del lines[rng.randrange(1, len(lines))]
        return "\n".join(lines)
    found, bug = rng.choice(sites)
    return f"{head}\n{body[: found.start()]}{bug}{body[found.end() :]}"
