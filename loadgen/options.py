"""Flags of `lengthwise bench`, named as in `vllm bench serve`, and of `lengthwise compare`."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from loadgen.bench.measures import DEFAULT_METRICS, GOODPUT_METRICS, METRICS
from loadgen.workload.requests import Workload
from models.options import Count, Natural, NonNegative, Positive, Share, option, split_pair


@dataclass(frozen=True, kw_only=True)
class AccessFlags:
    """The headers that let a request in."""

    header: tuple[tuple[str, str], ...] = option((), parse=split_pair, nargs="*", metavar="KEY=VALUE", secret=True)
    """sent along with each request"""
    api_key: str | None = option(None, "sent as a bearer token (default: $OPENAI_API_KEY)", metavar="KEY", secret=True)

    def headers(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        key = self.api_key or environ.get("OPENAI_API_KEY")
        return ({"Authorization": f"Bearer {key}"} if key else {}) | dict(self.header)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The sampling parameters of every request."""

    ignore_eos: bool = option(False, "generate on to the length that was asked for")
    temperature: NonNegative = option(0.0, "0 takes the likeliest token")
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = option(None, "nucleus sampling")
    top_k: Annotated[int, Meta(ge=-1)] | None = option(None, "sample among the N likeliest tokens")
    min_p: Share | None = option(None, "least probability, as a share of the likeliest token's")
    extra_body: dict[str, Any] | None = option(None, "further fields of every request's body")

    def fields(self) -> dict[str, object]:
        named = {name: getattr(self, name) for name in ("temperature", "top_p", "top_k", "min_p")}
        named["ignore_eos"] = self.ignore_eos or None
        return {name: value for name, value in named.items() if value is not None} | (self.extra_body or {})


@dataclass(frozen=True, kw_only=True)
class RequestFlags:
    """The number of requests, and how they are sent."""

    num_prompts: Count = option(100, "requests of a run")
    seed: Natural = option(0, "seed of prompts, arrivals and cancellations")
    max_concurrency: Count | None = option(None, "requests that may be under way at a time")
    num_warmups: Natural = option(1, "requests before, which are not measured")
    timeout: Positive = option(600.0, "give a request up when nothing came for so long", metavar="SECONDS")


def parse_goal(text: str) -> tuple[str, float]:
    """NAME:MILLISECONDS as (metric, seconds); raises ValueError."""
    name, _, bound = text.partition(":")
    try:
        seconds = float(bound) / 1000
    except ValueError:
        seconds = math.nan
    if name not in GOODPUT_METRICS or not 0 <= seconds < math.inf:
        raise ValueError(f"{text!r} is not NAME:MILLISECONDS with a name of {', '.join(GOODPUT_METRICS)}")
    return name, seconds


@dataclass(frozen=True, kw_only=True)
class Server(AccessFlags):
    """The server to measure."""

    base_url: str | None = option(None, "where the server listens (default: http://HOST:PORT)", metavar="URL")
    host: str = option("127.0.0.1", "host of the server")
    port: Count = option(8000, "port of the server")
    endpoint: str | None = option(None, metavar="PATH")
    """path of the API (default: the one of chats or completions, as prompts need)"""
    model: str | None = option(None, "model to ask for (default: the first that the server lists)", metavar="NAME")

    @property
    def url(self) -> str:
        return self.base_url or f"http://{self.host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class Arriving:
    """When requests are sent, and when clients leave."""

    request_rate: Positive | None = option(None, metavar="RPS", infinite=True)
    """requests per second, or inf for all at once (default: the workload's own times, else inf)"""
    burstiness: Positive = option(1.0, infinite=True)
    """gaps follow Gamma(shape=N, scale=1/(RPS*N)): 1 is a Poisson process, less is burstier, inf is a metronome"""
    turns: Count = option(1, "requests that make a conversation: each is sent after the answer to the one before")
    think_time: NonNegative = option(0.0, "how long after that answer", metavar="SECONDS")
    cancel_rate: Share = option(0.0, "share of the requests whose client leaves, 0 to 1", metavar="SHARE")
    cancel_delay: NonNegative = option(1.0, "how long after sending such a client leaves", metavar="SECONDS")


@dataclass(frozen=True, kw_only=True)
class ResultFlags:
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
    metadata: tuple[tuple[str, str], ...] = option((), parse=split_pair, nargs="*", metavar="KEY=VALUE")
    """noted in the file"""


@dataclass(frozen=True, kw_only=True)
class BenchFlags(Server, RequestFlags, Arriving, Sampling, ResultFlags, Workload):
    """All flags of the command."""


LEAST_ROUNDS = 3  # whose spread means something


def parse_url(text: str) -> tuple[str, str]:
    """NAME=URL; raises ValueError."""
    name, url = split_pair(text)
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{text}: the URL must begin with http:// or https://")
    return name, url


@dataclass(frozen=True, kw_only=True)
class Contestants:
    """The strategies and servers to compare."""

    model: str | None = option(None, "what the started servers serve (default: as `lengthwise serve`)", positional=True)
    strategies: tuple[str, ...] = option((), commas=True, metavar="A,B,...")
    """start `lengthwise serve` with each of these in turn; one may come twice, to see how far equals differ"""
    urls: tuple[tuple[str, str], ...] = option((), parse=parse_url, commas=True, metavar="NAME=URL,...")
    """servers that run already, ours or others"""
    serve_args: str = option(
        "", 'flags for every started server, after an equals sign: --serve-args="--max-num-seqs 8 --recompute"'
    )
    ready_check_timeout_sec: Positive = option(600.0, "how long a server may take to start", metavar="SECONDS")


@dataclass(frozen=True, kw_only=True)
class RoundLoad(RequestFlags):
    """The load of every contestant in every round."""

    rounds: Annotated[int, Meta(ge=LEAST_ROUNDS)] = option(
        LEAST_ROUNDS, f"times that each contestant plays; at least {LEAST_ROUNDS}"
    )
    request_rates: tuple[Positive, ...] | None = option(None, commas=True, infinite=True, metavar="LIST")
    """requests per second, one run each: 1,2,4,inf (default: the workload's own times, else all at once)"""
    burstinesses: tuple[Positive, ...] = option((1.0,), commas=True, infinite=True, metavar="LIST")
    """each with every rate: 1 is a Poisson process, less is burstier, inf is a metronome"""
    num_warmups: Natural = option(4, "requests before each contestant's run, which are not measured")


@dataclass(frozen=True, kw_only=True)
class OtherServers(AccessFlags):
    """How to ask the servers of --urls."""

    ask_model: str | None = option(None, flag="--model", metavar="NAME")
    """model to ask for (default: the first that each lists)"""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Where the report goes."""

    output: Path | None = option(None, "where report.html and report.json go (default: compare-DATE)", metavar="FOLDER")


@dataclass(frozen=True, kw_only=True)
class CompareFlags(Contestants, RoundLoad, Sampling, OtherServers, Report, Workload):
    """All flags of the command."""
