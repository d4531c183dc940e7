"""This engine and transformers' `generate` take turns on the same rows, which all come at once."""

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor
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


@dataclass(slots=True)
class Lengthwise:
    """This engine in this thread, with a slot a row."""

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


@dataclass(frozen=True, slots=True)
class Generate:
    """transformers' `generate` on one static batch of equal lengths."""

    network: PreTrainedModel
    clock: Clock = time.perf_counter

    @torch.inference_mode()
    def run(self, rows: Sequence[RowSpec]) -> BenchTurn:
        begin, times = self.clock(), list[float]()

        def tick(tokens: Tensor, scores: Tensor, **_: object) -> Tensor:
            times.append(self.clock())
            return torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)

        tokens = torch.tensor([row.prompt for row in rows], device=self.network.device)
        output: Tensor = self.network.generate(  # type: ignore[operator]
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=rows[0].sampling.max_tokens,
            eos_token_id=None,
            pad_token_id=0,
            stopping_criteria=[tick],
            do_sample=False,
        )
        steps = tuple(after - before for before, after in pairwise(times))
        return BenchTurn(self.clock() - begin, steps, (output.shape[1] - tokens.shape[1],) * len(rows))


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
