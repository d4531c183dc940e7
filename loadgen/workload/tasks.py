"""The workload `builtin`: the eight tasks of Magnus (section IV: machine translation and code translation twice each,
grammar correction, text detoxification, bug fixing, code comment) on texts of the standard library.

Where the library holds the answer, as for mending and commenting, the reference is that answer. Translations it does
not hold: their length is the original's times a ratio that scatters, assumed rather than measured.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from loadgen.workload import damage
from loadgen.workload.sample import Sample
from loadgen.workload.stdlib import Material

SCATTER = 0.12
"""Standard deviation of a translation's length, as a share of the ratio."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task: its instruction, and how a request of it is drawn."""

    name: str
    instruction: str
    draw: Callable[[Material, random.Random], Sample]

    def sample(self, material: Material, rng: random.Random) -> Sample:
        drawn = self.draw(material, rng)
        return Sample(f"builtin/{self.name}", self.instruction, drawn.input, drawn.reference, drawn.stretch)


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


def _translation(ratio: float) -> Callable[[Material, random.Random], Sample]:
    def draw(material: Material, rng: random.Random) -> Sample:
        text = " ".join(_passage(material, rng, 40))
        return _stretched(text, ratio, rng)

    return draw


def _code_translation(ratio: float) -> Callable[[Material, random.Random], Sample]:
    def draw(material: Material, rng: random.Random) -> Sample:
        return _stretched(rng.choice(material.functions).source, ratio, rng)

    return draw


def _stretched(text: str, ratio: float, rng: random.Random) -> Sample:
    return Sample("", "", text, reference=text, stretch=max(0.5, rng.gauss(ratio, SCATTER * ratio)))


def _grammar(material: Material, rng: random.Random) -> Sample:
    right = _passage(material, rng, 12)
    return Sample("", "", " ".join(damage.bad_grammar(one, rng) for one in right), " ".join(right))


def _manners(material: Material, rng: random.Random) -> Sample:
    polite = _passage(material, rng, 6)
    return Sample("", "", " ".join(damage.rude(one, rng) for one in polite), " ".join(polite))


def _bug(material: Material, rng: random.Random) -> Sample:
    right = rng.choice(material.functions).source
    return Sample("", "", damage.buggy(right, rng), right)


def _comment(material: Material, rng: random.Random) -> Sample:
    function = rng.choice(material.documented)
    return Sample("", "", function.source, function.docstring)


TASKS = (
    Task(
        "translate-german",
        "Translate the following English text into German. Answer with the translation only.",
        _translation(1.25),
    ),
    Task(
        "translate-french",
        "Translate the following English text into French. Answer with the translation only.",
        _translation(1.35),
    ),
    Task(
        "correct-grammar",
        "Correct the grammar of the following text and output the corrected text.",
        _grammar,
    ),
    Task(
        "rewrite-politely",
        "Rewrite the following text politely, without insults, keeping its meaning.",
        _manners,
    ),
    Task(
        "python-to-java",
        "Translate the following Python function to Java. Answer with the code only.",
        _code_translation(1.4),
    ),
    Task(
        "python-to-javascript",
        "Translate the following Python function to JavaScript. Answer with the code only.",
        _code_translation(1.15),
    ),
    Task(
        "fix-bugs",
        "Fix the bug in the following Python function and output the whole fixed function.",
        _bug,
    ),
    Task(
        "comment-code",
        "Write the docstring of the following Python function. Answer with its text only.",
        _comment,
    ),
)
