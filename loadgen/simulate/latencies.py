"""The latencies of requests that were served, by an engine or in a simulation, under the names that `bench` uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.bench.distribution import Distribution, summarize
from loadgen.bench.result import spread_json
from loadgen.result_file import Json
from loadgen.simulate.simulation import Served
from models.errors import UserError

PERCENTILES = (99.0, 100.0)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies in seconds, of completed requests only."""

    jct: Distribution
    ttft: Distribution
    tpot: Distribution
    """0 for an answer of one token."""
    throughput: float
    """Requests a second, from the first arrival to the last answer."""


def measure_latencies(requests: Sequence[Served]) -> Latencies:
    """The latencies of these requests; raises UserError where none was completed."""
    done = [one for one in requests if one.completed]
    if not done:
        raise UserError("no request was completed, so there are no latencies")
    lasted = max(one.end for one in done) - min(one.arrival for one in done)
    return Latencies(
        jct=_summarize([one.end - one.arrival for one in done]),
        ttft=_summarize([one.first_token - one.arrival for one in done]),
        tpot=_summarize([(one.end - one.first_token) / max(1, one.output_length - 1) for one in done]),
        throughput=len(done) / lasted if lasted > 0 else 0.0,
    )


def _summarize(samples: Sequence[float]) -> Distribution:
    found = summarize(samples, PERCENTILES)
    assert found is not None, "there are samples"
    return found


def latencies_json(one: Latencies) -> Json:
    """The figures under flat names, such as `p99_jct_ms`."""
    spreads = spread_json("jct", one.jct) | spread_json("ttft", one.ttft) | spread_json("tpot", one.tpot)
    return {"request_throughput": one.throughput, **spreads}
