"""The heart: whatever happens around a row, it generates what it would generate alone (design 1.4)."""

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.forward.batch import RunningBatch
from engine.kv.arena import KvArena
from engine.lifecycle import Lifecycle
from engine.messages import NEVER, BatchPolicy, Cause, Entry, FinishReason, Overflow, RowId, RowSpec
from engine.row import Choice
from engine.sampling.params import SamplingParams
from engine.torch_device import TorchDevice
from models.catalog.catalog import DEFAULT_MODEL, Catalog
from models.network.attention import reads_whole_pitch
from models.network.loader import LoadedModel, load
from models.text import Text
from tests.calls import note_calls
from tests.engine.invariants import check
from tests.engine.rows import default_folder, device_of, greedy, lifecycle_of, read, spec, tokens_of
from tests.reference import Reference
from tests.tiny import Net


class Schedule:
    """A random but repeatable run: arrivals in groups, some cancelled later, until all is done."""

    def __init__(self, seed: int, model: LoadedModel, text: Text) -> None:
        self.rng = random.Random(seed)
        self.model = model
        capacity, rows = [(300, 12), (1500, 8), (4000, 32)][seed % 3]
        batch = RunningBatch(model, KvArena(model.kv, capacity, max_rows=rows), headroom=self.rng.choice([0, 32]))
        self.lifecycle = Lifecycle(TorchDevice(model, text, batch, max_prefill_tokens=self.rng.choice([8, 64, 512])))
        self.terms: list[BatchPolicy] = [BatchPolicy()]
        self.returned: list[RowId] = []
        self.causes: set[Cause] = set()
        self.specs: dict[RowId, RowSpec] = {}
        self.tokens: dict[RowId, list[int]] = {}
        self.ended: dict[RowId, FinishReason] = {}
        self.cancelled: set[RowId] = set()

    def run(self, rows: int) -> None:
        while len(self.specs) < rows or not self.lifecycle.table.idle or self.returned:
            if len(self.specs) < rows and self.rng.random() < 0.4:
                self.admit([self.arrive() for _ in range(self.rng.randint(1, 4))])
            if self.returned and self.rng.random() < 0.5:
                some = self.rng.sample(self.returned, self.rng.randint(1, len(self.returned)))
                self.returned = [row_id for row_id in self.returned if row_id not in some]
                self.admit([self.specs[row_id] for row_id in some])
            if self.specs and self.rng.random() < 0.05:
                self.cancel(self.rng.choice(list(self.specs)))
            self.turn()

    def admit(self, specs: list[RowSpec]) -> None:
        self.lifecycle.table.admit(specs, self.rng.choice(self.terms))

    def arrive(self) -> RowSpec:
        rng, row_id = self.rng, len(self.specs)
        prompt = tuple(rng.randrange(3, self.model.vocab_size) for _ in range(rng.randint(1, rng.choice([4, 20, 100]))))
        params = greedy(rng.randint(1, rng.choice([10, 90])), ignore_eos=rng.random() < 0.5)
        if rng.random() < 0.5:
            params = replace(
                params,
                temperature=rng.choice([0.5, 1.0]),
                seed=rng.getrandbits(64),
                top_p=rng.choice([1.0, 0.9]),
                top_k=rng.choice([0, 20]),
                min_p=rng.choice([0.0, 0.02]),
                repetition_penalty=rng.choice([1.0, 1.2]),
                frequency_penalty=rng.choice([0.0, 0.5]),
                min_tokens=rng.choice([0, 1]),
            )
        self.specs[row_id] = RowSpec(row_id, prompt, params, priority=rng.choice([0, 0, 0, 1, -1]))
        self.tokens[row_id] = []
        return self.specs[row_id]

    def cancel(self, row_id: RowId) -> None:
        if row_id not in self.ended:
            self.cancelled.add(row_id)
            self.returned = [other for other in self.returned if other != row_id]
        self.lifecycle.table.cancel([row_id])

    def turn(self) -> None:
        for update in self.lifecycle.turn():
            assert update.error is None and update.row_id not in self.cancelled | self.ended.keys()
            self.tokens[update.row_id] += update.token_ids
            if update.finish_reason is not None:
                self.ended[update.row_id] = update.finish_reason
        check(self.lifecycle.table)
        for handed_back in self.lifecycle.table.take_handed_back():
            self.causes.add(handed_back.cause)
            assert not set(handed_back.row_ids) & (self.ended.keys() | self.cancelled | set(self.returned))
            self.returned += handed_back.row_ids
        left = sorted(self.specs.keys() - self.ended)
        if left and len(self.terms) > 1 and self.rng.random() < 0.1:
            self.lifecycle.table.pause(self.rng.sample(left, 1))


