"""Simulated predictions: none, true, noisy, misleading, or of a file. Equal seeds give equal predictions."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, TypeAlias

import msgspec
import numpy as np

from engine.sampling.params import SamplingParams
from loadgen.workload.lengths import at, text_lines
from scheduler.length.oracle import true_length
from scheduler.length.prediction import LengthDistribution
from scheduler.strategy import Length, Strategy

Forecast: TypeAlias = float | LengthDistribution | None  # tokens, or a distribution of them

Predict: TypeAlias = Callable[[SamplingParams], Forecast]  # called once a request, in order of arrival


def choose_prediction(strategy: Strategy, predict: Predict | None) -> Predict | None:
    """None where lengths are unused, the oracle where they are known."""
    known: dict[str, Predict | None] = {Length.NONE: None, Length.ORACLE: true_length}
    return known.get(strategy.length, predict)


STEPS = 32  # lengths in a noisy prediction's distribution


def split_forecast(forecast: Forecast) -> tuple[float | None, LengthDistribution | None]:
    """(length, distribution), as far as known."""
    return (forecast.mean, forecast) if isinstance(forecast, LengthDistribution) else (forecast, None)


@dataclass(frozen=True, slots=True)
class SimulatedPrediction:
    """Without any of these, nothing is predicted."""

    sigma: float | None = None  # of the error's logarithm; 0: oracle
    wrong: str | None = None  # a name of WRONG
    file: Path | None = None  # a length a line, in order of arrival

    def __str__(self) -> str:
        if self.file is not None:
            return f"file:{self.file}"
        if self.sigma is None:
            return self.wrong or "none"
        return f"noisy:{self.sigma:g}" if self.sigma else "oracle"

    def source(self, seed: int) -> Predict | None:
        """Raises UserError for an unreadable file."""
        if self.file is not None:
            return replay_forecasts(read_lengths(self.file))
        if self.wrong is not None:
            return WRONG[self.wrong](seed)
        if self.sigma is None:
            return None
        return _noisy(self.sigma, seed) if self.sigma else true_length


def read_prediction(text: str) -> SimulatedPrediction:
    """`none`, `oracle`, `noisy:SIGMA`, a name of WRONG, or `file:PATH`; raises ValueError."""
    kind, _, rest = text.partition(":")
    if kind == "file" and rest:
        return SimulatedPrediction(file=Path(rest))
    plain = {"none": SimulatedPrediction(), "oracle": SimulatedPrediction(0.0)}
    plain |= {name: SimulatedPrediction(wrong=name) for name in WRONG}
    if text in plain:
        return plain[text]
    with suppress(ValueError):
        if kind == "noisy" and 0 < (sigma := float(rest)) < math.inf:
            return SimulatedPrediction(sigma)
    raise ValueError(f"{text!r} is none of {', '.join(plain)}, file:PATH, and noisy:SIGMA with a number above 0")


def read_lengths(path: Path) -> list[float]:
    """A length a line; raises UserError."""
    lengths: list[float] = []
    for line, text in text_lines(path):
        try:
            lengths.append(msgspec.convert(text.strip(), Annotated[float, msgspec.Meta(gt=0, le=1e15)], strict=False))
        except msgspec.ValidationError:
            raise at(path, line, f"{text.strip()!r} is not a length: a number above 0 is wanted on each line") from None
    return lengths


def replay_forecasts(forecasts: Sequence[Forecast]) -> Predict:
    """One a request, in order of arrival."""
    following = iter(forecasts)
    return lambda sampling: next(following)


def _inverted(seed: int) -> Predict:
    return lambda sampling: sampling.max_tokens + 1 - true_length(sampling)


def _tenfold(seed: int) -> Predict:
    rng = random.Random(seed)
    return lambda sampling: true_length(sampling) * rng.choice((0.1, 10.0))


# misleading predictors, by name; called with a seed
WRONG: Mapping[str, Callable[[int], Predict]] = {"inverted": _inverted, "tenfold": _tenfold}


def _noisy(sigma: float, seed: int) -> Predict:
    """Off by exp(sigma·z), z standard normal, and aware of it: log-normal about the guess, for a flat prior."""
    rng, normal = random.Random(seed), NormalDist()
    factors = np.exp(sigma * np.array([normal.inv_cdf((step + 0.5) / STEPS) for step in range(STEPS)]))

    def predict(sampling: SamplingParams) -> LengthDistribution:
        guess = true_length(sampling) * math.exp(sigma * rng.gauss(0.0, 1.0))
        lengths = np.clip(np.rint(guess * factors), 1, sampling.max_tokens).astype(np.float32)
        return LengthDistribution.of(lengths, np.ones(STEPS, dtype=np.float32))

    return predict
