"""Who is hit when something goes wrong in a lifecycle: the rows concerned, once each, and nobody else."""

import math
from itertools import count
from typing import Any

import pytest
from torch import Tensor

from engine import torch_device as device_module
from engine.forward.prefill import Prefill
from engine.kv.arena import KvArena
from engine.lifecycle import Lifecycle
from engine.messages import FinishReason, RowId, RowUpdate
from engine.row import Choice, Row
from engine.sampling import sampler as sampling
from engine.sampling.grammar import GrammarTooCostly
from models.network.kv_store import KvStore
from models.network.loader import LoadedModel
from tests.engine.rows import admitted, answers_of, device_of, faulty, finish, lifecycle_of, spec, tokens_of
from tests.tiny import Net

SPECS = [spec(0, 9), spec(1, 4), spec(2, 6, max_tokens=5), spec(3, 6)]


@pytest.fixture(scope="module")
def alone(net: Net) -> dict[RowId, list[int]]:
    """Tokens that each row generates when nothing goes wrong."""
    return {one.row_id: answers_of(lifecycle_of(*net), [one])[one.row_id] for one in (*SPECS, spec(9, 7))}


@pytest.fixture(params=[False, True], ids=["by group", "together"])
def reads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether prompts that were admitted apart are read in one pass."""
    monkeypatch.setattr(device_module.TorchDevice, "skips_padding", request.param)


def errors_of(updates: list[RowUpdate]) -> list[RowId]:
    failed = [update for update in updates if update.finish_reason is FinishReason.ERROR]
    assert all(update.error and not update.token_ids for update in failed)
    return sorted(update.row_id for update in failed)


def assert_untouched(updates: list[RowUpdate], alone: dict[RowId, list[int]], *row_ids: RowId) -> None:
    found = tokens_of(updates)
    assert {row_id: found[row_id] for row_id in row_ids} == {row_id: alone[row_id] for row_id in row_ids}


def assert_serves(lifecycle: Lifecycle[Row], alone: dict[RowId, list[int]]) -> None:
    """Whatever happened before, a new row generates what it should."""
    updates = finish(lifecycle, [spec(9, 7)])
    assert errors_of(updates) == [] and tokens_of(updates) == {9: alone[9]}


class Poison:
    """NaN in the logits and in K and V of some rows, in one pass of the batch or at the end of their prefill."""

    def __init__(self, *row_ids: RowId, decode: int | None) -> None:
        self.row_ids = row_ids
        self.decode = decode
        self.lifecycle: Lifecycle[Row] | None = None

    def __call__(self, store: KvStore, logits: Tensor) -> Tensor:
        if isinstance(store, Prefill) and self.decode is None:
            self.spoil([row.row_id for row in store.rows], logits)
        if isinstance(store, KvArena) and self.decode is not None:
            self.decode -= 1
            if self.decode == -1:
                assert self.lifecycle is not None
                for place in self.spoil([row.row_id for row in device_of(self.lifecycle).batch.rows], logits):
                    for buffer in store.buffers:
                        buffer[:, place, :, store.origins[place] : store.end] = math.nan
        return logits

    def spoil(self, present: list[RowId], logits: Tensor) -> list[int]:
        places = [place for place, row_id in enumerate(present) if row_id in self.row_ids]
        logits[places] = math.nan
        return places


@pytest.mark.parametrize("decode", [None, 0, 2])
@pytest.mark.parametrize("row_ids", [(0,), (1,), (3,), (1, 3), (2, 3), (0, 1, 2, 3)])
def test_a_row_that_computes_nan_fails_alone_and_leaves_no_trace(
    net: Net, alone: dict[RowId, list[int]], decode: int | None, row_ids: tuple[RowId, ...]
) -> None:
    poison = Poison(*row_ids, decode=decode)
    poison.lifecycle = lifecycle = lifecycle_of(faulty(net.model, poison), net.text)
    updates = finish(lifecycle, SPECS)
    assert errors_of(updates) == sorted(row_ids)
    assert_untouched(updates, alone, *({0, 1, 2, 3} - set(row_ids)))
    poison.row_ids = ()
    assert_serves(lifecycle, alone)


def test_prompts_are_read_together(net: Net, alone: dict[RowId, list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 clients, 11 waited for their prompts, read one by one: a pass of 64 tokens takes a fifth of one of 512."""
    monkeypatch.setattr(device_module.TorchDevice, "skips_padding", True)
    passes = list[list[RowId]]()

    def note(store: KvStore, logits: Tensor) -> Tensor:
        passes.extend([[row.row_id for row in store.rows]] if isinstance(store, Prefill) else [])
        return logits

    lifecycle = lifecycle_of(faulty(net.model, note), net.text, chunk=32)
    for one in SPECS:
        lifecycle.table.admit([one])
    assert_untouched(finish(lifecycle), alone, 0, 1, 2, 3)
    assert passes == [[0, 2, 1], [3]]  # three of up to nine tokens in a chunk


