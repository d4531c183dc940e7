"""Carries out `lengthwise bench engine`: loads, lets this engine and transformers' `generate` take turns at one part
after another, so that what else the machine does troubles both alike, and prints a table. This engine's rows come
in the order of the jobs, a few more than have slots, so that prompts are read ahead as in a server.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from engine.device import similar_lengths
from engine.messages import RowId, RowSpec
from engine.pipeline import Pipeline
from engine.sampling.params import SamplingParams
from loadgen.console import table_console
from loadgen.experiments.engine.setup import (
    CHUNK_TOKENS,
    Floor,
    Subject,
    describe_machine,
    load_beside,
    load_plain,
    load_subject,
    measure_bandwidth,
    torch_threads,
    weight_bytes,
)
from loadgen.experiments.options import ROWS, EngineBench
from loadgen.result_file import require_writable, save_json
from models.errors import UserError
from models.progress import Bars

Clock: TypeAlias = Callable[[], float]

Shape: TypeAlias = tuple[int, int]
"""Tokens of a job's prompt and of its output."""


@dataclass(frozen=True, slots=True)
class Job:
    """One sequence: its prompt as token ids, and how many tokens follow it, even past an end token."""

    prompt: tuple[int, ...]
    output_len: int

    @property
    def shape(self) -> Shape:
        return len(self.prompt), self.output_len


@dataclass(frozen=True, slots=True)
class Turn:
    """The outcome of one run over some jobs."""

    seconds: float
    """Seconds from the first prompt to the last token."""
    steps: tuple[float, ...]
    """Seconds from token to token while nothing was read, each step once or once a row."""
    lengths: tuple[int, ...]
    """Tokens generated for each job and kept, in the jobs' order."""


def draw_jobs(rng: random.Random, vocab: int, shapes: Iterable[Shape]) -> list[Job]:
    """Jobs with random prompts, by the tokens of prompt and output of each."""
    return [Job(tuple(rng.randrange(vocab) for _ in range(inputs)), outputs) for inputs, outputs in shapes]


def draw_ragged_shapes(rng: random.Random, count: int, shortest: int, longest: int) -> list[Shape]:
    """Tokens of prompts, which all differ, and of outputs, which all differ too, uniform in `shortest` to `longest`.

    Raises UserError when there are fewer lengths than jobs.
    """
    lengths = range(shortest, longest + 1)
    if len(lengths) < count:
        raise UserError(
            f"there are {len(lengths)} lengths from {shortest} to {longest}, not {count} distinct ones: "
            "lower --num-requests, or widen --min-len and --max-len"
        )
    return list(zip(rng.sample(lengths, count), rng.sample(lengths, count), strict=True))


def longest(shapes: Sequence[Shape]) -> int:
    """Columns that hold any of the jobs, also when the longest prompt gets the longest output."""
    return sum(map(max, zip(*shapes, strict=True)))


class Runner(Protocol):
    """Generates for jobs."""

    name: str

    def run(self, jobs: Sequence[Job]) -> Turn:
        """Generate for all jobs. Raises anything that keeps it from running here."""
        ...


