"""The flags of `lengthwise simulate`; without numpy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from loadgen.workload.requests import Workload
from models.options import Count, Natural, NonNegative, Positive, option
from scheduler.options import Scheduling

DEFAULT_STRATEGIES = ("vs", "baton-pd")
VALIDATED_STRATEGIES = ("vs", "magnus", "scls", "baton-pd", "lengthwise")


def parse_prediction(text: str) -> object:
    """Raises ValueError."""
    from loadgen.simulate.prediction import read_prediction  # numpy, which --help can do without

    return read_prediction(text)


@dataclass(frozen=True, kw_only=True)
class SimulatedMachine:
    """The machine that is simulated."""

    cost: str = option("a100-llama2-13b-hf", metavar="NAME")
    """how fast executors are: v100-chatglm-6b, a100-llama2-13b-hf, a100-llama2-13b-ds or ssjf, by the papers;
    cpu-smollm2-135m, two cores of a CPU; a100-8b or h100-8b, by data sheets; a profile's file; or `profile`, the
    latest of this machine"""
    profile: bool = option(True)
    """whether the scheduler knows from the start how fast executors are; else it learns that from their steps"""
    nodes: Count = option(1, "whole servers of that kind, behind a router")
    router: Literal["work", "pow2", "round-robin"] = option("work")
    """to which node a request goes; work: where it is expected to be done first, by reports every second; pow2:
    of two drawn by chance to the one with fewer requests; round-robin: to one after another"""
    workers: Count | None = option(None, "executors of a node (default: the preset's, else 1)")
    capacity_tokens: Count | None = option(None, "tokens of KV cache that each holds (default: the preset's)")
    max_num_seqs: Count | None = option(None, "rows that each runs at once (default: the preset's, else 32)")
    max_model_len: Count | None = option(None)
    """longest prompt plus answer; unless --max-input-len or --max-output-len is given, longer answers end there and
    longer prompts are left out (default: the preset's, else the capacity)"""
    prefix_cache_tokens: Natural = option(0, "tokens of prompts whose KV cache is kept in host memory")
    max_num_batched_tokens: Count | None = option(None)
    """prompt cells to read at a time (default: a whole group's, up to 8192)"""


@dataclass(frozen=True, kw_only=True)
class SimulatedScheduling(Scheduling):
    """The scheduler's options, and which strategies run with them."""

    strategies: tuple[str, ...] | None = option(
        None,
        f"strategies of `lengthwise serve` (default: {','.join(DEFAULT_STRATEGIES)}; with --validate "
        f"{','.join(VALIDATED_STRATEGIES)})",
        commas=True,
        metavar="A,B,...",
    )
    prediction: Any = option("noisy:0.3", parse=parse_prediction, metavar="HOW")
    """predicted lengths for strategies that ask for them: none; oracle, the true ones; noisy:SIGMA, with log-normal
    errors of that standard deviation; inverted, the longest said to be the shortest; tenfold, ten times too long or a
    tenth; or file:PATH, a length a line, one for each request in order of arrival"""


@dataclass(frozen=True, kw_only=True)
class SimulatedLoad:
    """When requests arrive."""

    rate: Positive | None = option(None, "requests a second (default: a trace's own times, else 20)", metavar="RPS")
    burstiness: Positive = option(1.0, "1 is Poisson, less is burstier")
    duration: Positive = option(120.0, "seconds of arrivals", metavar="S")
    turns: Count = option(1, "requests that make a conversation; only the first of them arrives at a time of its own")
    think_time: NonNegative = option(0.0, "how long after an answer the next turn comes", metavar="SECONDS")
    programs: Natural = option(0)
    """runs of agents that come within --duration, beside the requests where --rate is given: a median of 43 turns, 4 %
    of a prompt new, most pauses below a second, as published"""
    follow_turns: bool = option(False)
    """play a trace's turns of one conversation one after another, with its pauses: qwen-bailian's by parent_chat_id,
    mooncake's by hash_ids"""
    seed: Natural = option(0, "seed of lengths and arrivals")


@dataclass(frozen=True, kw_only=True)
class SimulatedResult:
    """The figures to show, the files that they are written to, and the values of flags that are swept."""

    all: bool = option(False, "show all figures, not only those that matter most")
    save_result: Path | None = option(None, "write figures and all requests as JSON; for one seed, not with --sweep")
    sweep: tuple[str, ...] = option((), metavar="NAME=VALUES")
    """simulate at each of these values of a flag, FIRST:LAST:STEP or parted by commas, such as rate=0.5:1.5:0.1;
    noise=0,0.3 varies σ of --prediction; with several, at every combination"""
    seeds: Count | None = option(None)
    """seeds at each point: --seed and those after it (default: 5 with --sweep unless it sweeps seed, else 1)"""
    csv: Path | None = option(None, "write the figures, a line a strategy, seed and combination of swept values")
    report: Path | None = option(None)
    """write a page with plots over the first swept flag, and which strategies no other beats, as HTML"""


@dataclass(frozen=True, kw_only=True)
class LoadFlags(SimulatedLoad, Workload):
    """The flags that say which requests come, and when."""


@dataclass(frozen=True, kw_only=True)
class SimulateFlags(SimulatedMachine, SimulatedScheduling, LoadFlags, SimulatedResult):
    """All flags of the command, those of a validation apart."""

    @property
    def chosen(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.strategies or DEFAULT_STRATEGIES))


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The comparison with the real engine."""

    validate: str | None = option(None, nargs="?", const="", metavar="MODEL")
    """play one trace on the real engine and in the simulator with this machine's profile, and say how far apart they
    are at the speed of that run; the exit code is 1 when a mean is more than 5 % off, or a p99 more than 10 %. The
    engine's settings come from the environment, as for `lengthwise serve`, and from the flags above that mean the same;
    not --cost"""
    rhos: tuple[float, ...] = option((0.5, 0.9, 1.0, 1.3), commas=True, metavar="N,N,...")
    """with --validate and without --rate: loads, as shares of what each strategy serves when all requests come at
    once"""
    quick: bool = option(False, "with --validate: a shorter trace")
    num_requests: Count | None = option(None, "with --validate and without --rate: requests of each load")


@dataclass(frozen=True, kw_only=True)
class ValidateFlags(SimulateFlags, Validation):
    """All flags of the command with `--validate`."""
