"""In the compiled pass a row computes the same bits whatever is computed with it."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.forward.batch import RunningBatch
from engine.forward.prefill import Prefilled
from engine.kv.arena import KvArena
from engine.kv.prefix_cache import PrefixCache
from engine.kv.row_kv import RowKv
from engine.messages import NEVER, BatchPolicy, RowId
from engine.row import Choice, Row
from models.errors import LoadError
from models.native.library import find_library
from models.network.loader import LoadedModel, load
from models.network.quantization import Kernels
from models.text import Text
from tests.engine.forward.test_parity import MIXED, Schedule
from tests.engine.forward.test_prefix_reuse import Conversations
from tests.engine.rows import answers_of, default_folder, finish, lifecycle_of, read, spec, tokens_of

pytestmark = pytest.mark.skipif(find_library() is None, reason="nothing was compiled for this CPU")

LENGTHS = (40, 7, 65, 1, 128, 19, 64, 100, 3, 130, 12, 33, 2, 90, 71, 5, 27)


@pytest.fixture(scope="module", params=[("bfloat16", "none"), ("float32", "none"), ("bfloat16", "int4")])
def model(tiny_folder: Path, request: pytest.FixtureRequest) -> LoadedModel:
    torch.set_grad_enabled(False)
    dtype, quantization = request.param
    try:
        return load(tiny_folder, dtype=dtype, quantization=quantization, kernels=Kernels.NATIVE)
    except LoadError as error:
        pytest.skip(str(error))


def step(batch: RunningBatch) -> dict[RowId, Tensor]:
    """Logits of a step by row, each of which then takes a token that does not depend on them."""
    found = {row.row_id: logits for row, logits in zip(batch.rows, batch.step(), strict=True)}
    reads = batch.reads()
    assert reads.pad_reads == 0 and reads.reads == sum(row.length for row in batch.rows)
    for row in batch.rows:
        row.accept(Choice(3 + (row.row_id + 7 * row.length) % 300))
    return found


def new_batch(model: LoadedModel) -> RunningBatch:
    return RunningBatch(model, KvArena(model.kv, 6000, max_rows=32))


def join(batch: RunningBatch, done: Prefilled) -> None:
    done.row.accept(Choice(3 + done.row.row_id))
    batch.insert(done.row, done.kv)


@pytest.mark.parametrize("rows", [3, 17])
def test_each_row_among_others_has_the_bits_that_it_has_alone(rows: int, model: LoadedModel, tiny_text: Text) -> None:
    """Prompts are read together, all step together, every other row leaves, and joins again later."""
    specs = [spec(row_id, length, 40) for row_id, length in enumerate(LENGTHS[:rows])]
    alone: dict[RowId, list[Tensor]] = {}
    for one in specs:
        (done,) = read(model, tiny_text, [one]).values()
        batch = new_batch(model)
        join(batch, done)
        steps = [step(batch)[one.row_id] for _ in range(12)]
        alone[one.row_id] = [done.kv.keys, done.kv.values, done.logits, *steps]
    found: dict[RowId, list[Tensor]] = {}
    batch = new_batch(model)
    for row_id, done in read(model, tiny_text, specs).items():
        found[row_id] = [done.kv.keys, done.kv.values, done.logits]
        join(batch, done)
    out: list[tuple[Row, RowKv]] = []
    while len(batch) or out:
        if not out and all(len(found[row.row_id]) == 3 + 4 for row in batch.rows):
            out = [(row, batch.extract(row)) for row in list(batch.rows)[::2]]
        elif out and all(len(found[row.row_id]) == 3 + 9 for row in batch.rows):
            for row, kv in out:
                batch.insert(row, kv)
            out = []
        for row_id, logits in step(batch).items():
            found[row_id].append(logits)
        for row in [row for row in batch.rows if len(found[row.row_id]) == 3 + 12]:
            batch.remove(row)
    for row_id, tensors in alone.items():
        assert all(torch.equal(one, other) for one, other in zip(tensors, found[row_id], strict=True)), f"row {row_id}"


def test_a_hit_beside_others_has_the_bits_of_a_miss_alone(model: LoadedModel, tiny_text: Text) -> None:
    prefixes: PrefixCache[RowKv] = PrefixCache(2**30)
    first = spec(0, 200)
    read(model, tiny_text, [first], prefixes)
    specs = [replace(first, row_id=own, prompt=(*first.prompt[:130], *range(5, 5 + 9 * own))) for own in (1, 2)]
    found = read(model, tiny_text, specs, prefixes)
    assert [done.row.cached_prompt for done in found.values()] == [128, 128]
    for one in specs:
        (done,) = read(model, tiny_text, [one]).values()
        other = found[one.row_id]
        assert torch.equal(done.logits, other.logits) and torch.equal(done.kv.keys, other.kv.keys)


@pytest.mark.parametrize(("seed", "cached"), [(0, False), (1, False), (2, True)])
def test_rows_of_a_random_schedule_are_as_alone(seed: int, cached: bool, model: LoadedModel, tiny_text: Text) -> None:
    """Whatever is cancelled, preempted and handed back, on terms too that would let rows be read again."""
    prefixes: PrefixCache[RowKv] = PrefixCache(2**30)
    schedule = Conversations(seed, model, tiny_text, prefixes) if cached else Schedule(seed, model, tiny_text)
    schedule.terms = [BatchPolicy(), BatchPolicy(kept_from=NEVER), MIXED[3][1]]
    schedule.run(rows=25)
    assert prefixes.hits > 0 or not cached
    for row_id, one in schedule.specs.items():
        lifecycle = lifecycle_of(model, tiny_text, capacity=6000, rows=32, chunk=random.choice([64, 512]))
        found, alone = schedule.tokens[row_id], answers_of(lifecycle, [one]).get(row_id, [])
        assert found == (alone[: len(found)] if row_id in schedule.cancelled else alone), f"row {row_id}"


@pytest.mark.slow
@pytest.mark.timeout(600)  # two threads wait for each other where other programs keep the cores busy
@pytest.mark.usefixtures("all_cores")
def test_32_answers_of_the_default_model_are_those_alone() -> None:
    folder = default_folder()
    model, text = load(folder, kernels=Kernels.NATIVE), Text.load(folder)
    lengths = (*LENGTHS, *(length // 5 + 1 for length in LENGTHS[:15]))
    specs = [spec(row_id, length, 4) for row_id, length in enumerate(lengths)]
    longest = max(LENGTHS) + 5  # tight: a check reads all of an arena at every turn
    answers = []
    for rows, groups in ((32, [specs[:20], specs[20:]]), (1, [[one] for one in specs])):
        lifecycle, found = lifecycle_of(model, text, capacity=rows * longest, rows=32), dict[RowId, list[int]]()
        for group in groups:
            lifecycle.table.admit(group)
            if len(group) == 1:
                found |= tokens_of(finish(lifecycle))
        answers.append(found | tokens_of(finish(lifecycle)))
    assert answers[0] == answers[1]
