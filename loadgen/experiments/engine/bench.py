"""`lengthwise bench engine`: this engine and transformers' `generate` take turns on the same rows of one length, which
all come at once.
"""

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel

from engine.device import similar_lengths
from engine.lifecycle import Lifecycle
from engine.messages import RowId, RowSpec
from engine.row import Row
from engine.sampling.params import SamplingParams
from loadgen.console import table_console
from loadgen.experiments.engine.setup import CHUNK_TOKENS, Clock, Subject, describe_device, load_beside, load_subject
from loadgen.experiments.options import ROWS, EngineBench
from loadgen.result_file import require_writable, save_json
from loadgen.turns import take_turns
from models.errors import UserError
from models.progress import Bars

Shape = tuple[int, int]  # tokens of prompt and output


@dataclass(frozen=True, slots=True)
class BenchTurn:
    seconds: float  # from the first prompt to the last token
    steps: tuple[float, ...]  # from token to token while no prompt was read
    lengths: tuple[int, ...]  # tokens generated and kept, by row


def draw_rows(rng: random.Random, vocab: int, shapes: Iterable[Shape]) -> list[RowSpec]:
    """Random prompts of likely tokens; outputs ignore end tokens."""
    rows = []
    for place, (inputs, outputs) in enumerate(shapes):
        prompt = tuple(rng.randrange(vocab) for _ in range(inputs))
        rows.append(RowSpec(place, prompt, SamplingParams(max_tokens=outputs, temperature=0.0, ignore_eos=True)))
    return rows


@dataclass(slots=True)
class Lengthwise:
    subject: Subject
    clock: Clock = time.perf_counter
    _lifecycle: Lifecycle[Row] | None = None  # made for the first run's rows

    @torch.inference_mode()
    def run(self, rows: Sequence[RowSpec]) -> BenchTurn:
        if self._lifecycle is None:
            columns = max(len(row.prompt) for row in rows) + max(row.sampling.max_tokens for row in rows)
            self._lifecycle = self.subject.lifecycle(len(rows), columns)
        threads = torch.get_num_threads()
        try:
            if self.subject.model.reads_exactly:
                torch.set_num_threads(1)  # as in the server
            return self._serve(self._lifecycle, rows)
        finally:
            torch.set_num_threads(threads)

    def _serve(self, lifecycle: Lifecycle[Row], rows: Sequence[RowSpec]) -> BenchTurn:
        steps, made, begin = list[float](), Counter[RowId](), self.clock()
        last = begin
        for group in similar_lengths(rows, lambda row: len(row.prompt), CHUNK_TOKENS):
            lifecycle.table.admit(group)
        while not lifecycle.table.idle:
            updates, now = lifecycle.turn(), self.clock()
            if lifecycle.table.tally.generated and not lifecycle.table.tally.prompt:
                steps.append(now - last)
            last = now
            for update in updates:
                if update.error is not None:
                    raise UserError(f"a row failed: {update.error}")
                made[update.row_id] += len(update.token_ids)
        return BenchTurn(last - begin, tuple(steps), tuple(made[row.row_id] for row in rows))


@torch.inference_mode()
def generate(network: PreTrainedModel, rows: Sequence[RowSpec], clock: Clock = time.perf_counter) -> BenchTurn:
    """By transformers, on one static batch of equal lengths."""
    begin, times = clock(), list[float]()

    def tick(tokens: torch.Tensor, scores: torch.Tensor, **_: object) -> torch.Tensor:
        times.append(clock())
        return torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)

    tokens = torch.tensor([row.prompt for row in rows], device=network.device)
    output: torch.Tensor = network.generate(  # type: ignore[operator]
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=rows[0].sampling.max_tokens,
        eos_token_id=None,
        pad_token_id=0,
        stopping_criteria=[tick],
        do_sample=False,
    )
    steps = tuple(after - before for before, after in pairwise(times))
    return BenchTurn(clock() - begin, steps, (output.shape[1] - tokens.shape[1],) * len(rows))


Draw = Callable[[int], Sequence[RowSpec]]  # round -> its rows: equal lengths, other prompts
Run = Callable[[Sequence[RowSpec]], BenchTurn]  # may raise anything


@dataclass(slots=True)
class Standing:
    rates: list[float] = field(default_factory=list)  # tokens/s of each counted round
    steps: list[float] = field(default_factory=list)  # median seconds of a step, by round
    trouble: str | None = None  # why it cannot run here

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def play(self, run: Run, rows: Sequence[RowSpec], *, counts: bool) -> None:
        """Book a run; failures and wrong lengths are trouble."""
        try:
            turn = run(rows)
            wrong = sum(made != row.sampling.max_tokens for made, row in zip(turn.lengths, rows, strict=True))
            if wrong:
                raise RuntimeError(f"{wrong} of {len(rows)} answers have another length than was asked for")
        except Exception as error:
            self.trouble = f"{type(error).__name__}: {error}"
            return
        if counts:
            self.rates.append(sum(turn.lengths) / turn.seconds)
            self.steps.append(statistics.median(turn.steps or (0.0,)))


