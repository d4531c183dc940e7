"""Predicted lengths in a simulation: none, the true ones, or ones with a predictor's errors.

Only here are true lengths looked at; what leaves is a prediction. Equal seeds give each request the same one, whichever
strategy it is for.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeAlias

import numpy as np

from engine.messages import SamplingParams
from scheduler.length.distribution import LengthDistribution
from scheduler.length.oracle import true_length

Forecast: TypeAlias = float | LengthDistribution | None
"""Predicted tokens of an answer, or how likely each length is."""

Predict: TypeAlias = Callable[[SamplingParams], Forecast]
"""Sampling parameters -> predicted length. Called once for each request, in order of arrival."""

STEPS = 32
"""Lengths in a distribution of a noisy prediction."""


def split_forecast(forecast: Forecast) -> tuple[float | None, LengthDistribution | None]:
    """Split a forecast into the predicted length and its distribution, as far as they are known."""
    return (forecast.mean, forecast) if isinstance(forecast, LengthDistribution) else (forecast, None)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The quality of predictions: `sigma` is the standard deviation of the error's logarithm, 0 for an oracle."""

    sigma: float | None = None
    """None where nothing is predicted."""

    def __str__(self) -> str:
        if self.sigma is None:
            return "none"
        return f"noisy:{self.sigma:g}" if self.sigma else "oracle"

    def source(self, seed: int) -> Predict | None:
        """The predictor of one simulation."""
        if self.sigma is None:
            return None
        return _Noisy(self.sigma, seed) if self.sigma else true_length


def read_prediction(text: str) -> Prediction:
    """`none`, `oracle`, or `noisy:SIGMA`; raises ValueError."""
    if text == "none":
        return Prediction()
    if text == "oracle":
        return Prediction(0.0)
    kind, _, number = text.partition(":")
    try:
        sigma = float(number)
    except ValueError:
        sigma = math.nan
    if kind != "noisy" or not (math.isfinite(sigma) and sigma > 0):
        raise ValueError(f"{text!r} is none of none, oracle, and noisy:SIGMA with a number above 0")
    return Prediction(sigma)


class _Noisy:
    """A predictor that is wrong by a factor exp(sigma·z), z standard normal, and knows how wrong it may be.

    What it says is the distribution of the length given its guess, where all lengths were as likely before:
    log-normal about the guess.
    """

    def __init__(self, sigma: float, seed: int) -> None:
        self._sigma = sigma
        self._random = random.Random(seed)
        normal = NormalDist()
        quantiles = [normal.inv_cdf((step + 0.5) / STEPS) for step in range(STEPS)]
        self._factors = np.exp(sigma * np.array(quantiles))

    def __call__(self, sampling: SamplingParams) -> LengthDistribution:
        guess = true_length(sampling) * math.exp(self._sigma * self._random.gauss(0.0, 1.0))
        lengths = np.clip(np.rint(guess * self._factors), 1, sampling.max_tokens).astype(np.float32)
        return LengthDistribution.of(lengths, np.ones(STEPS, dtype=np.float32))
