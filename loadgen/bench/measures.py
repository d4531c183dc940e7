"""The figures of a run, computed from its outcomes and named as `vllm bench serve` names them, and their metrics.

Throughput and latencies count completed requests; failed, rejected and cancelled ones are counted apart.
Peers define TPOT differently (some include the first token): here, as in `vllm bench serve`, it excludes it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from types import MappingProxyType
from typing import TypeAlias

from loadgen.client.request import Foretold, Outcome
from loadgen.result_file import Json

Samples: TypeAlias = Callable[[Outcome], Sequence[float]]
"""Samples of a completed request in seconds: none where the metric is not defined for it."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric, its names, and the unit in which it is shown."""

    name: str
    title: str
    short: str
    samples: Samples
    unit: str = "ms"


def ttft(outcome: Outcome) -> Sequence[float]:
    """Time to first token: from sending to the first chunk with output."""
    return [outcome.token_times[0] - outcome.sent] if outcome.token_times else []


def tpot(outcome: Outcome) -> Sequence[float]:
    """Time per output token after the first: (latency - TTFT) / (tokens - 1); a single token has none."""
    if not outcome.token_times or outcome.output_tokens < 2:
        return []
    return [(outcome.end - outcome.token_times[0]) / (outcome.output_tokens - 1)]


def itl(outcome: Outcome) -> Sequence[float]:
    """Inter-token latency: every gap between chunks with output, so long pauses are not averaged away."""
    return [later - earlier for earlier, later in pairwise(outcome.token_times)]


def e2el(outcome: Outcome) -> Sequence[float]:
    """End-to-end latency: from sending to the last output."""
    return [outcome.end - outcome.sent]


def jct(outcome: Outcome) -> Sequence[float]:
    """Job completion time: from when the request was due to the last output."""
    return [outcome.end - outcome.scheduled]


def normalized_latency(outcome: Outcome) -> Sequence[float]:
    """Job completion time per output token, in which long and short answers can be compared (Orca, section 6)."""
    return [(outcome.end - outcome.scheduled) / outcome.output_tokens] if outcome.output_tokens else []


def scheduled_ttft(outcome: Outcome) -> Sequence[float]:
    """Time from when the request was due to the first chunk with output."""
    return [outcome.token_times[0] - outcome.scheduled] if outcome.token_times else []


def client_queue_time(outcome: Outcome) -> Sequence[float]:
    """Seconds for which the client held the request back, because of --max-concurrency or because it was busy."""
    return [outcome.sent - outcome.scheduled]


def queue_time(outcome: Outcome) -> Sequence[float]:
    """Seconds for which the request waited in the server, where the server tells."""
    return [] if outcome.queue_time is None else [outcome.queue_time]


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        metric.name: metric
        for metric in (
            Metric("ttft", "Time to First Token", "TTFT", ttft),
            Metric("tpot", "Time per Output Token (excl. 1st token)", "TPOT", tpot),
            Metric("itl", "Inter-token Latency", "ITL", itl),
            Metric("e2el", "End-to-end Latency", "E2EL", e2el),
            Metric("jct", "Job Completion Time (from schedule)", "JCT", jct),
            Metric(
                "normalized_latency", "Normalized Latency (JCT per token)", "norm. latency", normalized_latency, "s"
            ),
            Metric("scheduled_ttft", "Time to First Token (from schedule)", "TTFT from schedule", scheduled_ttft),
            Metric("client_queue_time", "Client-side Queueing", "client queue time", client_queue_time),
            Metric("queue_time", "Queueing in the Server", "queue time", queue_time),
        )
    }
)
"""The metrics, by the names that flags and result files use."""

DEFAULT_METRICS = ("ttft", "tpot", "itl", "e2el", "jct", "normalized_latency")
GOODPUT_METRICS = ("ttft", "tpot", "e2el", "jct")


def spread(
    name: str, samples: Sequence[float], percentiles: Sequence[float] = (), unit: str = "ms", scale: float = 1000.0
) -> Json:
    """The figures of samples in seconds under names such as `p99_ttft_ms`; null where there are none.

    percentiles   in (0, 100]
    scale         units in a second
    """
    name = f"{name}_{unit}" if unit else name
    if not samples:
        return {f"{figure}_{name}": None for figure in ("mean", "median", "std")}
    ordered, mean = sorted(samples), fmean(samples)
    deviation = math.sqrt(fmean((sample - mean) ** 2 for sample in samples))  # of these, no estimate for others
    values = {"mean": mean, "median": find_percentile(ordered, 50.0), "std": deviation}
    values |= {name_percentile(percentile): find_percentile(ordered, percentile) for percentile in percentiles}
    return {f"{figure}_{name}": value * scale for figure, value in values.items()}


