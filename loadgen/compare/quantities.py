"""The quantities by which contestants are compared: key in a result, name, unit and better direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Better: TypeAlias = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity that every run has a figure of."""

    key: str
    title: str
    short: str
    """A short title for axes and narrow tables."""
    unit: str
    better: Better | None = None
    """The direction that is better; None where neither is by itself."""
    scale: float = 1.0
    """The factor from the stored figure to the unit."""
    judged: bool = True
    """Whether a verdict is given on it."""
    only_completed: bool = False
    """Whether only completed requests are measured, so that dropping requests makes it look better."""

    @property
    def label(self) -> str:
        return f"{self.title} ({self.unit})" if self.unit else self.title

    @property
    def axis(self) -> str:
        return f"{self.short} ({self.unit})" if self.unit else self.short


def _make_latency(
    key: str, title: str, short: str, unit: str = "s", scale: float = 0.001, *, judged: bool = True
) -> Quantity:
    return Quantity(key, title, short, unit, "lower", scale, judged, only_completed=True)


QUANTITIES = (
    Quantity("request_throughput", "Request throughput", "throughput", "requests/s", "higher"),
    Quantity("output_throughput", "Output token throughput", "throughput", "tokens/s", "higher"),
    _make_latency("mean_jct_ms", "Mean job completion time", "mean JCT"),
    _make_latency("median_jct_ms", "Median job completion time", "median JCT"),
    _make_latency("p95_jct_ms", "95th percentile of job completion time", "p95 JCT"),
    _make_latency("p99_jct_ms", "99th percentile of job completion time", "p99 JCT"),
    _make_latency("mean_ttft_ms", "Mean time to first token", "mean TTFT"),
    _make_latency("median_ttft_ms", "Median time to first token", "median TTFT", judged=False),
    _make_latency("p95_ttft_ms", "95th percentile of time to first token", "p95 TTFT", judged=False),
    _make_latency("p99_ttft_ms", "99th percentile of time to first token", "p99 TTFT"),
    _make_latency("mean_normalized_latency_s", "Mean normalized latency", "JCT per token", "s", 1.0),
    _make_latency(
        "p95_normalized_latency_s",
        "95th percentile of normalized latency",
        "p95 JCT per token",
        "s",
        1.0,
        judged=False,
    ),
    Quantity("jain_fairness_index", "Jain fairness index", "Jain index", "", "higher", only_completed=True),
    Quantity("server_mean_batch_rows", "Mean batch size", "batch size", "rows", judged=False),
    Quantity("server_pad_tokens", "Pad tokens", "pad tokens", "", "lower"),
    Quantity("server_invalid_tokens", "Invalid tokens", "invalid tokens", "", "lower"),
    Quantity(
        "server_load_imbalance_s",
        "Load imbalance: standard deviation of executors' busy times",
        "load imbalance",
        "s",
        "lower",
    ),
    Quantity("server_mean_prediction_error_tokens", "Mean error of predicted lengths", "error", "tokens", judged=False),
)
"""Quantities in the order of the report; those that begin with `server_` are the server's own."""

COUNTS = ("completed", "failed", "rejected")


def find_quantity(key: str) -> Quantity:
    """The quantity of a key."""
    return next(one for one in QUANTITIES if one.key == key)
