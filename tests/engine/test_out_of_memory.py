"""Running out of device memory loses no request: whichever pass it hits, all answers are what they would have been."""

from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.forward.batch import RunningBatch
from engine.kv.arena import KvArena
from engine.kv.row_kv import RowKv
from engine.lifecycle import Lifecycle
from engine.messages import BatchPolicy, Entry, FinishReason, RowId, RowUpdate
from engine.row import Row
from engine.sampling import sampler as sampling
from engine.torch_device import TorchDevice
from models.network.kv_store import KvStore
from models.network.loader import LoadedModel
from models.text import Text
from tests.engine.rows import admitted, faulty, finish, lifecycle_of, spec, tokens_of
from tests.tiny import Net

SPECS = [spec(0, 9), spec(1, 4), spec(2, 6, max_tokens=5), spec(3, 30, prompt_logprobs=1), spec(4, 2)]


class Shortage:
    """Raises torch.OutOfMemoryError in the passes that `hits` names, counted from 0."""

    def __init__(self, *hits: int) -> None:
        self.hits = set(hits)
        self.passes = 0

    def __call__(self, store: KvStore, logits: Tensor) -> Tensor:
        self.passes += 1
        if self.passes - 1 in self.hits:
            raise torch.OutOfMemoryError("CUDA out of memory (injected)")
        return logits


def answers(model: LoadedModel, text: Text, shortage: Shortage) -> dict[RowId, list[int]]:
    return answers_of(lifecycle_of(faulty(model, shortage), text, capacity=200, rows=4, chunk=16))


def answers_of(lifecycle: Lifecycle[Row]) -> dict[RowId, list[int]]:
    lifecycle.table.admit(SPECS[:3])
    lifecycle.table.admit(SPECS[3:])
    updates = finish(lifecycle)
    ends = [update.row_id for update in updates if update.finish_reason is FinishReason.LENGTH]
    assert sorted(ends) == [row.row_id for row in SPECS], "each request ends once, and well"
    (scored,) = [update.prompt_logprobs for update in updates if update.prompt_logprobs is not None]
    assert len(scored) == 30
    return tokens_of(updates)


def test_a_shortage_in_any_pass_changes_no_answer(net: Net) -> None:
    calm = Shortage()
    expected = answers(*net, calm)
    for hit in range(calm.passes):
        assert answers(*net, Shortage(hit)) == expected, f"pass {hit}"
        assert answers(*net, Shortage(hit, hit + 1, hit + 4)) == expected, f"passes from {hit}"


def test_a_shortage_when_a_row_joins_changes_no_answer(net: Net) -> None:
    class Tight(KvArena):
        left = 0

        def insert(self, kv: RowKv) -> int:
            self.left -= 1
            if self.left == -1:
                raise torch.OutOfMemoryError("injected")
            return super().insert(kv)

    def run(calls: int) -> dict[RowId, list[int]]:
        arena = Tight(net.model.kv, 200, max_rows=4)
        arena.left = calls
        batch = RunningBatch(net.model, arena, headroom=0)
        return answers_of(Lifecycle(TorchDevice(*net, batch, max_prefill_tokens=16)))

    expected = run(1000)
    assert all(run(calls) == expected for calls in range(8))


@pytest.mark.parametrize("entry", Entry)
def test_a_shortage_in_choosing_tokens_undoes_the_pass(net: Net, monkeypatch: pytest.MonkeyPatch, entry: Entry) -> None:
    """It failed all rows of the pass, though a softmax over a large vocabulary needs memory too."""
    choose = sampling.Chosen

    def run(hit: int) -> dict[RowId, list[int]]:
        calls = count()

        def choose_or_fail(*asked: Any) -> sampling.Chosen:
            if next(calls) == hit:
                raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")
            return choose(*asked)

        monkeypatch.setattr(sampling, "Chosen", choose_or_fail)
        lifecycle = lifecycle_of(*net, capacity=200, rows=4, chunk=16)
        for one in SPECS:
            lifecycle.table.admit([one], BatchPolicy(entry=entry))
        updates = finish(lifecycle)
        assert all(update.finish_reason is not FinishReason.ERROR for update in updates)
        return tokens_of(updates)

    expected = run(-1)
    assert all(run(hit) == expected for hit in range(0, 16, 3))


