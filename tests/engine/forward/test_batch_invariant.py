"""A row computes the same bits whatever is computed with it: with `batch_invariant`, always in the compiled pass."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.forward.batch import RunningBatch
from engine.forward.prefill import Prefill, Prefilled
from engine.kv.arena import KvArena
from engine.kv.prefix_cache import PrefixCache
from engine.kv.row_kv import RowKv
from engine.lifecycle import Lifecycle
from engine.measure.probe import probe_invariance
from engine.messages import NO_LENGTH, RowId, RowSpec, Terms
from engine.row import Choice, Row
from engine.torch_device import TorchDevice
from models.catalog.catalog import DEFAULT_MODEL, Catalog
from models.native.library import find_library
from models.network.attention import Mask
from models.network.kv_adapter import KvStore
from models.network.linear import PackedLinear, PairedLinear
from models.network.loader import LoadedModel, LoadError, load
from models.network.packing import packs
from models.network.quantization import Kernels
from models.text import Text
from tests.engine.forward.test_parity import MIXED, Schedule
from tests.engine.forward.test_prefix_reuse import Conversations
from tests.engine.rows import finish, spec, tokens_of

pytestmark = pytest.mark.skipif(
    not packs(torch.bfloat16, torch.device("cpu")), reason="this CPU does not multiply in bfloat16"
)

LENGTHS = (40, 7, 65, 1, 128, 19, 64, 100, 3, 130, 12, 33, 2, 90, 71, 5, 27)


@pytest.fixture(
    scope="module",
    params=[(dtype, kernels) for dtype in ("bfloat16", "float32") for kernels in (Kernels.TORCH, Kernels.NATIVE)],
)
def model(tiny_folder: Path, request: pytest.FixtureRequest) -> LoadedModel:
    torch.set_grad_enabled(False)
    dtype, kernels = request.param
    if kernels is Kernels.NATIVE and find_library() is None:
        pytest.skip("nothing was compiled for this CPU")
    return load(tiny_folder, dtype=dtype, batch_invariant=kernels is Kernels.TORCH, kernels=kernels)


def read(
    model: LoadedModel, text: Text, specs: list[RowSpec], prefixes: PrefixCache[RowKv] | None = None
) -> dict[RowId, Prefilled]:
    """Prompts that are read as one group."""
    group, ended = Prefill(model, [Row(one, text, frozenset()) for one in specs], prefixes), dict[RowId, Prefilled]()
    while group.rows:
        ended |= {done.row.row_id: done for done in group.advance(512)}
    return ended


def step(batch: RunningBatch) -> dict[RowId, Tensor]:
    """Logits of a step by row, each of which then takes a token that does not depend on them."""
    found = {row.row_id: logits for row, logits in zip(batch.rows, batch.step(), strict=True)}
    reads = batch.reads()
    assert reads.pad_reads == 0 and reads.reads == sum(row.length for row in batch.rows)
    for row in batch.rows:
        row.accept(Choice(3 + (row.row_id + 7 * row.length) % 300))
    return found


def new_batch(model: LoadedModel, capacity: int = 6000) -> RunningBatch:
    return RunningBatch(model, KvArena(model.kv, capacity, max_rows=32))


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
    specs = [
        replace(first, row_id=row_id, prompt=(*first.prompt[:130], *range(5, 5 + 9 * row_id))) for row_id in (1, 2)
    ]
    found = read(model, tiny_text, specs, prefixes)
    assert [done.row.cached_prompt for done in found.values()] == [128, 128]
    for one in specs:
        (done,) = read(model, tiny_text, [one]).values()
        other = found[one.row_id]
        assert torch.equal(done.logits, other.logits) and torch.equal(done.kv.keys, other.kv.keys)


def test_a_prompt_as_long_as_the_context_is_padded_beyond_it(tiny_folder: Path, tiny_text: Text) -> None:
    """Padding of the last block had positions that the rotation's table lacks."""
    whole = load(tiny_folder, dtype="bfloat16", batch_invariant=True, kernels=Kernels.TORCH)
    short = replace(whole, context_length=500)
    rotary = short.network.get_submodule("rotary")
    rotary.table = rotary.get_buffer("table")[:500]
    (done,) = read(short, tiny_text, [spec(0, 499)]).values()
    assert done.kv.length == 499 and bool(done.logits.isfinite().all())


