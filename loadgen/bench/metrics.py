"""The metrics of a completed request, each with its definition. Knows no statistics.

Peers define TPOT differently (some include the first token): here, as in `vllm bench serve`, it excludes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import TypeAlias

from loadgen.client.outcome import Outcome

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

    @property
    def scale(self) -> float:
        """The number of its units in a second."""
        return {"ms": 1000.0, "s": 1.0}[self.unit]


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