def contest(
    engines: Mapping[str, Run], draw: Draw, rounds: int, watch: Callable[[], None] = lambda: None
) -> dict[str, Standing]:
    """A warm-up round, then `rounds` that count, each beginning with another engine; failing engines drop out."""
    standings = {name: Standing() for name in engines}
    for number, name in take_turns([*engines], rounds + 1):
        if standings[name].trouble is None:
            standings[name].play(engines[name], draw(number), counts=number > 0)
        watch()
    return standings


OURS, THEIRS = "lengthwise", "generate"
HEADS = ("rows", "", "tokens/s (min-max)", "to generate", "ms a step", "to floor")
SETTING = ("model", "rounds", "seed", "input_len", "output_len")

Json = dict[str, Any]


def show(found: Json, console: Console) -> None:
    floor, setting = found["floor"], found["setting"]
    told = f"memory bandwidth {floor['bandwidth'] / 1e9:.1f} GB/s, weights {floor['weight_bytes'] / 2**20:.0f} MiB"
    console.print(f"{told}, KV cache {floor['kv_bytes_per_token'] / 1024:.1f} KiB a token", highlight=False)
    title = (
        f"output tokens/s, prefill included, {setting['input_len']} in / {setting['output_len']} out; "
        f"{setting['model']}, {setting['dtype']}, {setting['device']}, {setting['threads']} threads"
    )
    table = Table(*HEADS, title=title)
    for part in found["parts"]:
        rows, least = part["rows"], part["floor_step"]
        for standing in part["standings"]:
            table.add_row(str(rows), standing["name"], *_cells(standing, least))
        table.add_row(str(rows), "floor", f"{rows / least:.1f}", "", f"{least * 1000:.1f}", "1.00")
        table.add_section()
    console.print(table)
    for name, trouble in find_troubles(found).items():
        console.print(f"{name} cannot run here: {trouble}", markup=False, highlight=False)


def _cells(one: Json, least: float) -> tuple[str, ...]:
    rates, ratio = one["rates"], one["ratio_to_generate"]
    if not rates:
        return ("cannot run here", *"---")
    rate = f"{statistics.median(rates):.1f} ({min(rates):.1f}-{max(rates):.1f})"
    step, beside = statistics.median(one["steps"]), "-" if ratio is None else f"{ratio:.2f}"
    return rate, beside, f"{step * 1000:.1f}", f"{step / least:.2f}"


def find_troubles(found: Json) -> dict[str, str]:
    standings = [one for part in found["parts"] for one in part["standings"]]
    return {one["name"]: one["trouble"] for one in standings if one["trouble"]}


def run_engine(asked: EngineBench) -> int:
    """Returns the exit code. Raises UserError, also when this engine could not run."""
    require_writable(asked.save_result)
    found = run_bench(asked)
    show(found, table_console())
    save_json(asked.save_result, found)
    if trouble := find_troubles(found).get(OURS):
        raise UserError(trouble)
    return 0


def run_bench(asked: EngineBench) -> Json:
    """Raises UserError."""
    with Bars() as bars:
        bars.begin(f"loading {asked.model}")
        subject = load_subject(asked)
        subjects = {OURS: subject} | {f"{OURS} {kind}": load_beside(subject, kind) for kind in asked.beside}
        columns, most = asked.input_len + asked.output_len, subject.model.context_length
        if columns > most:
            raise UserError(f"{asked.model} reads {most} tokens, not {columns}: ask for shorter ones")
        plain = subject.load_plain()
        bars.begin("memory bandwidth")
        floor = subject.floor
        parts = []
        for rows in asked.rows or ROWS:
            engines: dict[str, Run] = {called: Lengthwise(one).run for called, one in subjects.items()}
            engines[THEIRS] = partial(generate, plain)
            bars.begin(f"{rows} rows", len(engines) * (asked.rounds + 1))
            draw = partial(_draw, asked.seed, subject.vocab, [(asked.input_len, asked.output_len)] * rows)
            found = contest(engines, draw, asked.rounds, bars.advance)
            base = found[THEIRS]
            ratios = {name: one.rate / base.rate if one.rates and base.rates else None for name, one in found.items()}
            standings = [
                {"name": name, **asdict(one), "ratio_to_generate": ratios[name]} for name, one in found.items()
            ]
            step = floor.step(rows, asked.input_len, asked.output_len)
            parts.append({"rows": rows, "floor_step": step, "standings": standings})
        setting = {name: getattr(asked, name) for name in SETTING} | {"dtype": subject.weights}
        return {"setting": setting | describe_device(subject.model.device), "floor": asdict(floor), "parts": parts}


def _draw(seed: int, vocab: int, shapes: list[Shape], number: int) -> list[RowSpec]:
    return draw_rows(random.Random(f"{seed} {number}"), vocab, shapes)
