"""Repeatable loads of grid and arena, and cells: machine, load, prediction."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.simulated.machine import Machine
from loadgen.simulate.load import task_lengths
from loadgen.workload.lengths import Cut, RequestLengths, load_trace
from models.errors import UserError
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.presets import PRESETS
from scheduler.strategy import STRATEGIES, Strategy

LONGEST = 1024

Counts = NDArray[np.int64]


def _draw(random: np.random.Generator, count: int, middle: float, sigma: float) -> Counts:
    return _clip(random.lognormal(math.log(middle), sigma, count))


def _bimodal(random: np.random.Generator, count: int) -> tuple[Counts, Counts]:
    """Nine of ten answers have 20 to 40 tokens, the others 600 to 900."""
    long = random.random(count) < 0.1
    answers = np.where(long, random.integers(600, 901, count), random.integers(20, 41, count))
    return random.integers(20, 201, count), answers


def draw_clients(random: np.random.Generator, count: int) -> Counts:
    """Of 30, the first most; drawn before their requests by `servegen`."""
    shares = np.arange(1, 31) ** -1.2
    return random.choice(30, count, p=shares / shares.sum())


def _serve_gen(random: np.random.Generator, count: int) -> tuple[Counts, Counts]:
    """ServeGen: a few of 30 clients send most; log-normal prompts, exponential answers."""
    client = draw_clients(random, count)
    prompts, answers = random.lognormal(math.log(250), 0.8, 30), random.lognormal(math.log(120), 1.1, 30)
    tail = np.where(random.random(count) < 0.1, random.pareto(1.5, count) + 1, 1.0)
    return (_clip(random.lognormal(np.log(prompts[client]), 0.5) * tail), _clip(random.exponential(answers[client])))


def _clip(lengths: NDArray[np.float64]) -> Counts:
    return np.clip(np.rint(lengths), 1, LONGEST).astype(int)


SHAPES: Mapping[str, Callable[[np.random.Generator, int], tuple[Counts, Counts]]] = {
    "log-normal": lambda random, count: (_draw(random, count, 150, 1.0), _draw(random, count, 80, 1.4)),
    "bimodal": _bimodal,
    "servegen": _serve_gen,
    # its conversations, cut at LONGEST: answers have some 340 tokens
    "mooncake": lambda random, count: (_draw(random, count, 7000, 1.2), _draw(random, count, 290, 0.6)),
    "narrow": lambda random, count: (random.integers(100, 141, count), random.integers(180, 221, count)),
    "equal": lambda random, count: (np.full(count, 120), np.full(count, 200)),
}
TASKS = "tasks"  # of `lengthwise simulate`

TRACE_STEP = 900.0  # seconds between the seeds' places in a trace

FEWEST = 20  # requests of a trace for a meaningful cell


@cache
def load_lengths(load: str, count: int, seed: int) -> tuple[RequestLengths, ...]:
    """Requests of SHAPES, TASKS or a trace's path, without arrivals. Raises UserError."""
    if load in SHAPES:
        pairs = zip(*SHAPES[load](np.random.default_rng(seed), count), strict=True)
        return tuple(RequestLengths(0.0, int(prompt), int(answer)) for prompt, answer in pairs)
    if load == TASKS:
        return tuple(task_lengths(count, seed, LONGEST))
    begin, whole = TRACE_STEP * seed, load_trace(Path(load), cut=Cut(max_input=LONGEST, max_output=LONGEST))
    found = [one for one in whole if one.arrival >= begin]
    if len(found) < FEWEST:
        lack = f"has {len(found)} answered requests from second {begin:g} on, and {FEWEST} are wanted"
        raise UserError(f"{load}: {lack}: take a longer trace{', or fewer --seeds' * (seed > 0)}")
    return tuple(found[:count])


def check_traces(traces: Sequence[str], count: int, seeds: Sequence[int]) -> None:
    """Raise UserError for a trace that some run could not have."""
    for trace, seed in product(traces, seeds):
        load_lengths(trace, count, seed)


# 8 billion parameters on an H100 by arithmetic: 16 GB of weights and 131 kB of KV a token at 2.7e12 B/s, 1.6e10
# operations a token at 5e14/s
FAST_GPU = Bilinear(p1=3.2e-5, p2=0.0, p3=0.0, p4=0.006, d1=4.9e-8, d2=0.0, d3=0.0, d4=0.006)

H100 = Machine(FAST_GPU, 400_000, 64, 2048)
GRID = ("A100, scarce memory", "A100, scarce slots", "small CPU", "H100")

MACHINES: Mapping[str, Machine] = {
    "A100, scarce memory": replace(PRESETS["a100-llama2-13b-hf"], workers=1, capacity_tokens=32_768),
    "A100, scarce slots": replace(PRESETS["a100-llama2-13b-ds"], workers=1, max_num_seqs=12),
    "small CPU": PRESETS["cpu-smollm2-135m"],
    "H100": H100,
    "H100, 256 slots": replace(H100, max_num_seqs=256),
}  # the last, with slots for nearly all, is the arena's


