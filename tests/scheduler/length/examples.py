"""Training sets in miniature."""

import numpy as np
from numpy.typing import NDArray

from scheduler.length.features import FEATURES
from scheduler.length.forest import Examples
from scheduler.length.online import Answers
from scheduler.length.words import Prompts


def linear(rows: int = 200, features: int = FEATURES, seed: int = 0) -> Examples:
    """Lengths that are twice the last feature, which the others say nothing about."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(rows, features)).astype(np.float32)
    table[:, -1] = rng.integers(1, 100, rows)
    return Examples(table, 2 * table[:, -1])


def wordless(examples: Examples) -> Prompts:
    """Prompts of which only numbers are known."""
    return Prompts(examples.features, [np.empty(0, dtype=np.int32)] * len(examples))


def answers(
    examples: Examples, lengths: NDArray[np.float32] | None = None, cut: NDArray[np.bool_] | None = None
) -> Answers:
    """Answers to such prompts, of the examples' lengths and whole unless others are given."""
    whole = np.zeros(len(examples), dtype=bool)
    return Answers(wordless(examples), examples.lengths if lengths is None else lengths, whole if cut is None else cut)