@pytest.mark.parametrize(("seed", "cached"), [(0, False), (1, False), (1, True), (2, True)])
def test_each_row_of_a_random_schedule_generates_the_tokens_that_it_generates_alone(
    seed: int, cached: bool, model: LoadedModel, tiny_text: Text
) -> None:
    """Whatever is cancelled, preempted and handed back, on terms too that would let rows be read again."""
    prefixes: PrefixCache[RowKv] = PrefixCache(2**30)
    schedule = Conversations(seed, model, tiny_text, prefixes) if cached else Schedule(seed, model, tiny_text)
    schedule.terms = [Terms(), Terms(keep_kv=NO_LENGTH), MIXED[3][1]]
    schedule.run(rows=25)
    assert prefixes.hits > 0 or not cached
    for row_id, one in schedule.specs.items():
        lifecycle = Lifecycle(TorchDevice(model, tiny_text, new_batch(model), random.choice([64, 512])))
        lifecycle.table.admit([one])
        found, alone = schedule.tokens[row_id], tokens_of(finish(lifecycle)).get(row_id, [])
        assert found == (alone[: len(found)] if row_id in schedule.cancelled else alone), f"row {row_id}"


def test_a_machine_whose_kernels_depend_on_the_number_of_rows_is_refused(model: LoadedModel, tiny_text: Text) -> None:
    class Leaning(LoadedModel):
        def forward(
            self,
            tokens: Tensor,
            positions: Tensor,
            mask: Mask,
            store: KvStore,
            select: tuple[Tensor, Tensor] | None = None,
        ) -> Tensor:
            return super().forward(tokens, positions, mask, store, select) * (2 if len(tokens) == 5 else 1)

    leaning = Leaning(**{name: getattr(model, name) for name in LoadedModel.__slots__})
    probe_invariance(model, tiny_text, 5)
    probe_invariance(leaning, tiny_text, 4)
    with pytest.raises(LoadError, match="--batch-invariant cannot be kept on this machine"):
        probe_invariance(leaning, tiny_text, 5)


def test_what_cannot_keep_it_is_refused(tiny_folder: Path) -> None:
    for dtype, quantization, kernels in (("float16", "none", Kernels.AUTO), ("bfloat16", "int8", Kernels.TORCH)):
        with pytest.raises(LoadError, match="--batch-invariant is for networks on this server's own pass"):
            load(tiny_folder, batch_invariant=True, dtype=dtype, quantization=quantization, kernels=kernels)


def test_a_product_of_one_row_is_that_of_the_row_among_others() -> None:
    """With 1,536 inputs oneDNN's kernel for one row groups its sums otherwise."""
    linear = torch.nn.Linear(1536, 64, dtype=torch.bfloat16).requires_grad_(False)
    paired, plain = PairedLinear(linear), PackedLinear(linear)
    rows, residual = torch.randn(64, 1536, dtype=torch.bfloat16), torch.randn(64, 64, dtype=torch.bfloat16)
    products, sums = plain.forward(rows), plain.add_to(residual, rows)
    for row in range(64):
        inputs, base = rows[row : row + 1], residual[row : row + 1]
        assert torch.equal(paired.forward(inputs)[0], products[row])
        added = paired.add_to(base[None], inputs[None])
        assert added.shape == (1, 1, 64) and torch.equal(added[0, 0], sums[row])


@pytest.mark.slow
@pytest.mark.timeout(600)  # two threads wait for each other where other programs keep the cores busy
@pytest.mark.usefixtures("all_cores")
def test_32_answers_of_the_default_model_are_those_alone() -> None:
    if not any(status.cached for status in Catalog().known() if status.name == DEFAULT_MODEL):
        pytest.skip(f"{DEFAULT_MODEL} is not in the cache")
    folder = Catalog().resolve(DEFAULT_MODEL)
    asked = find_library("avx512_bf16") is None  # compiled kernels need no flag
    model, text = load(folder, dtype="bfloat16", batch_invariant=asked), Text.load(folder)
    specs = [spec(row_id, length, 8) for row_id, length in enumerate((2 * LENGTHS)[:32])]
    capacity = 32 * (max(LENGTHS) + 9)  # tight: a check reads all of it at every turn
    answers = []
    for groups in ([specs[:20], specs[20:]], [[one] for one in specs]):
        found: dict[RowId, list[int]] = {}
        lifecycle = Lifecycle(TorchDevice(model, text, new_batch(model, capacity), max_prefill_tokens=512))
        for group in groups:
            lifecycle.table.admit(group)
            if len(group) == 1:
                found |= tokens_of(finish(lifecycle))
        answers.append(found | tokens_of(finish(lifecycle)))
    assert answers[0] == answers[1]
