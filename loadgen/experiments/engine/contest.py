"""This engine and transformers' `generate` take turns on the same rows. A few more rows than slots come in order, as in
a server.
"""

import random
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from engine.device import similar_lengths
from engine.lifecycle import Lifecycle
from engine.messages import RowId, RowSpec
from engine.row import Row
from engine.sampling.params import SamplingParams
from loadgen.experiments.engine.setup import CHUNK_TOKENS, Clock, Subject
from loadgen.turns import take_turns
from models.errors import UserError

Shape = tuple[int, int]  # tokens of prompt and output


@dataclass(frozen=True, slots=True)
class BenchTurn:
    """One run over some rows."""

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


def shape_of(row: RowSpec) -> Shape:
    """Tokens of prompt and output."""
    return len(row.prompt), row.sampling.max_tokens


def draw_ragged(rng: random.Random, count: int, shortest: int, longest: int) -> list[Shape]:
    """Uniform and distinct. Raises UserError when there are too few."""
    lengths = range(shortest, longest + 1)
    if len(lengths) < count:
        lack = f"there are {len(lengths)} lengths from {shortest} to {longest}, not {count} distinct ones"
        raise UserError(f"{lack}: lower --num-requests, or widen --min-len and --max-len")
    return list(zip(rng.sample(lengths, count), rng.sample(lengths, count), strict=True))


def longest(shapes: Sequence[Shape]) -> int:
    """Columns for any row, with the longest prompt and the longest output."""
    return sum(map(max, zip(*shapes, strict=True)))


@dataclass(slots=True)
class Lengthwise:
    """This engine in this thread, `slots` rows at a time."""

    subject: Subject
    slots: int
    clock: Clock = time.perf_counter
    _lifecycle: Lifecycle[Row] | None = None  # made for the first run's rows

    @torch.inference_mode()
    def run(self, rows: Sequence[RowSpec]) -> BenchTurn:
        if self._lifecycle is None:
            self._lifecycle = self.subject.lifecycle(self.slots, longest([shape_of(row) for row in rows]))
        threads = torch.get_num_threads()
        try:
            if self.subject.model.reads_exactly:
                torch.set_num_threads(1)  # as in the server
            return self._serve(self._lifecycle, rows)
        finally:
            torch.set_num_threads(threads)

    def _serve(self, lifecycle: Lifecycle[Row], rows: Sequence[RowSpec]) -> BenchTurn:
        waiting, room = deque(rows), self.slots + max(1, self.slots // 8)
        steps, made, begin = list[float](), Counter[RowId](), self.clock()
        last = begin
        while waiting or not lifecycle.table.idle:
            free = min(len(waiting), room - len(lifecycle.table.rows))
            joining = [waiting.popleft() for _ in range(free)]
            for group in similar_lengths(joining, lambda row: len(row.prompt), CHUNK_TOKENS):
                lifecycle.table.admit(group)
            updates, now = lifecycle.turn(), self.clock()
            if lifecycle.table.tally.generated and not lifecycle.table.tally.prompt:
                steps.append(now - last)
            last = now
            for update in updates:
                if update.error is not None:
                    raise UserError(f"a row failed: {update.error}")
                made[update.row_id] += len(update.token_ids)
        return BenchTurn(last - begin, tuple(steps), tuple(made[row.row_id] for row in rows))


@dataclass(frozen=True, slots=True)
class Generate:
    """transformers' `generate` on static batches of `slots` rows."""

    network: PreTrainedModel
    slots: int
    clock: Clock = time.perf_counter

    @torch.inference_mode()
    def run(self, rows: Sequence[RowSpec]) -> BenchTurn:
        begin = self.clock()
        steps: list[float] = []
        lengths: list[int] = []
        for first in range(0, len(rows), self.slots):
            batch = rows[first : first + self.slots]
            times: list[float] = []
            made = self._generate(batch, times)
            steps += [after - before for before, after in pairwise(times)]
            lengths += [min(made, row.sampling.max_tokens) for row in batch]
        return BenchTurn(self.clock() - begin, tuple(steps), tuple(lengths))

    def _generate(self, rows: Sequence[RowSpec], times: list[float]) -> int:
        """Tokens of each row; notes when each step ends."""

        def tick(tokens: Tensor, scores: Tensor, **_: object) -> Tensor:
            times.append(self.clock())
            return torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)

        prompts = [torch.tensor(row.prompt, device=self.network.device) for row in rows]
        tokens, mask = (
            pad_sequence(columns, batch_first=True, padding_side="left")
            for columns in (prompts, [torch.ones_like(prompt) for prompt in prompts])
        )
        output: Tensor = self.network.generate(  # type: ignore[operator]
            tokens,
            attention_mask=mask,
            max_new_tokens=max(row.sampling.max_tokens for row in rows),
            eos_token_id=None,
            pad_token_id=0,
            stopping_criteria=[tick],
            do_sample=False,
        )
        return output.shape[1] - tokens.shape[1]


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
