"""From a simulation to its figures, under the names that `lengthwise bench` uses for the same. Knows no table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadgen.bench.accuracy import Accuracy, Ending, judge
from loadgen.bench.distribution import Distribution, summarize
from loadgen.simulate.simulation import Simulation

PERCENTILES = (50.0, 95.0, 99.0, 100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFigures:
    """The figures of a simulation. Times in seconds; throughputs from the first arrival to the last answer."""

    duration: float
    completed: int
    failed: int
    request_throughput: float
    output_throughput: float
    """Tokens of answers."""
    jct: Distribution | None
    """Job completion time of completed requests; None when there are none."""
    ttft: Distribution | None
    """Time to the first token that the client gets."""
    mean_batch_size: float
    """Rows of an iteration, over the time of all iterations; rows that have ended but keep their slot count."""
    pad_tokens: float
    """Mean of a request; cells of prefills, as SCLS counts them."""
    invalid_tokens: float
    """Mean of a request."""
    slices: float
    """Mean times that a request was given to an executor."""
    foretold: Accuracy | None
    """How well the ends of answers were foretold."""
    completion_std: float
    """Standard deviation of the moments at which the executors finished their last work: load imbalance (SCLS, 3.2)."""


def figures(simulation: Simulation) -> SimulatedFigures:
    """The figures of a simulation; pad and invalid tokens are shared out over all of its requests."""
    requests, workers = simulation.requests, simulation.workers
    done = [one for one in requests if one.completed]
    decode = sum(worker.decode for worker in workers)
    duration = simulation.duration
    return SimulatedFigures(
        duration=duration,
        completed=len(done),
        failed=len(requests) - len(done),
        request_throughput=_rate(len(done), duration),
        output_throughput=_rate(sum(one.output_length for one in done), duration),
        jct=summarize([one.end - one.arrival for one in done], PERCENTILES),
        ttft=summarize([one.first_token - one.arrival for one in done], PERCENTILES),
        mean_batch_size=sum(worker.row_decode for worker in workers) / decode if decode else 0.0,
        pad_tokens=sum(worker.tally.pad for worker in workers) / len(requests),
        invalid_tokens=sum(worker.tally.invalid for worker in workers) / len(requests),
        slices=sum(one.runs for one in requests) / len(requests),
        foretold=judge(
            [Ending(one.foretold, one.end - one.arrival, one.output_length) for one in done if one.foretold]
        ),
        completion_std=float(np.std([worker.completion for worker in workers])),
    )


def _rate(count: int, duration: float) -> float:
    return count / duration if duration > 0 else 0.0