def name_percentile(percentile: float) -> str:
    """The name of a percentile in keys, such as p99 or p99.9."""
    return f"p{percentile:g}"


def find_percentile(ordered: Sequence[float], percentile: float) -> float:
    """A percentile by nearest rank: one of the samples, which are in ascending order, never a value between two."""
    # Multiplied first: 99.9 / 100 is rounded up, and numpy's `inverted_cdf` takes the 1,999th of 2,000 for it.
    return ordered[math.ceil(len(ordered) * percentile / 100) - 1]


Ending: TypeAlias = tuple[Foretold, float]
"""When the end of an answer was expected, and the seconds after which it came."""


def judge(endings: Iterable[Ending]) -> Json:
    """How well ends were foretold; nothing where none was. The error is the median of the distance from the true time,
    as a share of that."""
    ended = [one for one in endings if one[1] > 0]
    if not ended:
        return {}
    return {
        "foretold_answers": len(ended),
        "foretold_error": median(abs(told.median - seconds) / seconds for told, seconds in ended),
        "foretold_inside": sum(told.low <= seconds <= told.high for told, seconds in ended) / len(ended),
    }


NO_GOALS: Mapping[str, float] = MappingProxyType({})


def measure(
    outcomes: Sequence[Outcome],
    duration: float,
    percentiles: Sequence[float] = (),
    metrics: Iterable[str] = tuple(METRICS),
    goals: Mapping[str, float] = NO_GOALS,
) -> Json:
    """The figures of a run that took `duration` seconds; goals are upper bounds in seconds by metric name.

    Throughputs are a second of the duration; the goodput, of requests that met every goal, is null without goals.
    `uncounted` answers had their chunks counted for tokens, since the server told no usage. The best second's tokens
    are counted in whole seconds from the first request.
    """
    completed = [outcome for outcome in outcomes if outcome.completed]
    statuses = Counter(outcome.status for outcome in outcomes)
    read = sum(outcome.prompt_tokens or 0 for outcome in completed)
    made = sum(outcome.output_tokens for outcome in completed)
    found: Json = {
        "duration": duration,
        "completed": len(completed),
        "failed": statuses["failed"],
        "rejected": statuses["rejected"],
        "cancelled": statuses["cancelled"],
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
    }
    for metric in map(METRICS.__getitem__, metrics):
        samples = [sample for outcome in completed for sample in metric.samples(outcome)]
        found |= spread(metric.name, samples, percentiles, metric.unit, 1000.0 if metric.unit == "ms" else 1.0)
    return found


def _median_ttfts(completed: Sequence[Outcome]) -> list[float]:
    turns = range(1, 1 + max((outcome.request.turn for outcome in completed), default=0))
    samples = [[sample for one in completed if one.request.turn == turn for sample in ttft(one)] for turn in turns]
    return [median(found) for found in samples if found] if len(turns) > 1 else []


def meets(outcome: Outcome, goals: Mapping[str, float]) -> bool:
    """Whether a completed request kept within every goal.

    A metric that is not defined for it, such as the TPOT of a single token, does not count against it.
    """
    return all(sample <= bound for name, bound in goals.items() for sample in METRICS[name].samples(outcome))


def measure_fairness(shares: Sequence[float]) -> float | None:
    """Jain's index of shares: 1 when all are equal, 1/n when one is everything; None when all are nothing.

    Source: Jain, Chiu, Hawe, "A Quantitative Measure of Fairness and Discrimination", DEC-TR-301, 1984.
    """
    squares = math.fsum(share * share for share in shares)
    return math.fsum(shares) ** 2 / (len(shares) * squares) if squares else None


def divide(amount: float, duration: float) -> float:
    """A rate; 0 where there was no time."""
    return amount / duration if duration > 0 else 0.0


def _find_peak_tokens(completed: Sequence[Outcome]) -> float:
    """The tokens of the best second; the tokens of a request are spread evenly over its chunks."""
    begin = min((outcome.sent for outcome in completed), default=0.0)
    tokens: dict[int, float] = {}
    for outcome in completed:
        for second, chunks in Counter(int(time - begin) for time in outcome.token_times).items():
            share = outcome.output_tokens * chunks / len(outcome.token_times)
            tokens[second] = tokens.get(second, 0.0) + share
    return max(tokens.values(), default=0.0)


def _find_peak_requests(outcomes: Sequence[Outcome]) -> int:
    """The most requests that were under way at one moment; one that ends then makes room before another begins."""
    changes = sorted([(one.sent, 1) for one in outcomes] + [(one.end, -1) for one in outcomes])
    running = peak = 0
    for _, change in changes:
        running += change
        peak = max(peak, running)
    return peak
