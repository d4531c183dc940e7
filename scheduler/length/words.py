"""Ridge regression of log length (Hoerl and Kennard, Technometrics 12, 1970) on hashed tokens (Weinberger et al., ICML
2009): words such as "list" drown in mean embeddings. Its score is a feature of the forest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.length.features import OPENING, FloatMatrix

BUCKETS = 2**12  # hides tokens from the journal, a dozen each; 2^13 predict 1 % better, 2^11 2 % worse

FIRST, LAST = 64, 192  # tokens read at both ends of a long prompt

PENALTY = 1.0  # of squared coefficients; half and twice as much predict as well

FOLDS = 5  # cross-fitting

Bag = NDArray[np.int32]  # buckets of the tokens, and, BUCKETS further, of the OPENING; distinct, ascending


def bag(tokens: Sequence[int]) -> Bag:
    ids = np.array(tokens if len(tokens) <= FIRST + LAST else (*tokens[:FIRST], *tokens[-LAST:]), dtype=np.uint64)
    buckets = (ids * np.uint64(2654435761) & np.uint64(0xFFFFFFFF)) * np.uint64(BUCKETS) >> np.uint64(32)
    return np.unique(np.concatenate((buckets, buckets[:OPENING] + np.uint64(BUCKETS)))).astype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    numbers: FloatMatrix  # (n, f), the number of tokens last
    bags: Sequence[Bag]

    @classmethod
    def of(cls, features: Sequence[Sequence[float] | NDArray[np.float32]], width: int) -> Prompts:
        """From features: `width` numbers, then the bag."""
        numbers = np.array([one[:width] for one in features], dtype=np.float32)
        return cls(numbers, [np.array(one[width:], dtype=np.int32) for one in features])

    def where(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> Prompts:
        places = np.arange(len(self.bags))[chosen]
        return Prompts(self.numbers[places], [self.bags[place] for place in places.tolist()])

    def scored(self, scores: NDArray[np.float64]) -> FloatMatrix:
        """Numbers and score, (n, f + 1)."""
        return np.ascontiguousarray(np.column_stack((self.numbers, scores)), dtype=np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class WordScore:
    intercept: float
    sizes: NDArray[np.float64]  # (2,), for log_sizes
    buckets: NDArray[np.float64]  # (2 BUCKETS,)

    def scores(self, prompts: Prompts) -> NDArray[np.float64]:
        """(n,)."""
        by_words = [float(self.buckets[one] @ _shares(one)) for one in prompts.bags]
        return np.asarray(self.intercept + log_sizes(prompts) @ self.sizes + by_words, dtype=np.float64)

    @classmethod
    def fit(cls, prompts: Prompts, lengths: NDArray[np.float32]) -> WordScore:
        from scipy.sparse import csr_matrix, hstack  # slow to import
        from sklearn.linear_model import Ridge

        ends = np.cumsum([0, *map(len, prompts.bags)])
        values = np.concatenate([np.empty(0), *map(_shares, prompts.bags)])
        places = np.concatenate([np.empty(0, dtype=np.int32), *prompts.bags])
        words = csr_matrix((values, places, ends), shape=(len(lengths), 2 * BUCKETS))
        ridge = Ridge(alpha=PENALTY, solver="sparse_cg", tol=1e-3)
        ridge.fit(hstack((csr_matrix(log_sizes(prompts)), words)).tocsr(), np.log(lengths))
        return cls(float(ridge.intercept_), ridge.coef_[:2], ridge.coef_[2:])


def held_out_scores(prompts: Prompts, lengths: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cross-fitted scores (n,), which a forest must learn from (stacking; Wolpert, Neural Networks 5, 1992)."""
    fold, scores = np.arange(len(lengths)) % FOLDS, np.zeros(len(lengths))
    for part in range(min(FOLDS, len(lengths))):
        own = fold == part
        scores[own] = WordScore.fit(prompts.where(~own), lengths[~own]).scores(prompts.where(own))
    return scores


def log_sizes(prompts: Prompts) -> NDArray[np.float64]:
    """Log number of tokens, and its scaled square, (n, 2)."""
    logs = np.log1p(prompts.numbers[:, -1].astype(np.float64))
    return np.stack((logs, logs**2 / 8), axis=1)


def _shares(bag: Bag) -> NDArray[np.float64]:
    opening = bag >= BUCKETS
    return np.asarray(1 / np.sqrt(np.bincount(opening, minlength=2)[opening.astype(np.intp)]), dtype=np.float64)