@pytest.mark.parametrize("seed", range(6))
def test_each_row_of_a_random_schedule_is_as_in_transformers(seed: int, net: Net, tiny_reference: Reference) -> None:
    schedule = Schedule(seed, *net)
    schedule.run(rows=30)
    assert_as_if_alone(schedule, tiny_reference)


MIXED = [
    [BatchPolicy(), BatchPolicy(kept_from=NEVER)],
    [BatchPolicy(entry=Entry.SHAPE), BatchPolicy(entry=Entry.SHAPE, kept_from=NEVER)],
    [BatchPolicy(), BatchPolicy(entry=Entry.SHAPE)],
    [BatchPolicy(), BatchPolicy(entry=Entry.EMBED_BLOCKING)],
    [BatchPolicy(closed=True), BatchPolicy(closed=True, iterations=7, prefill_together=False)],
    [BatchPolicy(closed=True, iterations=5, kept_from=12), BatchPolicy(closed=True, overflow=Overflow.SPLIT)],
    [BatchPolicy(), BatchPolicy(entry=Entry.SHAPE, kept_from=NEVER), BatchPolicy(closed=True, iterations=3)],
]


@pytest.mark.parametrize(("seed", "terms"), [(place % 3, terms) for place, terms in enumerate(MIXED)])
def test_the_same_on_whatever_terms_rows_are_admitted_handed_back_and_admitted_again(
    seed: int, terms: list[BatchPolicy], net: Net, tiny_reference: Reference
) -> None:
    schedule = Schedule(seed, *net)
    schedule.terms = terms
    schedule.run(rows=25)
    assert_as_if_alone(schedule, tiny_reference)
    assert schedule.causes, "rows came back"
    assert device_of(schedule.lifecycle).batch.arena.live == 0


def assert_as_if_alone(schedule: Schedule, tiny_reference: Reference) -> None:
    assert schedule.ended.keys() | schedule.cancelled == schedule.specs.keys()
    for row_id, one in schedule.specs.items():
        alone = tiny_reference.generate(one)
        found = schedule.tokens[row_id]
        assert found == (alone[: len(found)] if row_id in schedule.cancelled else alone), f"row {row_id}"


