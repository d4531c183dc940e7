"""Who is hit when something goes wrong in a lifecycle: the rows concerned, once each, and nobody else."""

import math
from itertools import count
from unittest.mock import Mock

import pytest
from torch import OutOfMemoryError, Tensor

from engine import torch_device as device_module
from engine.forward.prefill import Prefill
from engine.kv.arena import KvArena
from engine.lifecycle import Lifecycle
from engine.messages import BatchPolicy, Entry, FinishReason, RowId, RowUpdate
from engine.row import Choice, Row
from engine.sampling import sampler as sampling
from engine.sampling.grammar import GrammarTooCostly
from models.network.kv_store import KvStore
from models.network.loader import LoadedModel
from models.text import Text
from tests.calls import fail_call, note_calls
from tests.engine import rows as play
from tests.engine.rows import admitted, answers_of, device_of, failing, faulty, finish, lifecycle_of, spec, tokens_of
from tests.tiny import Net

SPECS = [spec(0, 9), spec(1, 4), spec(2, 6, max_tokens=5), spec(3, 6)]
FIRE = RuntimeError("the device is on fire")


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


def prefilled(store: KvStore) -> list[RowId]:
    return [row.row_id for row in store.rows] if isinstance(store, Prefill) else []


class Poison:
    """NaN in the logits and in K and V of some rows, in one pass of the batch or at the end of their prefill."""

    def __init__(self, *row_ids: RowId, decode: int | None) -> None:
        self.row_ids = row_ids
        self.decode = decode
        self.lifecycle: Lifecycle[Row] | None = None

    def __call__(self, store: KvStore, logits: Tensor) -> Tensor:
        if self.decode is None:
            self.spoil(prefilled(store), logits)
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
    passes = note_calls(monkeypatch, LoadedModel, "forward", lambda *given: prefilled(given[4]))
    lifecycle = lifecycle_of(*net, chunk=32)
    for one in SPECS:
        lifecycle.table.admit([one])
    assert_untouched(finish(lifecycle), alone, 0, 1, 2, 3)
    assert list(filter(None, passes)) == [[0, 2, 1], [3]]  # three of up to nine tokens in a chunk


def in_groups(lifecycle: Lifecycle[Row]) -> list[RowUpdate]:
    """All updates of rows of which two were admitted together."""
    for group in (SPECS[:1], SPECS[1:3], SPECS[3:]):
        lifecycle.table.admit(group)
    return finish(lifecycle)


@pytest.mark.usefixtures("reads")
def test_a_fault_in_prefill_fails_its_own_group_alone(net: Net, alone: dict[RowId, list[int]]) -> None:
    model = failing(net.model, RuntimeError("no kernel for this"), lambda store, _: 1 in prefilled(store))
    lifecycle = lifecycle_of(model, net.text)
    updates = in_groups(lifecycle)
    assert errors_of(updates) == [1, 2]
    assert_untouched(updates, alone, 0, 3)
    assert_serves(lifecycle, alone)


