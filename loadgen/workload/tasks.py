"""The workload `builtin`: the eight tasks of Magnus (section IV: machine translation and code translation twice each,
grammar correction, text detoxification, bug fixing, code comment) on texts of the standard library.

Where the library holds the answer, as for mending and commenting, the reference is that answer. Translations it does
not hold: their length is the original's times a ratio that scatters, assumed rather than measured.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from loadgen.workload import damage
from loadgen.workload.sample import Sample
from loadgen.workload.stdlib import Material

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
    return " ".join(damage.bad_grammar(one, rng) for one in right), " ".join(right)


def _draw_rudeness(material: Material, rng: random.Random) -> Drawn:
    polite = _passage(material, rng, 6)
    return " ".join(damage.rude(one, rng) for one in polite), " ".join(polite)


def _draw_bug(material: Material, rng: random.Random) -> Drawn:
    right = rng.choice(material.functions).source
    return damage.buggy(right, rng), right


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