def test_a_schedule_exercises_every_kind_of_surgery(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would prove little if no row were ever swapped_out, or no window ever slid or re-shaped."""

    def slide(arena: KvArena, rows: int, columns: int, to: int, more: int = 0) -> str:
        side = "right" if to > arena.start else "left"
        return f"slide {side}" if (rows, columns) == (arena.rows, arena.columns) else "another view"

    def reshape(arena: KvArena, rows: int, columns: int) -> str:
        return "more rows" if rows > arena.rows else "more columns"

    seen = note_calls(monkeypatch, KvArena, "_lay_out", slide)
    note_calls(monkeypatch, KvArena, "reshape", reshape, into=seen)
    note_calls(monkeypatch, KvArena, "extract", lambda *_: "extract", into=seen)
    for seed in range(6):
        Schedule(seed, *net).run(rows=30)
    assert {*seen} - {"another view"} == {"slide right", "slide left", "more rows", "more columns", "extract"}


# In bfloat16 answers may differ where two tokens are nearly as likely; the logits must not, beyond rounding


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("longest", [40, 140])
def test_teacher_forced_logits_beside_neighbours_are_as_near_to_the_truth_as_transformers_alone(
    tiny_folder: Path, tiny_text: Text, dtype: torch.dtype, longest: int
) -> None:
    """Rows are fed the same tokens either way, whatever their logits say, so that errors cannot hide in the choice. The
    truth is what transformers computes in float64."""
    model = load(tiny_folder, dtype=str(dtype).removeprefix("torch."))
    theirs = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=dtype)
    truth = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float64)
    specs = [spec(row_id, length) for row_id, length in enumerate((longest, 7, 19))]
    forced = [[(11 * row_id + 5 * step) % 300 for step in range(12)] for row_id in range(3)]
    batch = RunningBatch(model, KvArena(model.kv, 600, max_rows=3))
    errors: list[tuple[float, float]] = []
    with torch.inference_mode():
        for one in specs:
            done = read(model, tiny_text, [one], chunk=16)[one.row_id]
            done.row.accept(Choice(forced[one.row_id][0]))
            batch.insert(done.row, done.kv)
        for step in range(1, 12):
            logits = batch.step()
            assert reads_whole_pitch(3, batch.arena.pitch) or longest == 40, "many cells are read by another kernel"
            for place, row in enumerate(list(batch.rows)):
                tokens = torch.tensor([[*row.prompt, *forced[row.row_id][:step]]])
                exact = truth(input_ids=tokens).logits[0, -1]
                found = logits[place], theirs(input_ids=tokens).logits[0, -1]
                ours, plain = (float((one - exact).norm() / exact.norm()) for one in found)
                errors.append((ours, plain))
                row.accept(Choice(forced[row.row_id][step]))
    ours, plain = (mean(error[place] for error in errors) for place in (0, 1))
    assert ours < 1.3 * plain < (0.05 if dtype is torch.bfloat16 else 1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("all_cores")
def test_the_default_model_begins_the_answer_to_the_readme_as_in_float32() -> None:
    """Its two likeliest tokens are 0.1 apart, less than a step of bfloat16 at their size."""
    folder = default_folder()
    model, text = load(folder, dtype="bfloat16"), Text.load(folder)
    tokens = text.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    with torch.inference_mode():
        logits = model.network.read(torch.tensor([tokens]))[0, -1]
    assert text.token_text(int(logits.argmax())) == "The"


# A real model on real prompts

TASKS = Path(__file__).parents[3].parent / "shared" / "data" / "tasks"
ROWS, LONGEST, TOKENS = 32, 96, 4


def prompts(text: Text) -> list[tuple[int, ...]]:
    """Short prompts, as many from each task."""
    chosen: list[tuple[int, ...]] = []
    for path in itertools.cycle(sorted(TASKS.glob("*.jsonl"))):
        lines = path.read_text(encoding="utf-8").splitlines()
        for line in lines[len(chosen) :: 7]:
            task = json.loads(line)
            ids = text.encode_chat([{"role": "user", "content": f"{task['instruction']}\n\n{task['input']}"}])
            if len(ids) <= LONGEST:
                chosen.append(tuple(ids))
                break
        if len(chosen) == ROWS:
            return chosen
    raise AssertionError("unreachable: the cycle is endless")


@pytest.mark.skipif(not TASKS.is_dir(), reason=f"no task prompts beside the project ({TASKS.parent.name}/tasks)")
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("all_cores")
def test_32_real_prompts_at_once_each_get_the_answer_they_would_get_alone() -> None:
    folder = Catalog().resolve(DEFAULT_MODEL)
    model, text = load(folder, dtype="float32"), Text.load(folder)
    params = SamplingParams(max_tokens=TOKENS, temperature=0)
    specs = [RowSpec(row_id, prompt, params) for row_id, prompt in enumerate(prompts(text))]
    lifecycle = lifecycle_of(model, text, capacity=24 * (LONGEST + TOKENS), rows=ROWS, chunk=256)
    for first in range(0, ROWS, 5):
        lifecycle.table.admit(specs[first : first + 5])
    updates = [update for _ in iter(lambda: lifecycle.table.idle, True) for update in lifecycle.turn()]
    answers, reference = tokens_of(updates), Reference(folder)
    for one in specs:
        assert answers[one.row_id] == reference.generate(one), text.decode(one.prompt)