BASE = "baton-pd"  # FCFS, the baseline
RATES = (0.7, 1.0, 1.3, 1.6)  # ρ: requests, over those that BASE serves
BURSTS = (1.0, 0.02)  # ρ and burstiness, some 50 requests a burst
USUAL = "noisy:0.3"
MISLEADING = ("inverted", "tenfold", "noisy:2")
OTHERS = ("oracle", "noisy:0.7", *MISLEADING)
ALIKE = ("narrow", "equal")  # loads too uniform for predictions
HARD = 1.3  # ρ for other predictions
REQUESTS = 600
OVERLOADS = (100, 3000)  # requests of short and long overloads
OVERLOADED = (("A100, scarce slots", "small CPU"), ("log-normal", "bimodal", TASKS))


@dataclass(frozen=True, slots=True)
class Cell:
    """A load on a machine."""

    machine: str
    load: str  # a built-in name, or a trace's path
    rho: float
    burstiness: float = 1.0
    prediction: str = USUAL
    seed: int = 0
    requests: int = REQUESTS


def list_contenders() -> dict[str, Strategy]:
    """Orders over similar-length prefill groups with continuous batching."""
    names = (BASE, "lengthwise", "fsp", "boost", "uniboost", "hrrn", "srpt", "gittins")
    sjf = replace(STRATEGIES["srpt"], name="sjf", preemption="none")
    return {name: STRATEGIES[name] for name in names} | {sjf.name: sjf}


def all_cells(traces: Sequence[str], seeds: Sequence[int], requests: int = REQUESTS) -> list[Cell]:
    """In a fixed random order, so that a part is a fair sample."""
    cells: list[Cell] = []
    for seed, machine, load in product(seeds, GRID, (*SHAPES, TASKS, *traces)):
        usual = Cell(machine, load, HARD, seed=seed, requests=requests)
        cells += [replace(usual, rho=rho) for rho in RATES]
        cells.append(replace(usual, rho=BURSTS[0], burstiness=BURSTS[1]))
        if load not in ALIKE:
            cells += [replace(usual, prediction=prediction) for prediction in OTHERS]
    for machine, load in product(*OVERLOADED):
        cells += [Cell(machine, load, HARD, seed=seeds[0], requests=count) for count in OVERLOADS if count != requests]
    random.Random(0).shuffle(cells)
    return cells


def group_cells(cells: Sequence[Cell], requests: int = REQUESTS) -> dict[str, list[Cell]]:
    """By whether an order can gain: queue, spread of lengths, prediction."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.load in ALIKE:
            name = "lengths alike"
        elif cell.rho < 1:  # below capacity; a burst has ρ 1
            name = "no queue"
        elif cell.requests in OVERLOADS and cell.requests != requests:
            name = f"an overload of {cell.requests} requests"
        else:
            name = f"a queue, predictions {cell.prediction}"
        groups.setdefault(name, []).append(cell)
    return {name: groups[name] for name in sorted(groups)}


# other weight types do not matter here
ALL = tuple(name for name, one in STRATEGIES.items() if one.quantization is None)


def _joins(one: Strategy) -> bool:
    """Whether it differs from BASE in order only."""
    base = STRATEGIES[BASE]
    return (one.batching, one.refill) == (base.batching, base.refill) and one.memory in (base.memory, "peak")


ORDERS = tuple(name for name, one in STRATEGIES.items() if _joins(one))


WIDE = "H100, 256 slots"
LOADS: Mapping[str, Cell] = {
    "few come": Cell("A100, scarce slots", TASKS, 0.3),
    "as many come as are served": Cell("A100, scarce slots", TASKS, 1.0),
    "too many come": Cell("A100, scarce slots", TASKS, 1.6),
    "scarce memory, heavy tails": Cell("A100, scarce memory", "log-normal", 1.3),
    "a small CPU": Cell("small CPU", "bimodal", 1.3),
    "predictions that mislead": Cell("small CPU", "bimodal", 1.3, prediction="inverted"),
    "predictions ten times off": Cell("small CPU", "bimodal", 1.3, prediction="tenfold"),
    "256 slots": Cell(WIDE, "log-normal", 0.9, requests=5 * REQUESTS // 2),
    "256 slots, too many come": Cell(WIDE, "log-normal", 1.3, requests=5 * REQUESTS // 2),
}  # of the arena; ρ relative to what `baton-pd` serves


def list_players(cell: Cell) -> Sequence[str]:
    """Where predictions mislead or slots abound, only orders that differ."""
    return ORDERS if cell.prediction in MISLEADING or cell.machine == WIDE else ALL


def find_loads(traces: Sequence[str], requests: int = REQUESTS, seed: int = 0) -> Mapping[str, Cell]:
    """Of the arena and traces, with REQUESTS replaced."""
    further = {
        f"{trace}, {name}": replace(LOADS[name], load=trace)
        for trace in traces
        for name in ("as many come as are served", "too many come")
    }
    return {
        name: replace(one, seed=seed, requests=round(one.requests * requests / REQUESTS))
        for name, one in {**LOADS, **further}.items()
    }
