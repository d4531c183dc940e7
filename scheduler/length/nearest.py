"""Lengths from the answers to similar prompts, for scopes with too few for a forest (kernel regression; Nadaraya,
Theory of Probability and Its Applications 9, 1964).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scheduler.length.prediction import LengthDistribution
from scheduler.length.words import BUCKETS, Prompts, log_sizes

MOST = 20.0  # largest exponent of a similarity


@dataclass(frozen=True, slots=True, eq=False)
class NearestPrompts:
    """A word weighs more the more its answers' lengths agree."""

    lengths: NDArray[np.float32]
    words: NDArray[np.intp]  # of all prompts, concatenated
    prompts: NDArray[np.intp]  # prompt of each word
    weights: NDArray[np.float64]  # of each bucket
    sizes: NDArray[np.float64]  # logarithm of the tokens

    @classmethod
    def of(cls, prompts: Prompts, lengths: NDArray[np.float32]) -> NearestPrompts:
        words = np.concatenate(prompts.bags).astype(np.intp)
        own = np.repeat(np.arange(len(lengths)), [len(bag) for bag in prompts.bags])
        logs = np.log(np.maximum(lengths, 1.0)).astype(np.float64)
        counts, sums, squares = (np.bincount(words, each, 2 * BUCKETS) for each in (None, logs[own], logs[own] ** 2))
        usual = logs.var() + 1e-6
        spread = squares - sums**2 / np.maximum(counts, 1)  # of each word's answers, shrunk by one average answer
        weights = np.maximum(usual * np.maximum(counts, 1) / (np.maximum(spread, 0) + usual) - 1, 0)
        return cls(lengths, words, own, weights, log_sizes(prompts)[:, 0])

    def distributions(self, prompts: Prompts) -> list[LengthDistribution]:
        return [self._distribution(*one) for one in zip(prompts.bags, log_sizes(prompts)[:, 0].tolist(), strict=True)]

    def _distribution(self, bag: NDArray[np.int32], size: float) -> LengthDistribution:
        shared = np.zeros(len(self.weights))
        shared[bag] = self.weights[bag]
        words = np.bincount(self.prompts, shared[self.words], len(self.lengths)).astype(np.float64)
        alike = words * min(1.0, MOST / max(float(words.max()), 1e-9)) - 2 * (self.sizes - size) ** 2
        weights = np.exp(alike - alike.max())
        effective = weights.sum() ** 2 / (weights**2).sum()  # sample size (Kish, Survey Sampling, 1965)
        found = LengthDistribution.of(self.lengths, weights.astype(np.float32))
        return replace(found, unlike=1 / (1 + float(effective)))
