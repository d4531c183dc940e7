"""The length of an answer by single tokens of its prompt: a ridge regression of its logarithm (Hoerl and Kennard,
Technometrics 12, 1970) on which tokens a prompt has, by hashes (Weinberger et al., ICML 2009), and on their number.

Means of embeddings tell what a prompt is about; words such as "list" or "why" tell how much there is to say, and drown
in a mean. The regression's own prediction, its score, is one more feature for the forest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.length.features import OPENING, FloatMatrix

BUCKETS = 2**12
"""Numbers that tokens are hashed to, so that a dozen share each: the journal should not tell which it was. 2^13 are
better by 1 %, 2^11 worse by 2."""

FIRST, LAST = 64, 192
"""Tokens of a long prompt that count, from both of its ends."""

PENALTY = 1.0
"""Weight of the squared coefficients in the loss; half and twice as much predict as well."""

FOLDS = 5
"""Parts that answers are dealt into; each is scored by a regression of the others."""

Bag = NDArray[np.int32]
"""The buckets of a prompt's tokens, and, BUCKETS further, of its OPENING: each once, ascending."""


def bag(tokens: Sequence[int]) -> Bag:
    """The tokens that a prompt has, wherever they stand."""
    ids = np.array(tokens if len(tokens) <= FIRST + LAST else (*tokens[:FIRST], *tokens[-LAST:]), dtype=np.uint64)
    buckets = (ids * np.uint64(2654435761) & np.uint64(0xFFFFFFFF)) * np.uint64(BUCKETS) >> np.uint64(32)
    return np.unique(np.concatenate((buckets, buckets[:OPENING] + np.uint64(BUCKETS)))).astype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """What lengths are predicted from: numbers of each prompt, the last of them that of its tokens, and its tokens."""

    numbers: FloatMatrix
    """(n, f)"""
    bags: Sequence[Bag]

    @classmethod
    def of(cls, features: Sequence[Sequence[float] | NDArray[np.float32]], width: int) -> Prompts:
        """Prompts by the features of each: `width` numbers, and behind them its bag."""
        numbers = np.array([one[:width] for one in features], dtype=np.float32)
        return cls(numbers, [np.array(one[width:], dtype=np.int32) for one in features])

    def where(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> Prompts:
        """The prompts where `chosen`, (n,), is true, or at these places, in their order."""
        places = np.arange(len(self.bags))[chosen]
        return Prompts(self.numbers[places], [self.bags[place] for place in places.tolist()])

    def scored(self, scores: NDArray[np.float64]) -> FloatMatrix:
        """The numbers and a score of each prompt, (n, f + 1)."""
        return np.ascontiguousarray(np.column_stack((self.numbers, scores)), dtype=np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class WordScore:
    """A fitted regression: it tells the logarithm of a length."""

    intercept: float
    sizes: NDArray[np.float64]
    """Coefficients of a prompt's number of tokens, as _sizes has it, (2,)."""
    buckets: NDArray[np.float64]
    """Coefficients of the buckets, (2 BUCKETS,)."""

    def scores(self, prompts: Prompts) -> NDArray[np.float64]:
        """The score of each prompt, (n,)."""
        by_words = [float(self.buckets[one] @ _shares(one)) for one in prompts.bags]
        return np.asarray(self.intercept + _sizes(prompts) @ self.sizes + by_words, dtype=np.float64)

    @classmethod
    def fit(cls, prompts: Prompts, lengths: NDArray[np.float32]) -> WordScore:
        """Fit it to answers of these lengths, (n,), one at least."""
        from scipy.sparse import csr_matrix, hstack  # these take long to load, and only one process fits
        from sklearn.linear_model import Ridge

        ends = np.cumsum([0, *map(len, prompts.bags)])
        values = np.concatenate([np.empty(0), *map(_shares, prompts.bags)])
        places = np.concatenate([np.empty(0, dtype=np.int32), *prompts.bags])
        words = csr_matrix((values, places, ends), shape=(len(lengths), 2 * BUCKETS))
        ridge = Ridge(alpha=PENALTY, solver="sparse_cg", tol=1e-3)
        ridge.fit(hstack((csr_matrix(_sizes(prompts)), words)).tocsr(), np.log(lengths))
        return cls(float(ridge.intercept_), ridge.coef_[:2], ridge.coef_[2:])


def held_out_scores(prompts: Prompts, lengths: NDArray[np.float32]) -> NDArray[np.float64]:
    """The score of each prompt by a regression that has not seen its answer, (n,): what a forest must learn from, as it
    would else trust scores that know the answer (stacking; Wolpert, Neural Networks 5, 1992)."""
    fold, scores = np.arange(len(lengths)) % FOLDS, np.zeros(len(lengths))
    for part in range(min(FOLDS, len(lengths))):
        own = fold == part
        scores[own] = WordScore.fit(prompts.where(~own), lengths[~own]).scores(prompts.where(own))
    return scores


def _sizes(prompts: Prompts) -> NDArray[np.float64]:
    """The logarithm of each prompt's number of tokens, and its square, of about the same size, (n, 2)."""
    logs = np.log1p(prompts.numbers[:, -1].astype(np.float64))
    return np.stack((logs, logs**2 / 8), axis=1)


def _shares(bag: Bag) -> NDArray[np.float64]:
    """The value of each bucket of a bag: those of all tokens, and those of the opening, have length 1 as vectors."""
    opening = bag >= BUCKETS
    counts = np.bincount(opening, minlength=2)
    return np.asarray(1 / np.sqrt(counts[opening.astype(np.intp)]), dtype=np.float64)
