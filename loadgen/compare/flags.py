"""The flags of `lengthwise compare`. Each value is checked by itself; run.py reads them together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from msgspec import Meta

from loadgen.options import Access, Load, Sampling
from loadgen.workload.flags import Workload
from models.options import Natural, Positive, option, split_pair

LEAST_ROUNDS = 3
"""The fewest rounds whose spread means something."""


def parse_url(text: str) -> tuple[str, str]:
    """NAME=URL as a pair; raises ValueError."""
    name, url = split_pair(text)
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{text}: the URL must begin with http:// or https://")
    return name, url


@dataclass(frozen=True, kw_only=True)
class Contestants:
    """The strategies and servers to compare."""

    model: str | None = option(None, "what the started servers serve (default: as `lengthwise serve`)", positional=True)
    strategies: tuple[str, ...] = option(
        (),
        "start `lengthwise serve` with each of these in turn; one may come twice, to see how far equals differ",
        commas=True,
        metavar="A,B,...",
    )
    urls: tuple[tuple[str, str], ...] = option(
        (), "servers that run already, ours or others", parse=parse_url, commas=True, metavar="NAME=URL,..."
    )
    serve_args: str = option(
        "", 'flags for every started server, after an equals sign: --serve-args="--max-num-seqs 8 --recompute"'
    )
    baseline: str | None = option(
        None, "contestant that the others are compared with (default: the first)", metavar="NAME"
    )
    ready_check_timeout_sec: Positive = option(600.0, "how long a server may take to start", metavar="SECONDS")


@dataclass(frozen=True, kw_only=True)
class RoundLoad(Load):
    """The load of every contestant in every round."""

    rounds: Annotated[int, Meta(ge=LEAST_ROUNDS)] = option(
        LEAST_ROUNDS, f"times that each contestant plays; at least {LEAST_ROUNDS}"
    )
    request_rates: tuple[Positive, ...] | None = option(
        None,
        "requests per second, one run each: 1,2,4,inf (default: the workload's own times, else all at once)",
        commas=True,
        infinite=True,
        metavar="LIST",
    )
    burstinesses: tuple[Positive, ...] = option(
        (1.0,),
        "each with every rate: 1 is a Poisson process, less is burstier, inf is a metronome",
        commas=True,
        infinite=True,
        metavar="LIST",
    )
    num_warmups: Natural = option(4, "requests before each contestant's run, which are not measured")


@dataclass(frozen=True, kw_only=True)
class OtherServers(Access):
    """How to ask the servers of --urls."""

    ask_model: str | None = option(
        None, "model to ask for (default: the first that each lists)", flag="--model", metavar="NAME"
    )


@dataclass(frozen=True, kw_only=True)
class Report:
    """Where the report goes."""

    output: Path | None = option(None, "where report.html and report.json go (default: compare-DATE)", metavar="FOLDER")


@dataclass(frozen=True, kw_only=True)
class CompareFlags(Contestants, RoundLoad, Sampling, OtherServers):
    """All flags that say what is compared, and under which load."""


GROUPS: Mapping[str, type] = MappingProxyType(
    {
        "contestants": Contestants,
        "load": RoundLoad,
        "requests": Sampling,
        "servers of --urls": OtherServers,
        "result": Report,
        "workload": Workload,
    }
)