def test_a_shortage_in_a_decode_step_lowers_the_budget(net: Net) -> None:
    shortage = Shortage(2)
    lifecycle = admitted(lifecycle_of(faulty(net.model, shortage), net.text, capacity=200), SPECS[:1])
    finish(lifecycle)
    assert lifecycle.table.shape().capacity_tokens == 180


def test_a_group_too_large_to_prefill_is_halved_until_it_fits(net: Net) -> None:
    sizes: list[int] = []

    def at_most_two(store: KvStore, logits: Tensor) -> Tensor:
        sizes.append(len(logits))
        if len(logits) > 2:
            raise torch.OutOfMemoryError("injected")
        return logits

    lifecycle = lifecycle_of(faulty(net.model, at_most_two), net.text, rows=1)
    lifecycle.table.admit([spec(row_id, 5, max_tokens=1) for row_id in range(8)])
    assert len(tokens_of(finish(lifecycle))) == 8
    assert sizes == [8, 4, 2, 2, 4, 2, 2]
    assert lifecycle.table.shape().capacity_tokens == 1000


def test_what_never_fits_fails_after_a_bounded_number_of_tries(net: Net) -> None:
    tries = count()

    def never(store: KvStore, logits: Tensor) -> Tensor:
        next(tries)
        raise torch.OutOfMemoryError("injected")

    lifecycle = admitted(lifecycle_of(faulty(net.model, never), net.text), [spec(0), spec(1)])
    ends = [(update.row_id, update.finish_reason) for update in finish(lifecycle)]
    assert sorted(ends) == [(0, FinishReason.ERROR), (1, FinishReason.ERROR)]
    assert next(tries) < 30


@pytest.mark.parametrize("others", [0, 2])
def test_a_row_that_outgrows_what_is_left_fails_and_those_behind_it_go_on(net: Net, others: int) -> None:
    def long_windows(store: KvStore, logits: Tensor) -> Tensor:
        if isinstance(store, KvArena) and store.window > 43:
            raise torch.OutOfMemoryError("injected")
        return logits

    lifecycle = lifecycle_of(faulty(net.model, long_windows), net.text, capacity=60)
    lifecycle.table.admit([spec(0, 40, max_tokens=10)])
    for row_id in range(1, 1 + others):
        lifecycle.table.admit([spec(row_id, 3, max_tokens=1)])
    updates = finish(lifecycle)
    (failed,) = [update for update in updates if update.finish_reason is FinishReason.ERROR]
    assert failed.row_id == 0
    assert len([update for update in updates if update.finish_reason is FinishReason.LENGTH]) == others


def test_no_host_memory_at_the_end_of_a_slice_loses_no_row(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """K and V that cannot be copied out are computed again: a failed allocation there must not end the thread."""

    def fail(tensor: Tensor) -> Tensor:
        raise RuntimeError("CUDA error: out of memory (pinned host memory; injected)")

    rows = [spec(0, 9, max_tokens=7), spec(1, 4, max_tokens=7)]
    plain = admitted(lifecycle_of(*net), rows)
    monkeypatch.setattr("engine.kv.arena.to_host", fail)
    sliced = lifecycle_of(*net)
    found: list[RowUpdate] = []
    for _ in range(3):
        sliced.table.admit(rows, BatchPolicy(closed=True, iterations=2))
        while sliced.table.rows:
            found += sliced.turn()
        assert all(handed_back.dropped == (0, 1) for handed_back in sliced.table.take_handed_back())
    assert tokens_of(found) == tokens_of(finish(plain))
