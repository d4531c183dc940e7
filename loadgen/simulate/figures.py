"""A simulation's figures under `bench`'s names."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from engine.simulated.machine import Cost
from loadgen.bench.measures import divide, judge, judge_promises, measure_runs, spread
from loadgen.simulate.simulation import Served, Simulation
from models.errors import UserError

PERCENTILES = (50.0, 95.0, 99.0, 100.0)

Figures: TypeAlias = dict[str, Any]  # such as `p99_jct_ms`, `mean_normalized_latency_s`, `request_throughput`


def measure_latencies(requests: Sequence[Served], cost: Cost | None = None) -> Figures:
    """Latencies of completed requests and throughput; slowdowns where costs are known. Raises UserError without any."""
    if not (done := [one for one in requests if one.completed]):
        raise UserError("no request was completed, so there are no latencies")
    jct = [one.end - one.arrival for one in done]
    tokens = [max(1, one.output_length) for one in done]
    ttft = [one.first_token - one.arrival for one in done]
    tpot = [(one.end - one.first_token) / max(1, count - 1) for one, count in zip(done, tokens, strict=True)]
    normalized = [seconds / count for seconds, count in zip(jct, tokens, strict=True)]
    found: Figures = {
        "request_throughput": divide(len(done), max(one.end for one in done) - min(one.arrival for one in done)),
        **spread("jct_ms", jct, PERCENTILES),
        **spread("ttft_ms", ttft, PERCENTILES),
        **spread("tpot_ms", tpot, PERCENTILES),
        **spread("normalized_latency_s", normalized, PERCENTILES),
        **judge_promises((one.promised, one.end - one.arrival) for one in done if one.promised is not None),
    }
    if cost is not None:
        found |= spread("slowdown", [measure_slowdown(one, cost) for one in done], PERCENTILES)
    return found


def measure_slowdown(one: Served, cost: Cost) -> float:
    """Latency over that alone on an idle machine."""
    alone = cost.prefill(1, one.input_length) + cost.decode(1, one.input_length, max(0, one.output_length - 1))
    return (one.end - one.arrival) / alone


def measure_simulation(simulation: Simulation, cost: Cost | None = None) -> Figures:
    """Latencies are null without completed requests; seconds by default. Batch sizes count ended rows in slots; pad,
    invalid and slices are means of a request; `completion_std`: executors' ends (SCLS, 3.2).
    """
    requests, workers, duration = simulation.requests, simulation.workers, simulation.duration
    done = [one for one in requests if one.completed]
    decode = sum(worker.decode for worker in workers)
    latencies = measure_latencies(done, cost) if done else spread("jct_ms", ()) | spread("ttft_ms", ())
    return latencies | {
        "duration": duration,
        "completed": len(done),
        "failed": len(requests) - len(done),
        "request_throughput": divide(len(done), duration),
        "output_throughput": divide(sum(one.output_length for one in done), duration),
        "mean_batch_size": sum(worker.row_decode for worker in workers) / decode if decode else 0.0,
        "pad_tokens": sum(worker.tally.pad for worker in workers) / len(requests),
        "invalid_tokens": sum(worker.tally.invalid for worker in workers) / len(requests),
        "slices": sum(one.runs for one in requests) / len(requests),
        "completion_std": float(np.std([worker.completion for worker in workers])),
        **measure_runs(done),
        **judge((one.foretold, one.end - one.arrival) for one in done if one.foretold),
    }
