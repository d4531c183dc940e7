"""The figures of requests that were served, by an engine or in a simulation, under the names that `bench` uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from engine.simulated.cost import Cost
from loadgen.bench.measures import Accuracy, Distribution, Ending, judge, summarize
from loadgen.bench.report import accuracy_json, spread_json
from loadgen.result_file import Json
from loadgen.simulate.simulation import Served, Simulation
from models.errors import UserError

PERCENTILES = (50.0, 95.0, 99.0, 100.0)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies of completed requests only, in seconds."""

    jct: Distribution
    ttft: Distribution
    tpot: Distribution  # 0 for an answer of one token
    normalized_latency: Distribution  # JCT per token of the answer
    slowdown: Distribution | None  # JCT over that of the request alone; None where the machine is not known
    throughput: float  # requests a second, from the first arrival to the last answer


def measure_latencies(requests: Sequence[Served], cost: Cost | None = None) -> Latencies:
    """The latencies of requests on a machine with these costs; raises UserError where none was completed."""
    done = [one for one in requests if one.completed]
    if not done:
        raise UserError("no request was completed, so there are no latencies")
    return Latencies(
        jct=_summarize([one.end - one.arrival for one in done]),
        ttft=_summarize([one.first_token - one.arrival for one in done]),
        tpot=_summarize([(one.end - one.first_token) / max(1, one.output_length - 1) for one in done]),
        normalized_latency=_summarize([(one.end - one.arrival) / max(1, one.output_length) for one in done]),
        slowdown=None if cost is None else _summarize([measure_slowdown(one, cost) for one in done]),
        throughput=_rate(len(done), max(one.end for one in done) - min(one.arrival for one in done)),
    )


def measure_slowdown(one: Served, cost: Cost) -> float:
    """How many times as long a request took as it would alone on an idle machine with these costs."""
    alone = cost.prefill(1, one.input_length) + cost.decode(1, one.input_length, max(0, one.output_length - 1))
    return (one.end - one.arrival) / alone


def latencies_json(one: Latencies) -> Json:
    """The figures under flat names, such as `p99_jct_ms`."""
    spreads = {name: spread_json(name, getattr(one, name)) for name in ("jct", "ttft", "tpot")}
    return {
        "request_throughput": one.throughput,
        **{key: value for spread in spreads.values() for key, value in spread.items()},
        **spread_json("normalized_latency", one.normalized_latency, "s", 1.0),
        **({} if one.slowdown is None else spread_json("slowdown", one.slowdown, "", 1.0)),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFigures:
    """The figures of a simulation. Times in seconds; throughputs from the first arrival to the last answer."""

    duration: float
    completed: int
    failed: int
    request_throughput: float
    output_throughput: float
    mean_batch_size: float
    """Rows of an iteration, over the time of all iterations; rows that have ended but keep their slot count."""
    pad_tokens: float
    """Mean of a request; cells of prefills, as SCLS counts them."""
    invalid_tokens: float
    """Mean of a request."""
    slices: float
    """Mean times that a request was given to an executor."""
    completion_std: float
    """Standard deviation of the moments at which the executors finished their last work: load imbalance (SCLS, 3.2)."""
    latencies: Latencies | None  # None where no request was completed
    foretold: Accuracy | None  # how well the ends of answers were foretold

    @property
    def jct(self) -> Distribution | None:
        return None if self.latencies is None else self.latencies.jct


def figures(simulation: Simulation, cost: Cost | None = None) -> SimulatedFigures:
    """The figures of a simulation; pad and invalid tokens are shared out over all of its requests."""
    requests, workers = simulation.requests, simulation.workers
    done = [one for one in requests if one.completed]
    decode = sum(worker.decode for worker in workers)
    endings = [Ending(one.foretold, one.end - one.arrival, one.output_length) for one in done if one.foretold]
    return SimulatedFigures(
        duration=simulation.duration,
        completed=len(done),
        failed=len(requests) - len(done),
        request_throughput=_rate(len(done), simulation.duration),
        output_throughput=_rate(sum(one.output_length for one in done), simulation.duration),
        mean_batch_size=sum(worker.row_decode for worker in workers) / decode if decode else 0.0,
        pad_tokens=sum(worker.tally.pad for worker in workers) / len(requests),
        invalid_tokens=sum(worker.tally.invalid for worker in workers) / len(requests),
        slices=sum(one.runs for one in requests) / len(requests),
        completion_std=float(np.std([worker.completion for worker in workers])),
        latencies=measure_latencies(done, cost) if done else None,
        foretold=judge(endings),
    )


def figures_json(one: SimulatedFigures) -> Json:
    """All figures under flat names, such as `p99_jct_ms`; null where nothing completed."""
    plain = {name: value for name, value in asdict(one).items() if name not in ("latencies", "foretold")}
    empty = spread_json("jct", None) | spread_json("ttft", None)
    measured = empty if one.latencies is None else latencies_json(one.latencies)
    return plain | accuracy_json(one.foretold) | {key: value for key, value in measured.items() if key not in plain}


def _summarize(samples: Sequence[float]) -> Distribution:
    found = summarize(samples, PERCENTILES)
    assert found is not None, "there are samples"
    return found


def _rate(count: int, duration: float) -> float:
    return count / duration if duration > 0 else 0.0
