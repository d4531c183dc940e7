"""The requests of a paper's experiments: lengths, arrivals, and how well lengths are predicted."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from loadgen.load import arrival_times
from loadgen.simulate.load import task_lengths
from loadgen.workload.lengths import Cut, RequestLengths, load_trace
from loadgen.workload.sample import Sample
from models.errors import UserError

POOL = 20_000  # requests drawn; longer runs repeat them

TASKS = 4_000  # requests of the built-in tasks, which are slower to make

CHAT_INPUT = (6.633, 0.985)
CHAT_OUTPUT = (5.019, 0.859)  # mean and deviation of log tokens in Azure's conversation trace of 2023

LONGEST = 1024  # tokens of prompts and answers (Magnus, IV-A; SCLS, 5.1)

MOST = 200_000  # requests of a trace, its first ones


@dataclass(frozen=True, slots=True)
class Pool:
    """Lengths in order of sending."""

    lengths: tuple[RequestLengths, ...]
    source: str  # for the reader
    samples: tuple[Sample, ...] = ()  # texts, where known


@dataclass(frozen=True, slots=True)
class PaperLoad:
    """Rate in requests/s (infinity: all at once), and count."""

    rate: float
    count: int
    burstiness: float = 1.0
    seed: int = 0
    sorted_gaps: bool = False  # gaps between arrivals ascend
    own_times: bool = False  # the pool's own times, stretched to the rate

    def requests(self, pool: Pool) -> list[RequestLengths]:
        begin = self.seed * self.count  # other seeds use later requests of the pool
        if self.own_times and begin + self.count > len(pool.lengths):
            begin = 0
        places = range(begin, begin + self.count)
        chosen = [pool.lengths[place % len(pool.lengths)] for place in places]
        times = self._stretch(pool.lengths, places) if self.own_times else self._draw()
        return [replace(one, arrival=float(time)) for one, time in zip(chosen, times, strict=True)]

    def _stretch(self, lengths: Sequence[RequestLengths], places: range) -> NDArray[np.float64]:
        """Their own times, the last at count / rate; a pool repeats after a mean gap."""
        lap = (lengths[-1].arrival - lengths[0].arrival) * len(lengths) / max(1, len(lengths) - 1)
        own = [lengths[place % len(lengths)].arrival + lap * (place // len(lengths)) for place in places]
        times = np.array(own, dtype=np.float64) - own[0]
        if times[-1] > 0:
            times *= self.count / self.rate / times[-1]
        return times

    def _draw(self) -> NDArray[np.float64]:
        times = arrival_times(self.rate, self.burstiness, self.count, np.random.default_rng(self.seed))
        return np.cumsum(np.sort(np.diff(times, prepend=0.0))) if self.sorted_gaps else times


def trace_pool(path: Path, max_output: int = LONGEST, input_scale: float = 1.0) -> Pool:
    """In any format that `bench` reads; raises UserError."""
    lengths = load_trace(path, cut=Cut(max_output=max_output, limit=MOST))
    part = f"the first {MOST:,} lengths" if len(lengths) == MOST else "lengths"
    return fitted(lengths, input_scale, f"{part} of the trace {path.name}", max_output)


def chat_pool(seed: int, max_output: int = LONGEST, input_scale: float = 1.0, count: int = POOL) -> Pool:
    """Log-normal as in a conversation service, prompt and answer independent."""
    rng = random.Random(f"{seed}, chat")
    pairs = [(_draw(rng, CHAT_INPUT), _draw(rng, CHAT_OUTPUT)) for _ in range(count)]
    shape = f"in {CHAT_INPUT[0]:g} ± {CHAT_INPUT[1]:g}, out {CHAT_OUTPUT[0]:g} ± {CHAT_OUTPUT[1]:g} in ln tokens"
    lengths = [RequestLengths(0.0, inputs, min(max_output, outputs)) for inputs, outputs in pairs]
    return fitted(lengths, input_scale, f"drawn log-normal lengths ({shape})", max_output)


def task_pool(seed: int, input_scale: float = 1.0, count: int = TASKS) -> Pool:
    lengths = task_lengths(count, seed, LONGEST)
    return fitted(lengths, input_scale, "lengths of the built-in workload's eight tasks", LONGEST)


def fitted(
    lengths: Sequence[RequestLengths], scale: float, source: str, max_output: int, samples: tuple[Sample, ...] = ()
) -> Pool:
    prompts = (min(LONGEST, max(1, round(one.input_length * scale))) for one in lengths)
    short = tuple(replace(one, input_length=prompt) for one, prompt in zip(lengths, prompts, strict=True))
    scaled = "" if scale == 1 else f", prompts times {scale:g}"
    return Pool(short, f"{source}{scaled}, clipped to {LONGEST} in and {max_output} out", samples)


def _draw(rng: random.Random, shape: tuple[float, float]) -> int:
    return max(1, round(rng.lognormvariate(*shape)))


def outputs(requests: Sequence[RequestLengths]) -> list[int]:
    return [one.output_length for one in requests]


WORST = 4.0  # sigma that no predictor worth simulating has
STEPS = 40  # halvings of sigma's range
TOLERANCE = 0.02  # error of accuracy; a request of a short trace is less

Floats = NDArray[np.float64]


def sigma_for_rmse(lengths: Sequence[int], rmse: float) -> float:
    """For predictions that are `rmse` tokens off before clipping."""
    true = np.asarray(lengths, dtype=np.float64)
    errors = _draw_errors(len(true))

    def error(sigma: float) -> float:
        return float(np.sqrt(np.mean((_predict(true, sigma, errors) - true) ** 2)))

    return _bisect(lambda sigma: error(sigma) < rmse)


def sigma_for_accuracy(lengths: Sequence[int], cuts: Sequence[float], accuracy: float) -> float:
    """For this share of predictions in the class of the true length; `cuts` are the classes' quantiles. Raises
    UserError where too many lengths are equal.
    """
    true = np.asarray(lengths, dtype=np.float64)
    errors = _draw_errors(len(true))
    bounds = np.quantile(true, cuts)
    actual = np.searchsorted(bounds, true, side="right")

    def right(sigma: float) -> float:
        return float(np.mean(np.searchsorted(bounds, _predict(true, sigma, errors), side="right") == actual))

    found = _bisect(lambda sigma: right(sigma) > accuracy)
    if abs(right(found) - accuracy) > TOLERANCE + 1 / len(true):
        wanted = f"puts {accuracy:.1%} of these {len(true)} answers into the right one of {len(cuts) + 1} classes"
        raise UserError(f"no predictor {wanted}: too many are of one length; take another trace")
    return found


def _draw_errors(count: int) -> Floats:
    normal = NormalDist()
    errors = np.array([normal.inv_cdf((place + 0.5) / count) for place in range(count)])
    np.random.default_rng(0).shuffle(errors)
    return errors


def _predict(true: Floats, sigma: float, errors: Floats) -> Floats:
    return true * np.exp(sigma * errors + sigma**2 / 2)


def _bisect(too_good: Callable[[float], bool]) -> float:
    low, high = 0.0, WORST
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if too_good(middle) else (low, middle)
    return high
