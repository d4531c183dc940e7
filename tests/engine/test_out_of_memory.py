"""Running out of device memory loses no request: whichever pass it hits, all answers are what they would have been."""

from itertools import count
from typing import Any

import pytest
from torch import OutOfMemoryError, Tensor

from engine.kv.arena import KvArena
from engine.kv.row_kv import RowKv
from engine.messages import BatchPolicy, Entry, FinishReason, RowId
from engine.sampling import sampler as sampling
from models.network.kv_store import KvStore
from models.network.loader import LoadedModel
from models.text import Text
from tests.engine.rows import answers_of, ends_of, faulty, finish, lifecycle_of, run_all, short_in, spec, tokens_of
from tests.tiny import Net

SPECS = [spec(0, 9), spec(1, 4), spec(2, 6, max_tokens=5), spec(3, 30, prompt_logprobs=1), spec(4, 2)]


def answers(model: LoadedModel, text: Text, arena: type[KvArena] = KvArena) -> dict[RowId, list[int]]:
    """Of each request, which ends once, and well."""
    lifecycle = lifecycle_of(model, text, capacity=200, rows=4, chunk=16, arena=arena)
    lifecycle.table.admit(SPECS[:3])
    updates = finish(lifecycle, SPECS[3:])
    assert sorted(update.row_id for update in updates if update.finish_reason is FinishReason.LENGTH) == [*range(5)]
    (scored,) = [update.prompt_logprobs for update in updates if update.prompt_logprobs is not None]
    assert len(scored) == 30
    return tokens_of(updates)


def test_a_shortage_in_any_pass_changes_no_answer(net: Net) -> None:
    passes = count()
    expected = answers(faulty(net.model, lambda _, logits: (logits, next(passes))[0]), net.text)
    for hit in range(next(passes)):
        for hits in ((hit,), (hit, hit + 1, hit + 4)):
            assert answers(faulty(net.model, short_in(object, *hits)), net.text) == expected, f"passes {hits}"


def test_a_shortage_when_a_row_joins_changes_no_answer(net: Net) -> None:
    def run(hit: int) -> dict[RowId, list[int]]:
        calls = count()

        class Tight(KvArena):
            def insert(self, kv: RowKv) -> int:
                if next(calls) == hit:
                    raise OutOfMemoryError("injected")
                return super().insert(kv)

        return answers(*net, Tight)

    expected = run(-1)
    assert all(run(hit) == expected for hit in range(8))


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


def test_a_group_too_large_to_prefill_is_halved_until_it_fits(net: Net) -> None:
    sizes: list[int] = []

    def at_most_two(store: KvStore, logits: Tensor) -> Tensor:
        sizes.append(len(logits))
        if len(logits) > 2:
            raise OutOfMemoryError("injected")
        return logits

    lifecycle = lifecycle_of(faulty(net.model, at_most_two), net.text, rows=1)
    assert len(answers_of(lifecycle, [spec(row_id, 5, max_tokens=1) for row_id in range(8)])) == 8
    assert sizes == [8, 4, 2, 2, 4, 2, 2]
    assert lifecycle.table.shape().capacity_tokens == 1000


def test_what_never_fits_fails_after_a_bounded_number_of_tries(net: Net) -> None:
    tries = count()

    def never(store: KvStore, logits: Tensor) -> Tensor:
        next(tries)
        raise OutOfMemoryError("injected")

    updates = finish(lifecycle_of(faulty(net.model, never), net.text), [spec(0), spec(1)])
    assert ends_of(updates) == {0: FinishReason.ERROR, 1: FinishReason.ERROR}
    assert next(tries) < 30


@pytest.mark.parametrize("others", [0, 2])
def test_a_row_that_outgrows_what_is_left_fails_and_those_behind_it_go_on(net: Net, others: int) -> None:
    def long_windows(store: KvStore, logits: Tensor) -> Tensor:
        if isinstance(store, KvArena) and store.window > 43:
            raise OutOfMemoryError("injected")
        return logits

    lifecycle = lifecycle_of(faulty(net.model, long_windows), net.text, capacity=60)
    for one in (spec(0, 40, max_tokens=10), *(spec(row_id, 3, max_tokens=1) for row_id in range(1, 1 + others))):
        lifecycle.table.admit([one])
    well = dict.fromkeys(range(1, 1 + others), FinishReason.LENGTH)
    assert ends_of(finish(lifecycle)) == {0: FinishReason.ERROR} | well


def test_no_host_memory_at_the_end_of_a_slice_loses_no_row(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """K and V that cannot be copied out are computed again: a failed allocation there must not end the thread."""

    def fail(tensor: Tensor) -> Tensor:
        raise RuntimeError("CUDA error: out of memory (pinned host memory; injected)")

    rows = [spec(0, 9, max_tokens=7), spec(1, 4, max_tokens=7)]
    expected = answers_of(lifecycle_of(*net), rows)
    monkeypatch.setattr("engine.kv.arena.to_host", fail)
    found, slices = run_all(lifecycle_of(*net), rows, BatchPolicy(closed=True, iterations=2))
    assert tokens_of(found) == expected and [one.dropped for one in slices] == [(0, 1)] * 2
