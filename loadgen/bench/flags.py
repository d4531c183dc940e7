"""The flags of `lengthwise bench`, named as those of `vllm bench serve` where they mean the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from msgspec import Meta

from loadgen.bench.measures import DEFAULT_METRICS, GOODPUT_METRICS, METRICS
from loadgen.options import Access, Load, Sampling
from loadgen.workload.flags import Workload
from models.options import Count, NonNegative, Positive, Share, option, split_pair


def parse_goal(text: str) -> tuple[str, float]:
    """NAME:MILLISECONDS as a metric and seconds; raises ValueError."""
    name, _, bound = text.partition(":")
    try:
        seconds = float(bound) / 1000
    except ValueError:
        seconds = math.nan
    if name not in GOODPUT_METRICS or not 0 <= seconds < math.inf:
        raise ValueError(f"{text!r} is not NAME:MILLISECONDS with a name of {', '.join(GOODPUT_METRICS)}")
    return name, seconds


@dataclass(frozen=True, kw_only=True)
class Server(Access):
    """The server to measure."""

    base_url: str | None = option(None, "where the server listens (default: http://HOST:PORT)", metavar="URL")
    host: str = option("127.0.0.1", "host of the server")
    port: Count = option(8000, "port of the server")
    endpoint: str | None = option(
        None, "path of the API (default: the one of chats or completions, as prompts need)", metavar="PATH"
    )
    model: str | None = option(None, "model to ask for (default: the first that the server lists)", metavar="NAME")

    @property
    def url(self) -> str:
        """Where the server listens."""
        return self.base_url or f"http://{self.host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class Arriving:
    """When requests are sent, and when clients leave."""

    request_rate: Positive | None = option(
        None,
        "requests per second, or inf for all at once (default: the workload's own times, else inf)",
        metavar="RPS",
        infinite=True,
    )
    burstiness: Positive = option(
        1.0,
        "gaps follow Gamma(shape=N, scale=1/(RPS*N)): 1 is a Poisson process, less is burstier, inf is a metronome",
        infinite=True,
    )
    turns: Count = option(1, "requests that make a conversation: each is sent after the answer to the one before")
    think_time: NonNegative = option(0.0, "how long after that answer", metavar="SECONDS")
    cancel_rate: Share = option(0.0, "share of the requests whose client leaves, 0 to 1", metavar="SHARE")
    cancel_delay: NonNegative = option(1.0, "how long after sending such a client leaves", metavar="SECONDS")


@dataclass(frozen=True, kw_only=True)
class Result:
    """The figures to report, and the file that keeps them."""

    percentile_metrics: tuple[str, ...] = option(
        DEFAULT_METRICS,
        f"what to report, of {','.join(METRICS)}",
        choices=lambda: METRICS,
        commas=True,
        metavar="NAMES",
    )
    metric_percentiles: tuple[Annotated[float, Meta(gt=0, le=100)], ...] = option(
        (90.0, 95.0, 99.0), "percentiles to report; the median comes anyway", commas=True, metavar="LIST"
    )
    goodput: tuple[tuple[str, float], ...] = option(
        (),
        f"count requests that keep all of these bounds, of {', '.join(GOODPUT_METRICS)}, such as ttft:500 tpot:50",
        parse=parse_goal,
        nargs="+",
        metavar="NAME:MS",
    )
    request_id_prefix: str | None = option(None, "begins every x-request-id (default: bench- and a random word)")
    save_result: bool = option(False, "write a JSON file")
    save_detailed: bool = option(False, "... with times and texts of every request")
    result_dir: Path | None = option(None, "where to write it (default: here)", metavar="FOLDER")
    result_filename: str | None = option(None, "its name (default: label, rate, model and date)", metavar="NAME")
    label: str = option("lengthwise", "begins the file's name, stands in it")
    metadata: tuple[tuple[str, str], ...] = option(
        (), "noted in the file", parse=split_pair, nargs="*", metavar="KEY=VALUE"
    )


@dataclass(frozen=True, kw_only=True)
class BenchFlags(Server, Load, Arriving, Sampling, Result, Workload):
    """All flags of the command."""


GROUPS: Mapping[str, type] = MappingProxyType(
    {"server": Server, "load": Load, "arrivals": Arriving, "requests": Sampling, "result": Result, "workload": Workload}
)
