"""The result of a run as a JSON object: the keys of `vllm bench serve`, and some of our own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from loadgen.bench.accuracy import Accuracy
from loadgen.bench.distribution import Distribution
from loadgen.bench.measures import Figures
from loadgen.bench.metrics import METRICS, itl, ttft
from loadgen.client.lag import ClientLoad
from loadgen.client.outcome import Outcome
from loadgen.load.load import Run
from loadgen.result_file import Json


def figures_json(figures: Figures) -> Json:
    """All figures under their flat names, such as `p99_ttft_ms`; null where there was nothing to measure."""
    plain: Json = asdict(figures)
    del plain["distributions"]
    del plain["foretold"]
    plain |= accuracy_json(figures.foretold)
    del plain["ttft_by_turn"]
    plain["median_ttft_by_turn_ms"] = [1000 * seconds for seconds in figures.ttft_by_turn]
    for name, spread in figures.distributions.items():
        plain |= spread_json(name, spread, METRICS[name].unit, METRICS[name].scale)
    return plain


def spread_json(name: str, spread: Distribution | None, unit: str = "ms", scale: float = 1000.0) -> Json:
    """A distribution under names such as `p99_ttft_ms`; `scale` units are a second."""
    name = f"{name}_{unit}" if unit else name
    if spread is None:
        return {f"{figure}_{name}": None for figure in ("mean", "median", "std")}
    values = {"mean": spread.mean, "median": spread.median, "std": spread.std}
    values |= {name_percentile(percentile): value for percentile, value in spread.percentiles.items()}
    return {f"{figure}_{name}": value * scale for figure, value in values.items()}


def accuracy_json(accuracy: Accuracy | None) -> Json:
    """How well ends were foretold, under names such as `foretold_error`; nothing where none was."""
    return {} if accuracy is None else {f"foretold_{name}": value for name, value in asdict(accuracy).items()}


def name_percentile(percentile: float) -> str:
    """The name of a percentile in keys, such as p99 or p99.9."""
    return f"p{percentile:g}"


def client_json(load: ClientLoad) -> Json:
    """The load on the load generator itself during the run."""
    return {
        "client_cpu_percent": load.cpu * 100,
        "client_loop_lag_mean_ms": load.mean_lag * 1000,
        "client_loop_lag_p99_ms": load.p99_lag * 1000,
        "client_loop_lag_max_ms": load.max_lag * 1000,
        "client_warning": load.warning,
    }


def run_json(run: Run) -> Json:
    """How many requests were planned and did not end, and whether the run was interrupted."""
    unfinished = run.planned - len(run.outcomes)
    return {"num_prompts": run.planned, "interrupted": run.interrupted, "unfinished": unfinished}


def details_json(outcomes: Sequence[Outcome]) -> Json:
    """Lists with an entry per request, in the order of the schedule; times in seconds after the start."""
    return {
        "statuses": [one.status for one in outcomes],
        "labels": [one.label for one in outcomes],
        "turns": [one.turn for one in outcomes],
        "input_lens": [one.prompt_tokens or 0 for one in outcomes],
        "cached_lens": [one.cached_tokens for one in outcomes],
        "foretold": [None if one.foretold is None else asdict(one.foretold) for one in outcomes],
        "output_lens": [one.output_tokens if one.completed else 0 for one in outcomes],
        "ttfts": [next(iter(ttft(one)), 0.0) for one in outcomes],
        "itls": [itl(one) for one in outcomes],
        "latencies": [one.end - one.sent for one in outcomes],
        "scheduled_times": [one.scheduled for one in outcomes],
        "start_times": [one.sent for one in outcomes],
        "queue_times": [one.sent - one.scheduled for one in outcomes],
        "generated_texts": [one.text for one in outcomes],
        "errors": [one.failure.message if one.failure else "" for one in outcomes],
    }