def in_groups(lifecycle: Lifecycle[Row]) -> list[RowUpdate]:
    """All updates of rows of which two were admitted together."""
    for group in (SPECS[:1], SPECS[1:3], SPECS[3:]):
        lifecycle.table.admit(group)
    return finish(lifecycle)


@pytest.mark.usefixtures("reads")
def test_a_fault_in_prefill_fails_its_own_group_alone(net: Net, alone: dict[RowId, list[int]]) -> None:
    def fault(store: KvStore, logits: Tensor) -> Tensor:
        if isinstance(store, Prefill) and any(row.row_id == 1 for row in store.rows):
            raise RuntimeError("no kernel for this")
        return logits

    lifecycle = lifecycle_of(faulty(net.model, fault), net.text)
    updates = in_groups(lifecycle)
    assert errors_of(updates) == [1, 2]
    assert_untouched(updates, alone, 0, 3)
    assert_serves(lifecycle, alone)


@pytest.mark.usefixtures("reads")
def test_rows_without_memory_fail(net: Net, alone: dict[RowId, list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking the memory used to lie outside of what was guarded, and ended the whole executor."""

    class Hungry(Prefill):
        def __init__(self, model: LoadedModel, rows: list[Row], *kept: Any) -> None:
            if any(row.row_id == 1 for row in rows):
                raise MemoryError
            super().__init__(model, rows, *kept)

    monkeypatch.setattr(device_module, "Prefill", Hungry)
    updates = in_groups(lifecycle_of(*net))
    assert errors_of(updates) == [1]
    assert_untouched(updates, alone, 0, 2, 3)


@pytest.mark.parametrize("call", range(7))
def test_a_fault_in_any_decode_step_ends_the_running_rows(net: Net, alone: dict[RowId, list[int]], call: int) -> None:
    calls = count()

    def fault(store: KvStore, logits: Tensor) -> Tensor:
        if isinstance(store, KvArena) and next(calls) == call:
            raise RuntimeError("the device is on fire")
        return logits

    lifecycle = lifecycle_of(faulty(net.model, fault), net.text, rows=3)
    updates = finish(lifecycle, SPECS)  # of eight tokens; row 2 has five, and until its end row 3 is staged
    failed = [0, 1, 2] if call < 4 else [0, 1, 3]
    assert errors_of(updates) == failed
    assert_untouched(updates, alone, *({0, 1, 2, 3} - set(failed)))
    for row_id, tokens in tokens_of(updates).items():
        assert tokens == alone[row_id][: len(tokens)]
    assert_serves(lifecycle, alone)


@pytest.mark.parametrize("call", range(4))
def test_a_fault_in_sampling_ends_the_rows_that_were_sampled(
    net: Net, alone: dict[RowId, list[int]], monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    calls, choose = count(), sampling.Chosen

    def choose_or_fail(*asked: Any) -> sampling.Chosen:
        if next(calls) == call:
            raise RuntimeError("the device is on fire")
        return choose(*asked)

    monkeypatch.setattr(sampling, "Chosen", choose_or_fail)
    lifecycle = admitted(lifecycle_of(*net), SPECS[:2])
    assert errors_of(finish(lifecycle)) == [0, 1]
    assert_serves(lifecycle, alone)


def test_faults_in_reading_end_a_row(net: Net, alone: dict[RowId, list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    accept = Row.accept

    def accept_or_fail(row: Row, choice: Choice) -> RowUpdate:
        if row.row_id == 1 and row.step == 3:
            raise ValueError("no such token")
        return accept(row, choice)

    monkeypatch.setattr(Row, "accept", accept_or_fail)
    updates = finish(lifecycle_of(*net), SPECS)
    assert errors_of(updates) == [1]
    assert_untouched(updates, alone, 0, 2, 3)


def test_what_a_client_brings_upon_itself_tells_nothing_of_the_device(
    net: Net, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each such row left a traceback in the log, and three made the device prove itself."""

    def accept(row: Row, choice: Choice) -> RowUpdate:
        raise GrammarTooCostly("it takes too long")

    monkeypatch.setattr(Row, "accept", accept)
    lifecycle = admitted(lifecycle_of(*net), SPECS)
    updates = finish(lifecycle)
    assert errors_of(updates) == [0, 1, 2, 3] and all(update.by_client for update in updates)
    assert not any(lifecycle.failures.values())
    assert not caplog.records


def test_a_client_is_told_what_kind_of_fault_it_was_but_no_details(net: Net) -> None:
    def fault(store: KvStore, logits: Tensor) -> Tensor:
        raise RuntimeError("/secret/path")

    lifecycle = admitted(lifecycle_of(faulty(net.model, fault), net.text), SPECS[:1])
    (update,) = finish(lifecycle)
    assert update.error == "the engine failed on this request (RuntimeError)"
