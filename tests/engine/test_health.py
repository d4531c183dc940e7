"""Devices that fail for a while: they pause, prove themselves and take their memory back, and no row is lost to it."""

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from engine import health as health_module
from engine.device import Action
from engine.executor import Executor
from engine.forward.prefill import Prefill
from engine.health import FIRST_CALM, DeviceHealth, Shape
from engine.kv.arena import KvArena
from engine.messages import Admit, Cause, ExecutorHealth, ExecutorInfo, FinishReason, Report, RowId, StepReport
from engine.torch_device import TorchDevice
from models.network.kv_store import KvStore
from models.network.loader import LoadedModel
from models.text import Text
from tests.calls import note_calls
from tests.engine import rows as play
from tests.engine.invariants import check
from tests.engine.rows import answers_of, device_of, failing, faulty, finish, lifecycle_of, spec, tokens_of
from tests.tiny import Net

SPECS = [spec(0, 9), spec(1, 4), spec(2, 6, max_tokens=5)]
TURN = 0.005
"""Seconds of a turn in virtual time."""
SHORTAGES = [
    torch.OutOfMemoryError("CUDA out of memory (injected)"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("could not create a primitive"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    MemoryError(),
]


@dataclass
class Fault:
    """Raises `error` in every pass over such a store while `on`."""

    error: Exception
    where: type = object
    on: bool = False

    def __call__(self, store: KvStore, logits: Tensor) -> Tensor:
        if self.on and isinstance(store, self.where):
            raise self.error
        return logits


@pytest.mark.parametrize("error", SHORTAGES, ids=lambda error: str(error)[:20])
def test_a_shortage_of_a_moment_costs_little_and_what_it_cost_comes_back(net: Net, error: Exception) -> None:
    """0.3 s without memory left 2 of 16,384 tokens for K and V, for ever; errors of the CPU's allocator failed rows."""
    expected = answers_of(lifecycle_of(*net), SPECS)
    fault, health, now, found = Fault(error), DeviceHealth(), 0.0, []
    lifecycle = lifecycle_of(faulty(net.model, fault), net.text, capacity=16_384)
    lifecycle.table.admit(SPECS)
    while not lifecycle.table.idle:
        fault.on = 0.02 <= now < 0.32
        now = max(now, health.resume) + TURN
        found += lifecycle.turn()
        check(lifecycle.table)
        health.note_turn(now, short=lifecycle.short)
        assert not health.is_suspect(max(lifecycle.failures.values()), lifecycle.capacity, lost=lifecycle.lost)
    assert tokens_of(found) == expected
    assert 0.5 < lifecycle.capacity < 1
    while health.grow_at is not None:
        now = health.grow_at
        lifecycle.grow(2 * lifecycle.capacity)
        health.note_growth(now, lifecycle.capacity)
    assert lifecycle.capacity == 1 and now < 60


def test_memory_that_is_short_again_is_taken_back_ever_more_rarely() -> None:
    health, now, waits = DeviceHealth(), 0.0, []
    for _ in range(9):
        health.note_turn(now, short=True)
        assert health.grow_at is not None
        waits.append(health.grow_at - now)
        now = health.grow_at
        health.note_growth(now, 1.0)
    assert waits == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0]
    health.note_turn(now + 400, short=True)
    assert health.grow_at == now + 400 + FIRST_CALM


def test_rows_that_run_are_put_by_while_memory_is_taken_back(net: Net) -> None:
    lifecycle = lifecycle_of(*net, capacity=400)
    device_of(lifecycle).batch.resize(200)
    lifecycle.table.admit(SPECS)
    found = [update for _ in range(4) for update in lifecycle.turn()]
    lifecycle.grow(1.0)
    assert lifecycle.table.shape().capacity_tokens == 400
    check(lifecycle.table)
    assert tokens_of([*found, *finish(lifecycle)]) == answers_of(lifecycle_of(*net), SPECS)


def be_scarce(patch: pytest.MonkeyPatch, most: int) -> None:
    """There is no memory for more tokens."""

    def refuse(_: KvArena, capacity_tokens: int) -> None:
        if capacity_tokens > most:
            raise OSError(12, "Cannot allocate memory")

    note_calls(patch, KvArena, "_take", refuse)


def test_memory_that_is_short_is_asked_for_in_halves(tiny_model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    arena = KvArena(tiny_model.kv, 400, max_rows=4)
    be_scarce(monkeypatch, 90)
    arena.resize(360)
    assert arena.capacity_tokens == 90
    check(arena)


class Bench:
    """An executor on the tiny model with a fault, and its reports."""

    def __init__(self, model: LoadedModel, text: Text) -> None:
        self.fault = Fault(RuntimeError("the device is on fire"))
        self.lifecycle = lifecycle_of(faulty(model, self.fault), text)
        self.reports: queue.Queue[Report] = queue.Queue()
        self.now = 0.0
        info = ExecutorInfo(0, "cpu", 1000, 8, 500)
        self.executor = Executor(info, self.lifecycle, self.reports.put, clock=self.look)

    def look(self) -> float:
        """The time, of which a millisecond passes with each look at it."""
        self.now += 0.001
        return self.now

    def until(self, seen: Callable[[Report], bool]) -> list[Report]:
        """Reports up to the first of which this is true."""
        found = [self.reports.get(timeout=20)]
        while not seen(found[-1]):
            found.append(self.reports.get(timeout=20))
        return found

    def until_ended(self, rows: int) -> dict[RowId, FinishReason]:
        found: list[Report] = []
        while len(ends(found)) < rows:
            found += self.until(lambda report: bool(ends([report])))
        return ends(found)

    def health(self) -> str | None:
        """What the next report of it says is wrong."""
        told = self.until(is_health)[-1]
        assert isinstance(told, ExecutorHealth)
        return told.fault

    def admit(self, *row_ids: RowId, length: int = 4) -> None:
        for row_id in row_ids:
            self.executor.post(Admit((spec(row_id, length, max_tokens=4),)))

    def fail(self, error: Exception, where: type = object) -> None:
        self.fault.error, self.fault.where, self.fault.on = error, where, True


@pytest.fixture
def bench(net: Net, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(health_module, "FIRST_REST", 0.01)
    monkeypatch.setattr(health_module, "LONGEST_REST", 0.01)
    bench = Bench(*net)
    bench.executor.start()
    yield bench
    bench.executor.stop(20)
    assert not bench.executor.alive


def steps(reports: list[Report]) -> list[StepReport]:
    return [report for report in reports if isinstance(report, StepReport)]


def ends(reports: list[Report]) -> dict[RowId, FinishReason]:
    return play.ends_of(update for step in steps(reports) for update in step.updates)


def let_go(*reports: Report) -> list[RowId]:
    """Rows that were handed back."""
    return [row_id for step in steps([*reports]) for back in step.handed_back for row_id in back.row_ids]


def is_health(report: Report) -> bool:
    return isinstance(report, ExecutorHealth)


@pytest.mark.parametrize(("most", "error"), [(0, SHORTAGES[2]), (90, MemoryError())], ids=["none", "little"])
def test_rows_go_on_with_new_memory(bench: Bench, monkeypatch: pytest.MonkeyPatch, most: int, error: Exception) -> None:
    """The buffers that were given back could not be had again, not even smaller, and the executor died of that. With a
    few tokens it would have let its rows go after every turn, and have taken them again."""
    with monkeypatch.context() as patch:
        be_scarce(patch, most)
        bench.fail(error, KvArena)
        bench.admit(0, 1)
        told = bench.until(is_health)
        assert told[-1] == ExecutorHealth(0, "there is no memory")
        while len(let_go(*told)) < 2:  # the second may have been posted after the failure
            told += bench.until(lambda report: bool(let_go(report)))
        assert sorted(let_go(*told)) == [0, 1] and not ends(told)
        check(bench.lifecycle.table)
        bench.fault.on = False
    assert bench.health() is None
    bench.admit(0, 1)
    assert set(bench.until_ended(2).values()) == {FinishReason.LENGTH}


@pytest.mark.parametrize("where", [object, KvArena], ids=["every pass", "every decode step"])
def test_a_device_that_fails_lets_its_rows_go_and_takes_none_until_it_is_well(
    bench: Bench, where: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step raised, all calls failed, and it went on taking them."""
    monkeypatch.setattr(TorchDevice, "skips_padding", False)  # else one step fails for all ten, not several in a row
    bench.fault.where, bench.fault.on = where, True
    bench.admit(*range(10))
    told = bench.until(is_health)
    assert told[-1] == ExecutorHealth(0, "the engine failed on this request (RuntimeError)")
    while len(gone := [*ends(told), *let_go(*told)]) < 10:
        told += bench.until(lambda report: bool(let_go(report)))  # rows that were posted after the failure
    bench.admit(10)
    (back,) = steps(bench.until(lambda report: bool(let_go(report))))[-1].handed_back
    assert (back.row_ids, back.cause) == ((10,), Cause.FAULT)
    failed = ends(told)
    left = gone[len(failed) :]
    assert set(failed.values()) == {FinishReason.ERROR} and sorted([*failed, *left]) == list(range(10))
    assert left or where is KvArena
    bench.fault.on = False
    assert bench.health() is None
    bench.admit(10, 11)
    assert bench.until_ended(2) == {10: FinishReason.LENGTH, 11: FinishReason.LENGTH}


def test_rows_that_fail_on_a_sound_device_take_nothing_from_others(bench: Bench, net: Net) -> None:
    """Else one client, by what fails alone, would stop the server: the device proves itself at once, and goes on."""
    poisoned, error = {20, 21, 22, 23}, RuntimeError("no kernel for this")

    def poison(store: KvStore, _: Tensor) -> bool:
        return isinstance(store, Prefill) and not poisoned.isdisjoint(row.row_id for row in store.rows)

    device_of(bench.lifecycle).model = failing(net.model, error, poison)
    bench.admit(*poisoned, 24)
    done: list[Report] = []
    while len(ends(done)) < 5:
        new = bench.until(lambda report: bool(ends([report]) or let_go(report)))
        bench.admit(*let_go(*new))
        done += new
    assert ends(done) == {**dict.fromkeys(poisoned, FinishReason.ERROR), 24: FinishReason.LENGTH}
    assert not any(is_health(report) for report in done)


def test_memory_comes_back_to_an_executor_that_is_idle(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row longer than what was left would have waited for ever."""
    monkeypatch.setattr(health_module, "FIRST_CALM", 0.5)
    bench.fail(SHORTAGES[1], KvArena)
    bench.admit(0)
    bench.until(lambda report: isinstance(report, StepReport) and report.shape.capacity_tokens < 900)
    bench.fault.on = False
    assert all(step.shape.capacity_tokens < 900 for step in steps(bench.until(lambda report: bool(ends([report])))))
    bench.now += 0.5  # which it sees when it wakes by itself
    bench.until(lambda report: isinstance(report, StepReport) and report.shape.capacity_tokens == 1000)


def test_a_device_with_little_memory_left_proves_itself_with_more(bench: Bench) -> None:
    bench.fail(MemoryError())
    device_of(bench.lifecycle).batch.resize(120)
    bench.admit(0)
    assert bench.health() == "it runs out of memory"
    bench.fault.on = False
    assert bench.health() is None
    assert 200 < bench.lifecycle.table.shape().capacity_tokens <= 250


@pytest.fixture
def unwell_with_long_prompts(bench: Bench, tiny_model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> Fault:
    """A fault, of which there is none yet, that meets only prompts of 20 tokens and more."""
    monkeypatch.setattr(health_module, "LONGEST_PAUSE", 0.01)
    fault = Fault(SHORTAGES[2])

    def fails(store: KvStore, _: Tensor) -> bool:
        return fault.on and isinstance(store, Prefill) and store.rows[0].length >= 20

    device_of(bench.lifecycle).model = failing(tiny_model, fault.error, fails)
    return fault


def test_a_device_that_fails_for_long_prompts_takes_no_rows(bench: Bench, unwell_with_long_prompts: Fault) -> None:
    """27 of 48 calls failed after memory had been short, while a short prompt was read, and health said that all is
    well."""
    bench.admit(0, length=40)
    bench.until_ended(1)
    unwell_with_long_prompts.on = True
    bench.admit(1, length=30)
    told = bench.until(is_health)
    assert (ends(told), told[-1]) == ({1: FinishReason.ERROR}, ExecutorHealth(0, "it runs out of memory"))
    unwell_with_long_prompts.on = False
    assert bench.health() is None


def test_a_prompt_longer_than_before_takes_nothing_from_others(bench: Bench, unwell_with_long_prompts: Fault) -> None:
    """Else a client could end the server by a prompt for which the device has too little memory."""
    unwell_with_long_prompts.on = True
    bench.admit(0, length=30)
    told = bench.until(lambda report: bool(ends([report])))
    bench.admit(1)
    told += bench.until(lambda report: bool(ends([report])))
    assert ends(told) == {0: FinishReason.ERROR, 1: FinishReason.LENGTH} and not any(map(is_health, told))


@pytest.mark.parametrize(("action", "length"), [(Action.PREFILL, 30), (Action.ENTER, 4), (Action.DECODE, 4)])
def test_a_proof_has_the_shape_of_what_failed(tiny_text: Text, action: Action, length: int) -> None:
    rows = [play.row_of(tiny_text, prompt=(5,) * own) for own in (30, 9)]
    proof = Shape.from_rows(action, rows).proof(40, "proof")
    assert [len(spec.prompt) for spec in proof] == [length] * 2
    assert len({spec.row_id for spec in proof} - {row.row_id for row in rows}) == 2


def list_executors() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "executor-0"}


def test_a_lack_of_memory_that_a_thread_keeps_is_left_with_it(bench: Bench, tiny_model: LoadedModel) -> None:
    """oneDNN's code generator refuses what is new for good in a thread in which memory was short once."""
    unwell: set[threading.Thread] = set()
    before = list_executors()

    def fails(*_: object) -> bool:
        if bench.fault.on:
            unwell.add(threading.current_thread())
            bench.fault.on = False
        return threading.current_thread() in unwell

    device_of(bench.lifecycle).model = failing(tiny_model, SHORTAGES[2], fails)
    bench.fault.on = True
    bench.admit(0, 1, 2)
    assert set(bench.until_ended(3).values()) == {FinishReason.LENGTH} and len(unwell) == 1
    assert bench.executor.alive and len(list_executors() - before) == 1 and before <= list_executors()


def test_the_row_of_a_proof_is_no_request(net: Net) -> None:
    lifecycle = lifecycle_of(*net)
    assert lifecycle.prove() is None
    assert lifecycle.table.idle and not lifecycle.table.updates and not lifecycle.table.begun
