"""Figures of one run from a server's /metrics: the difference between before and after it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from loadgen.client.client import Target

Samples: TypeAlias = Mapping[tuple[str, str], float]
"""A sample's name and its `executor` label -> its value, summed over all other labels."""

NOTHING: Samples = MappingProxyType({})
TIMEOUT = aiohttp.ClientTimeout(total=10)
BATCH_ROWS = "lengthwise:batch_rows"
ERROR = "lengthwise:predicted_length_error_tokens"
COUNTERS = MappingProxyType(
    {
        "server_pad_tokens": "lengthwise:pad_tokens_total",
        "server_invalid_tokens": "lengthwise:invalid_tokens_total",
    }
)
BUSY = ("lengthwise:executor_busy_seconds_total", "lengthwise:executor_busy_seconds")


async def scrape(target: Target) -> Samples:
    """The samples that the server tells now; none where it has no /metrics."""
    try:
        async with (
            aiohttp.ClientSession(timeout=TIMEOUT, headers=dict(target.headers)) as session,
            session.get(target.url("/metrics")) as response,
        ):
            return parse(await response.text()) if response.status == 200 else NOTHING
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return NOTHING


def parse(text: str) -> Samples:
    """Samples of the Prometheus text format. Raises ValueError when it is none."""
    samples: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, sample.labels.get("executor", ""))
            samples[key] = samples.get(key, 0.0) + sample.value
    return samples


def compute_figures(before: Samples, after: Samples) -> dict[str, float]:
    """Figures of what happened between two scrapes, as far as the server tells them."""
    names = {name for name, _ in after}
    found = {
        key: sum(_find_rises(before, after, counter).values()) for key, counter in COUNTERS.items() if counter in names
    }
    for key, histogram in (
        ("server_mean_batch_rows", BATCH_ROWS),
        ("server_mean_prediction_error_tokens", ERROR),
    ):
        count = sum(_find_rises(before, after, f"{histogram}_count").values())
        if count > 0:
            found[key] = sum(_find_rises(before, after, f"{histogram}_sum").values()) / count
    busy = next((changes for name in BUSY if len(changes := _find_rises(before, after, name)) > 1), None)
    if busy is not None:  # one executor alone cannot be out of balance
        found["server_load_imbalance_s"] = statistics.pstdev(busy.values())
    return found


def _find_rises(before: Samples, after: Samples, name: str) -> dict[str, float]:
    """The rise of a counter, by executor."""
    return {
        executor: value - before.get((name, executor), 0.0)
        for (own_name, executor), value in after.items()
        if own_name == name
    }