@pytest.mark.usefixtures("reads")
def test_rows_without_memory_fail(net: Net, alone: dict[RowId, list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking the memory used to lie outside of what was guarded, and ended the whole executor."""

    def hunger(model: LoadedModel, rows: list[Row], *_: object) -> None:
        if any(row.row_id == 1 for row in rows):
            raise MemoryError

    note_calls(monkeypatch, device_module, "Prefill", hunger)
    updates = in_groups(lifecycle_of(*net))
    assert errors_of(updates) == [1]
    assert_untouched(updates, alone, 0, 2, 3)


@pytest.mark.parametrize("call", range(7))
def test_a_fault_in_any_decode_step_ends_the_running_rows(net: Net, alone: dict[RowId, list[int]], call: int) -> None:
    calls = count()
    model = failing(net.model, FIRE, lambda store, _: isinstance(store, KvArena) and next(calls) == call)
    lifecycle = lifecycle_of(model, net.text, rows=3)
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
    fail_call(monkeypatch, sampling, "Chosen", call, FIRE)
    lifecycle = admitted(lifecycle_of(*net), SPECS[:2])
    assert errors_of(finish(lifecycle)) == [0, 1]
    assert_serves(lifecycle, alone)


def test_faults_in_reading_end_a_row(net: Net, alone: dict[RowId, list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(row: Row, choice: Choice) -> None:
        if row.row_id == 1 and row.step == 3:
            raise ValueError("no such token")

    note_calls(monkeypatch, Row, "accept", fail)
    updates = finish(lifecycle_of(*net), SPECS)
    assert errors_of(updates) == [1]
    assert_untouched(updates, alone, 0, 2, 3)


def test_what_a_client_brings_upon_itself_tells_nothing_of_the_device(
    net: Net, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each such row left a traceback in the log, and three made the device prove itself."""

    monkeypatch.setattr(Row, "accept", Mock(side_effect=GrammarTooCostly("it takes too long")))
    lifecycle = admitted(lifecycle_of(*net), SPECS)
    updates = finish(lifecycle)
    assert errors_of(updates) == [0, 1, 2, 3] and all(update.by_client for update in updates)
    assert not any(lifecycle.failures.values())
    assert not caplog.records


def test_a_client_is_told_what_kind_of_fault_it_was_but_no_details(net: Net) -> None:
    (update,) = finish(lifecycle_of(failing(net.model, RuntimeError("/secret/path")), net.text), SPECS[:1])
    assert update.error == "the engine failed on this request (RuntimeError)"


# Running out of device memory loses no request: whichever pass it hits, all answers are what they would have been

FIVE = [spec(0, 9), spec(1, 4), spec(2, 6, max_tokens=5), spec(3, 30, prompt_logprobs=1), spec(4, 2)]
SHORT = OutOfMemoryError("injected")


def answers(model: LoadedModel, text: Text) -> dict[RowId, list[int]]:
    """Of each request, which ends once, and well."""
    lifecycle = lifecycle_of(model, text, capacity=200, rows=4, chunk=16)
    lifecycle.table.admit(FIVE[:3])
    updates = finish(lifecycle, FIVE[3:])
    assert sorted(update.row_id for update in updates if update.finish_reason is FinishReason.LENGTH) == [*range(5)]
    (scored,) = [update.prompt_logprobs for update in updates if update.prompt_logprobs is not None]
    assert len(scored) == 30
    return tokens_of(updates)


def test_a_shortage_in_any_pass_changes_no_answer(net: Net) -> None:
    passes = count()
    expected = answers(faulty(net.model, lambda _, logits: (logits, next(passes))[0]), net.text)
    for hit in range(next(passes)):
        for hits in ((hit,), (hit, hit + 1, hit + 4)):
            assert answers(play.short_in(net.model, object, *hits), net.text) == expected, f"passes {hits}"


def test_a_shortage_when_a_row_joins_changes_no_answer(net: Net) -> None:
    expected = answers(*net)
    for hit in range(8):
        with pytest.MonkeyPatch.context() as patch:
            fail_call(patch, KvArena, "insert", hit, SHORT)
            assert answers(*net) == expected


@pytest.mark.parametrize("entry", Entry)
def test_a_shortage_in_choosing_tokens_undoes_the_pass(net: Net, entry: Entry) -> None:
    """It failed all rows of the pass, though a softmax over a large vocabulary needs memory too."""
    error = RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")

    def run(hit: int) -> dict[RowId, list[int]]:
        lifecycle = lifecycle_of(*net, capacity=200, rows=4, chunk=16)
        for one in FIVE:
            lifecycle.table.admit([one], BatchPolicy(entry=entry))
        with pytest.MonkeyPatch.context() as patch:
            fail_call(patch, sampling, "Chosen", hit, error)
            updates = finish(lifecycle)
        assert all(update.finish_reason is not FinishReason.ERROR for update in updates)
        return tokens_of(updates)

    expected = run(-1)
    assert all(run(hit) == expected for hit in range(0, 16, 3))


def test_a_group_too_large_to_prefill_is_halved_until_it_fits(net: Net) -> None:
    sizes: list[int] = []

    def too_many(_: KvStore, logits: Tensor) -> bool:
        sizes.append(len(logits))
        return sizes[-1] > 2

    lifecycle = lifecycle_of(failing(net.model, SHORT, too_many), net.text, rows=1)
    assert len(answers_of(lifecycle, [spec(row_id, 5, max_tokens=1) for row_id in range(8)])) == 8
    assert sizes == [8, 4, 2, 2, 4, 2, 2]
    assert lifecycle.table.shape().capacity_tokens == 1000


def test_what_never_fits_fails_after_a_bounded_number_of_tries(net: Net) -> None:
    tries = count()
    model = failing(net.model, SHORT, lambda *_: next(tries) >= 0)
    updates = finish(lifecycle_of(model, net.text), [spec(0), spec(1)])
    assert play.ends_of(updates) == {0: FinishReason.ERROR, 1: FinishReason.ERROR}
    assert next(tries) < 30


@pytest.mark.parametrize("others", [0, 2])
def test_a_row_that_outgrows_what_is_left_fails_and_those_behind_it_go_on(net: Net, others: int) -> None:
    model = failing(net.model, SHORT, lambda store, _: isinstance(store, KvArena) and store.window > 43)
    lifecycle = lifecycle_of(model, net.text, capacity=60)
    for one in (spec(0, 40, max_tokens=10), *(spec(row_id, 3, max_tokens=1) for row_id in range(1, 1 + others))):
        lifecycle.table.admit([one])
    well = dict.fromkeys(range(1, 1 + others), FinishReason.LENGTH)
    assert play.ends_of(finish(lifecycle)) == {0: FinishReason.ERROR} | well


def test_no_host_memory_at_the_end_of_a_slice_loses_no_row(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """K and V that cannot be copied out are computed again: a failed allocation there must not end the thread."""

    rows = [spec(0, 9, max_tokens=7), spec(1, 4, max_tokens=7)]
    expected = answers_of(lifecycle_of(*net), rows)
    error = RuntimeError("CUDA error: out of memory (pinned host memory; injected)")
    monkeypatch.setattr("engine.kv.arena.to_host", Mock(side_effect=error))
    found, slices = play.run_all(lifecycle_of(*net), rows, BatchPolicy(closed=True, iterations=2))
    assert tokens_of(found) == expected and [one.dropped for one in slices] == [(0, 1)] * 2