@dataclass(slots=True)
class Lengthwise:
    """This engine: a pipeline in this thread that `slots` rows run on at a time."""

    subject: Subject
    slots: int
    clock: Clock = time.perf_counter
    name: str = "lengthwise"
    _pipeline: Pipeline | None = None  # made in the first run, whose jobs say how large

    @torch.inference_mode()
    def run(self, jobs: Sequence[Job]) -> Turn:
        if self._pipeline is None:
            self._pipeline = self.subject.pipeline(self.slots, longest([job.shape for job in jobs]))
        pipeline, waiting, room = self._pipeline, deque(_make_rows(jobs)), self.slots + max(1, self.slots // 8)
        steps, made, begin = list[float](), Counter[RowId](), self.clock()
        last = begin
        with torch_threads(1 if self.subject.model.reads_exactly else torch.get_num_threads()):  # as the server has it
            while waiting or not pipeline.idle:
                free = min(len(waiting), room - pipeline.row_count)
                for group in similar_lengths([waiting.popleft() for _ in range(free)], _prompt_length, CHUNK_TOKENS):
                    pipeline.admit(group)
                updates, now = pipeline.turn(), self.clock()
                if pipeline.tally.generated and not pipeline.tally.prompt:
                    steps.append(now - last)
                last = now
                for update in updates:
                    if update.error is not None:
                        raise UserError(f"a row failed: {update.error}")
                    made[update.row_id] += len(update.token_ids)
        return Turn(last - begin, tuple(steps), tuple(made[place] for place in range(len(jobs))))


def _prompt_length(row: RowSpec) -> int:
    return len(row.prompt)


def _make_rows(jobs: Sequence[Job]) -> Iterator[RowSpec]:
    """Rows as long as each job says, of the likeliest tokens."""
    most = max(job.output_len for job in jobs)
    for place, job in enumerate(jobs):
        yield RowSpec(place, job.prompt, SamplingParams(most, temperature=0.0, replay_tokens=job.output_len))


@dataclass(slots=True)
class Generate:
    """transformers' `generate` on static batches of `slots` jobs, each until its longest row ends."""

    network: PreTrainedModel
    slots: int
    clock: Clock = time.perf_counter
    name: str = "generate"

    @torch.inference_mode()
    def run(self, jobs: Sequence[Job]) -> Turn:
        begin = self.clock()
        steps: list[float] = []
        lengths: list[int] = []
        for first in range(0, len(jobs), self.slots):
            batch = jobs[first : first + self.slots]
            ticker = _Ticker(self.clock)
            made = self._generate(batch, ticker)
            steps += [after - before for before, after in pairwise(ticker.times)]
            lengths += [min(made, job.output_len) for job in batch]
        return Turn(self.clock() - begin, tuple(steps), tuple(lengths))

    def _generate(self, jobs: Sequence[Job], ticker: _Ticker) -> int:
        """Generate for a batch; returns the number of tokens that each row got."""
        width = max(len(job.prompt) for job in jobs)
        tokens = torch.zeros((len(jobs), width), dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, job in enumerate(jobs):
            tokens[row, width - len(job.prompt) :] = torch.tensor(job.prompt)
            mask[row, width - len(job.prompt) :] = 1
        output: Tensor = self.network.generate(  # type: ignore[operator]
            tokens.to(self.network.device),
            attention_mask=mask.to(self.network.device),
            max_new_tokens=max(job.output_len for job in jobs),
            eos_token_id=None,
            pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([ticker]),
            do_sample=False,
        )
        return output.shape[1] - width


class _Ticker(StoppingCriteria):
    """Reads the clock at every step of `generate`; never ends it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.times: list[float] = []

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: object) -> Tensor:
        self.times.append(self._clock())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


Jobs = Callable[[int], Sequence[Job]]
"""The jobs of a round, by its number; other prompts each time, of the same lengths."""


@dataclass(slots=True)
class Standing:
    """The figures of one runner so far."""

    name: str
    rates: list[float] = field(default_factory=list)
    """Tokens/s of each round that counts: tokens asked for, over all of the time."""
    steps: list[float] = field(default_factory=list)
    """Median seconds of a step, a figure a round."""
    trouble: str | None = None
    """Why it cannot run here, if it cannot."""

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def note(self, jobs: Sequence[Job], turn: Turn, *, counts: bool) -> None:
        """Book a turn. Raises RuntimeError where answers have other lengths than were asked for."""
        wrong = sum(made != job.output_len for made, job in zip(turn.lengths, jobs, strict=True))
        if wrong:
            raise RuntimeError(f"{wrong} of {len(jobs)} answers have another length than was asked for")
        if counts:
            self.rates.append(sum(turn.lengths) / turn.seconds)
            self.steps.append(statistics.median(turn.steps or (0.0,)))


def contest(
    runners: Sequence[Runner], jobs: Jobs, rounds: int, watch: Callable[[], None] = lambda: None
) -> list[Standing]:
    """Play a round that warms up, then `rounds` that count; each begins with another runner.

    A runner that fails says why and is left out from then on.
    """
    standings = [Standing(runner.name) for runner in runners]
    pairs = list(zip(runners, standings, strict=True))
    for number in range(rounds + 1):
        work = jobs(number)
        first = number % len(pairs)
        for runner, standing in (*pairs[first:], *pairs[:first]):
            if standing.trouble is None:
                try:
                    standing.note(work, runner.run(work), counts=number > 0)
                except Exception as error:
                    standing.trouble = f"{type(error).__name__}: {error}"
            watch()
    return standings


OURS = "lengthwise"
MIB = 2**20
HEADS = ("rows", "", "tokens/s (min-max)", "to generate", "ms a step", "to floor")
SETTING = ("model", "rounds", "seed", "input_len", "output_len", "num_requests", "min_len", "max_len", "slots")


Json: TypeAlias = dict[str, Any]


def show(found: Json, console: Console) -> None:
    """Print a table with all parts."""
    floor, setting = found["floor"], found["setting"]
    console.print(
        f"memory bandwidth {floor['bandwidth'] / 1e9:.1f} GB/s, weights {floor['weight_bytes'] / MIB:.0f} MiB, "
        f"K and V {floor['kv_bytes_per_token'] / 1024:.1f} KiB a token",
        highlight=False,
    )
    title = (
        f"output tokens/s, prefill included, {setting['input_len']} in / {setting['output_len']} out; ragged: "
        f"{setting['num_requests']} requests of {setting['min_len']}-{setting['max_len']}; {setting['model']}, "
        f"{setting['dtype']}, {setting['device']}, {setting['threads']} threads"
    )
    table = Table(*HEADS, title=title)
    for part in found["parts"]:
        least = part["floor_step"]
        for standing in part["standings"]:
            table.add_row(part["name"], standing["name"], *_cells(standing, least))
        if least is not None:
            table.add_row(part["name"], "floor", f"{part['slots'] / least:.1f}", "", f"{least * 1000:.1f}", "1.00")
        table.add_section()
    console.print(table)
    for name, trouble in find_troubles(found).items():
        console.print(f"{name} cannot run here: {trouble}", markup=False, highlight=False)


def _cells(one: Json, least: float | None) -> tuple[str, ...]:
    rates, ratio = one["rates"], one["ratio_to_generate"]
    if not rates:
        return ("cannot run here", *"---")
    step = statistics.median(one["steps"])
    return (
        f"{statistics.median(rates):.1f} ({min(rates):.1f}-{max(rates):.1f})",
        "-" if ratio is None else f"{ratio:.2f}",
        f"{step * 1000:.1f}",
        "-" if least is None else f"{step / least:.2f}",
    )


def find_troubles(found: Json) -> dict[str, str]:
    """Reasons that kept an engine from running, by its name."""
    standings = [one for part in found["parts"] for one in part["standings"]]
    return {one["name"]: one["trouble"] for one in standings if one["trouble"]}


def run_engine(asked: EngineBench) -> int:
    """Compare and print; returns the exit code. Raises UserError, also when this engine could not run."""
    require_writable(asked.save_result)
    found = run_bench(asked)
    show(found, table_console())
    save_json(asked.save_result, found)
    if trouble := find_troubles(found).get(OURS):
        raise UserError(trouble)
    return 0


def run_bench(asked: EngineBench) -> Json:
    """Load the model and measure one part after another: seconds, bytes, tokens a second. Raises UserError."""
    with Bars() as bars:
        bars.begin(f"loading {asked.model}")
        subject = load_subject(asked)
        beside = {f"{OURS} {kind}": load_beside(subject, kind) for kind in asked.beside}
        subjects = {OURS: subject} | beside
        planned = _plan_parts(asked)
        for _, _, shapes in planned:
            subject.require_context(longest(shapes))
        plain = load_plain(subject)
        bars.begin("memory bandwidth")
        bandwidth = measure_bandwidth(subject.device)
        floor = Floor(bandwidth, weight_bytes(subject.model.network), subject.model.kv.bytes_per_token)
        parts = []
        for name, slots, shapes in planned:
            runners: list[Runner] = [Lengthwise(one, slots, name=called) for called, one in subjects.items()]
            runners.append(Generate(plain, slots))
            bars.begin(name, len(runners) * (asked.rounds + 1))
            draw = partial(_draw, asked.seed, subject.vocab, shapes)
            *ours, theirs = contest(runners, draw, asked.rounds, bars.advance)
            standings = [
                asdict(one) | {"ratio_to_generate": one.rate / theirs.rate if one.rates and theirs.rates else None}
                for one in (*ours, theirs)
            ]
            step = None if name == "ragged" else floor.step(slots, asked.input_len, asked.output_len)
            parts.append(
                {"name": name.removesuffix(" rows"), "slots": slots, "floor_step": step, "standings": standings}
            )
        setting = {name: getattr(asked, name) for name in SETTING} | {"dtype": subject.weights}
        return {"setting": setting | describe_machine(subject.device), "floor": asdict(floor), "parts": parts}


def _draw(seed: int, vocab: int, shapes: Sequence[Shape], number: int) -> list[Job]:
    """Jobs of a round. Their lengths are those of all rounds, else rounds could not be compared; tokens differ."""
    return draw_jobs(random.Random(f"{seed} {number}"), vocab, shapes)


def _plan_parts(asked: EngineBench) -> list[tuple[str, int, list[Shape]]]:
    """The name of each part, its rows at a time, and the shapes of its jobs."""
    parts = [
        (f"{rows} rows", rows, [(asked.input_len, asked.output_len)] * rows)
        for rows in asked.rows or (() if asked.ragged else ROWS)
    ]
    if asked.ragged:
        shapes = draw_ragged_shapes(random.Random(asked.seed), asked.num_requests, asked.min_len, asked.max_len)
        parts.append(("ragged", asked.slots, shapes))
    return parts
