"""A run's figures, named as in `vllm bench serve`. Throughput and latencies count completed requests only."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean, median
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from loadgen.client.request import PROGRAMS, Foretold, RequestOutcome
from loadgen.result_file import FIGURES, Json

Samples = Callable[[RequestOutcome], Sequence[float]]  # of a completed request, in seconds; none where undefined


@dataclass(frozen=True, slots=True)
class Metric:
    title: str
    short: str
    unit: str
    samples: Samples


def tpot(outcome: RequestOutcome) -> Sequence[float]:
    """Seconds per output token after the first, as in `vllm bench serve`."""
    if not outcome.token_times or outcome.output_tokens < 2:
        return []
    return [(outcome.end - outcome.token_times[0]) / (outcome.output_tokens - 1)]


SAMPLES: Mapping[str, Samples] = {
    "ttft": lambda one: [time - one.sent for time in one.token_times[:1]],
    "tpot": tpot,
    "itl": lambda one: [b - a for a, b in pairwise(one.token_times)],
    "e2el": lambda one: [one.end - one.sent],
    "jct": lambda one: [one.end - one.scheduled],
    "normalized_latency": lambda one: [(one.end - one.scheduled) / one.output_tokens] if one.output_tokens else [],
    "scheduled_ttft": lambda one: [time - one.scheduled for time in one.token_times[:1]],
    "client_queue_time": lambda one: [one.sent - one.scheduled],
    "queue_time": lambda one: [] if one.queue_time is None else [one.queue_time],
}
METRICS: Mapping[str, Metric] = {
    name: Metric(**told, samples=SAMPLES[name]) for name, told in FIGURES["metrics"].items()
}  # by the names in flags and result files

DEFAULT_METRICS = ("ttft", "tpot", "itl", "e2el", "jct", "normalized_latency")
RUN_PERCENTILES = (50.0, 99.0)
GOODPUT_METRICS = ("ttft", "tpot", "e2el", "jct")


def spread(key: str, samples: Sequence[float], percentiles: Sequence[float] = ()) -> Json:
    """Figures under keys such as `p99_ttft_ms`, from seconds; null without samples. Percentiles are in (0, 100]."""
    if not samples:
        return {f"{figure}_{key}": None for figure in ("mean", "median", "std")}
    ordered, mean, scale = sorted(samples), fmean(samples), 1000.0 if key.endswith("_ms") else 1.0
    deviation = math.sqrt(fmean((sample - mean) ** 2 for sample in samples))  # of these, no estimate for others
    values = {"mean": mean, "median": find_percentile(ordered, 50.0), "std": deviation}
    values |= {f"p{percentile:g}": find_percentile(ordered, percentile) for percentile in percentiles}
    return {f"{figure}_{key}": value * scale for figure, value in values.items()}


def find_percentile(ordered: Sequence[float], percentile: float) -> float:
    """By nearest rank of ascending samples, never between two."""
    # multiplied first: 99.9 / 100 rounds up, and numpy's `inverted_cdf` then takes the 1,999th of 2,000
    return ordered[math.ceil(len(ordered) * percentile / 100) - 1]


def judge(endings: Iterable[tuple[Foretold, float]]) -> Json:
    """The error is the median relative distance from the true time."""
    if not (ended := [one for one in endings if one[1] > 0]):
        return {}
    return {
        "foretold_answers": len(ended),
        "foretold_error": median(abs(told.median - seconds) / seconds for told, seconds in ended),
        "foretold_inside": sum(told.low <= seconds <= told.high for told, seconds in ended) / len(ended),
    }


def judge_promises(endings: Iterable[tuple[float, float]]) -> Json:
    """Of promised and true times: the share kept, and the median ratio."""
    if not (ended := [one for one in endings if one[1] > 0]):
        return {}
    return {
        "promises_kept": sum(seconds <= promised for promised, seconds in ended) / len(ended),
        "promised_ratio": median(promised / seconds for promised, seconds in ended),
    }


class Turn(NamedTuple):
    run: str  # empty for none
    arrival: float
    first_token: float
    end: float
    input_length: int
    cached_prompt: int
    run_within: float | None = None

    @classmethod
    def of(cls, one: RequestOutcome) -> Self:
        run = str(one.request.index - one.request.turn) if one.request.label == PROGRAMS else ""
        first = next(iter(one.token_times), one.end)
        return cls(run, one.scheduled, first, one.end, one.prompt_tokens or 0, one.cached_tokens)


def measure_runs(done: Sequence[Any]) -> Json:
    """Of completed turns, in order of arrival; empty without any."""
    runs: dict[str, list[Turn]] = {}
    for one in done:
        if one.run:
            runs.setdefault(one.run, []).append(one)
    if not runs:
        return {}
    turns = [one for run in runs.values() for one in run]
    times = [run[-1].end - run[0].arrival for run in runs.values()]
    ends = [(one.run_within, run[-1].end - one.arrival) for run in runs.values() for one in run if one.run_within]
    later = [one for run in runs.values() for one in run[1:]]
    others = [1000 * (one.end - one.arrival) for one in done if not one.run]
    return {
        "runs": len(runs),
        **spread("run_ms", times, RUN_PERCENTILES),
        **spread("turn_ttft_ms", [one.first_token - one.arrival for one in turns], RUN_PERCENTILES),
        "prefix_hits": divide(sum(one.cached_prompt for one in later), sum(one.input_length for one in later)),
        "run_ends_kept": divide(sum(true <= within for within, true in ends), len(ends)) if ends else None,
        "run_ends_ratio": median(within / max(1e-3, true) for within, true in ends) if ends else None,
        "mean_other_jct_ms": fmean(others) if others else None,
    }


def measure(
    outcomes: Sequence[RequestOutcome],
    duration: float,
    percentiles: Sequence[float] = (),
    metrics: Iterable[str] = tuple(METRICS),
    goals: Mapping[str, float] = MappingProxyType({}),
) -> Json:
    """Goals are bounds in seconds by metric; goodput is null without. `uncounted` answers count chunks as tokens."""
    completed = [outcome for outcome in outcomes if outcome.completed]
    statuses = Counter(outcome.status for outcome in outcomes)
    read = sum(outcome.prompt_tokens or 0 for outcome in completed)
    made = sum(outcome.output_tokens for outcome in completed)
    found: Json = {
        "duration": duration,
        **{status: statuses[status] for status in ("completed", "failed", "rejected", "cancelled")},
        "uncounted": sum(not outcome.counted for outcome in completed),
        "total_input_tokens": read,
        "total_cached_tokens": sum(outcome.cached_tokens for outcome in completed),
        "total_output_tokens": made,
        "request_throughput": divide(len(completed), duration),
        "request_goodput": divide(sum(meets(one, goals) for one in completed), duration) if goals else None,
        "output_throughput": divide(made, duration),
        "total_token_throughput": divide(read + made, duration),
        "max_output_tokens_per_s": _find_peak_tokens(completed),
        "max_concurrent_requests": _find_peak_requests(outcomes),
        "jain_fairness_index": measure_fairness(  # of output tokens per second of job completion time
            [one.output_tokens / (one.end - one.scheduled) for one in completed if one.end > one.scheduled]
        ),
        "median_ttft_by_turn_ms": [1000 * seconds for seconds in _median_ttfts(completed)],
        **judge((one.foretold, one.end - one.sent) for one in completed if one.foretold),
        **judge_promises((one.foretold.high, one.end - one.sent) for one in completed if one.foretold),
        **measure_runs([*map(Turn.of, completed)]),
    }
    for name in metrics:
        metric = METRICS[name]
        samples = [sample for outcome in completed for sample in metric.samples(outcome)]
        found |= spread(f"{name}_{metric.unit}", samples, percentiles)
    return found


def _median_ttfts(completed: Sequence[RequestOutcome]) -> list[float]:
    turns, ttft = range(1, 1 + max((outcome.request.turn for outcome in completed), default=0)), METRICS["ttft"].samples
    samples = [[sample for one in completed if one.request.turn == turn for sample in ttft(one)] for turn in turns]
    return [median(found) for found in samples if found] if len(turns) > 1 else []


def meets(outcome: RequestOutcome, goals: Mapping[str, float]) -> bool:
    """An undefined metric, such as TPOT of a single token, meets its goal."""
    return all(sample <= bound for name, bound in goals.items() for sample in METRICS[name].samples(outcome))


def measure_fairness(shares: Sequence[float]) -> float | None:
    """Jain's index (DEC-TR-301, 1984): 1 when all are equal, 1/n when one has everything; None when none has any."""
    squares = math.fsum(share * share for share in shares)
    return math.fsum(shares) ** 2 / (len(shares) * squares) if squares else None


def divide(amount: float, duration: float) -> float:
    """0 where there was no time."""
    return amount / duration if duration > 0 else 0.0


def _find_peak_tokens(completed: Sequence[RequestOutcome]) -> float:
    """Tokens of the best second, a request's spread evenly over its chunks."""
    begin = min((outcome.sent for outcome in completed), default=0.0)
    tokens: dict[int, float] = {}
    for outcome in completed:
        for second, chunks in Counter(int(time - begin) for time in outcome.token_times).items():
            tokens[second] = tokens.get(second, 0.0) + outcome.output_tokens * chunks / len(outcome.token_times)
    return max(tokens.values(), default=0.0)


def _find_peak_requests(outcomes: Sequence[RequestOutcome]) -> int:
    changes = sorted([(one.sent, 1) for one in outcomes] + [(one.end, -1) for one in outcomes])
    return max(accumulate(change for _, change in changes), default=0)
