"""Measuring a device: a network whose every pass takes a known time on a clock of our own."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from engine.forward.batch import RunningBatch
from engine.kv.arena import KvArena
from engine.kv.row_kv import RowKv
from engine.measure.profiler import REPEATS, GridCell, Profiler, copied, grid, survey
from engine.measure.slots import FoundSlots, find_slots
from engine.measure.timing import Timing
from engine.row import Row
from models.errors import UserError
from models.network.kv_store import KvStore
from tests.calls import note_calls
from tests.engine.rows import faulty
from tests.tiny import Net


@dataclass
class Device:
    """A clock that only the network's passes move, by `cost(rows, columns, whether it was a decode step)`."""

    cost: Callable[[int, int, bool], float]
    seconds: float = 0.0
    passes: list[tuple[int, int, bool]] = field(default_factory=list)

    def run(self, store: KvStore, logits: Tensor) -> Tensor:
        decodes = isinstance(store, KvArena)
        columns = store.window if isinstance(store, KvArena) else 0
        self.passes.append((logits.shape[0], columns, decodes))
        self.seconds += self.cost(*self.passes[-1])
        return logits

    def clock(self) -> float:
        return self.seconds


def profiler_of(net: Net, device: Device, kind: type[Profiler] = Profiler, **sizes: int) -> Profiler:
    given = {"capacity_tokens": 4000, "max_rows": 8, "chunk_tokens": 512, **sizes}
    return kind(faulty(net.model, device.run), net.text, clock=device.clock, **given)


def test_a_prefill_is_all_its_chunks(net: Net) -> None:
    device = Device(lambda rows, columns, decodes: 100.0 if decodes else 1.0)
    profiler = profiler_of(net, device, chunk_tokens=20)
    assert profiler.prefill(2, 30) == 3.0  # 60 tokens, 20 at a time
    assert not any(decodes for *_, decodes in device.passes)


def test_an_iteration_is_the_median_of_some_around_the_length_it_names(net: Net) -> None:
    device = Device(lambda rows, columns, decodes: rows * columns)
    timing = profiler_of(net, device).decode(3, 40)
    assert timing == Timing(3, 38, 3 * 38)
    assert device.passes == [(3, columns, True) for columns in range(40 - REPEATS, 41)]


def test_copies_are_all_rows_out_and_in_again(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second for each row that leaves, ten for each that comes back; how they came first is not timed."""
    device = Device(lambda *_: 0.0)

    def extract(batch: RunningBatch, row: Row) -> None:
        device.seconds += 1

    def insert(batch: RunningBatch, row: Row, kv: RowKv, **more: bool) -> None:
        device.seconds += 10
        assert kv.length == 30

    for note in (extract, insert):
        note_calls(monkeypatch, RunningBatch, note.__name__, note)
    profiler = profiler_of(net, device)
    assert [profiler.copies(3, 30), profiler.copies(2, 30)] == [33, 22]
    assert not device.passes


def test_each_length_is_copied_in_a_batch_but_not_too_much_at_a_time() -> None:
    cells = tuple(GridCell(rows, length) for rows in (1, 32) for length in (9000, 16, 1024))
    assert copied(cells) == (GridCell(8, 16), GridCell(4, 1024), GridCell(1, 9000))
    assert copied((GridCell(2, 16), GridCell(1, 16))) == (GridCell(2, 16),)


def test_a_slice_is_a_prefill_and_its_iterations_and_leaves_nothing_behind(net: Net) -> None:
    device = Device(lambda rows, columns, decodes: float(columns) if decodes else 1000.0)
    profiler = profiler_of(net, device)
    assert [profiler.slice(2, 20, 4) for _ in range(2)] == [1000 + 21 + 22 + 23 + 24] * 2


def test_a_network_that_computes_nothing_usable_is_told(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "run", lambda device, store, logits: torch.full_like(logits, torch.nan))
    with pytest.raises(UserError, match="try another --dtype"):
        profiler_of(net, Device(lambda *_: 0.0)).prefill(1, 16)


def test_the_grid_is_spaced_by_ratio_and_its_cheapest_cell_comes_first() -> None:
    found = [(cell.rows, cell.length) for cell in grid(4, 64, points=3)]
    assert found == [(1, 16), (1, 32), (2, 16), (1, 64), (2, 32), (4, 16), (2, 64), (4, 32), (4, 64)]


@pytest.mark.parametrize(("rows", "longest"), [(1, 1000), (8, 31)])
def test_no_grid_lies_between_bounds_too_narrow(rows: int, longest: int) -> None:
    with pytest.raises(ValueError, match="raise --max-num-seqs or --max-model-len"):
        grid(rows, longest, points=3)


def measured(timings: tuple[Timing, ...]) -> list[GridCell]:
    """Cells of prefills and copies."""
    return [GridCell(one.rows, one.length) for one in timings]


def stepped(timings: tuple[Timing, ...]) -> list[GridCell]:
    """Cells of decode iterations, of which the middle one is told."""
    return [GridCell(one.rows, one.length + REPEATS // 2) for one in timings]


def test_a_survey_measures_every_cell_when_there_is_time(net: Net) -> None:
    device = Device(lambda rows, columns, decodes: 0.01)
    cells = grid(4, 64, points=3)
    told: list[tuple[str, int, int]] = []
    found = survey(profiler_of(net, device), cells, 1e6, lambda *watched: told.append(watched))
    assert told == [
        (phase, done, total)
        for phase, total in (("copies", 3), ("prefill", len(cells)), ("decode", len(cells)))
        for done in range(1, total + 1)
    ]
    assert measured(found.copies) == list(copied(cells)) == [GridCell(4, 16), GridCell(4, 32), GridCell(4, 64)]
    assert measured(found.prefill) == stepped(found.decode) == list(cells)
    runs = sum(not decodes for *_, decodes in device.passes)
    assert runs == len(cells) * (1 + REPEATS)


def test_cells_that_would_not_end_in_time_are_passed_over(net: Net) -> None:
    """A prefill takes its tokens in seconds, here 16 to 256; of 1,000 seconds, 600 are for prefill."""
    device = Device(lambda rows, columns, decodes: 1.0 if decodes else 0.0)
    model_seconds: list[int] = []

    class Slow(Profiler):
        def prefill(self, rows: int, length: int) -> float:
            model_seconds.append(rows * length)
            device.seconds += rows * length
            return float(rows * length)

    found = survey(profiler_of(net, device, Slow, max_rows=4), grid(4, 64, points=3), 1000.0, lambda *_: None)
    # Up to 4 x 16, cells take 16, 32, 32, 64, 64 and 64; the first fits twice into its share of 66 s, then each once.
    assert measured(found.prefill)[:6] == list(grid(4, 64, points=3))[:6]
    assert sum(model_seconds) <= 600
    assert measured(found.prefill) != list(grid(4, 64, points=3))
    assert stepped(found.decode) == list(grid(4, 64, points=3))


def test_cells_that_do_not_fit_are_passed_over(net: Net) -> None:
    device = Device(lambda rows, columns, decodes: 0.0)
    cells = grid(4, 64, points=3)
    found = survey(profiler_of(net, device, capacity_tokens=132, max_rows=4), cells, 100.0, lambda *_: None)
    small = [cell for cell in cells if cell.rows * (cell.length + 1) <= 132]
    assert measured(found.prefill) == stepped(found.decode) == small
    assert GridCell(4, 64) not in small
    assert measured(found.copies) == [GridCell(4, 16), GridCell(4, 32)]


# The number of rows that a device gains by


def find(cost: Callable[[int], float], most: int = 1000, time_limit: float = 1000.0) -> tuple[FoundSlots, list[int]]:
    """The slots found, and the rows that were measured, where measuring takes as long as a step."""
    seconds, measured = 0.0, list[int]()

    def step(rows: int) -> float:
        nonlocal seconds
        measured.append(rows)
        seconds += cost(rows)
        return cost(rows)

    return find_slots(step, most, time_limit, lambda: seconds), measured


GAINS = [
    (lambda rows: 1.0, 128, 128),  # weights alone bind
    (lambda rows: rows, 8, 16),  # arithmetic alone
    (lambda rows: max(1.0, rows / 32), 32, 64),
    (lambda rows: max(1.0, rows / 64) if rows < 100 else 2.2, 64, 128),  # it becomes worse
    (lambda rows: 1 + rows / 10, 64, 128),  # both: 64 bring 13 % more than 32, 128 7 % more than 64
]


@pytest.mark.parametrize(("cost", "slots", "last"), GAINS)
def test_twice_as_many_rows_must_bring_a_tenth(cost: Callable[[int], float], slots: int, last: int) -> None:
    assert find(cost)[0] == (slots, True) and find(cost)[1][-1] == last


def test_memory_bounds_slots() -> None:
    assert find(lambda rows: 1.0, most=50) == ((32, True), [8, 16, 32])
    assert find(lambda rows: 1.0, most=3) == ((3, True), [])


def test_measuring_ends_in_time_with_32_at_least() -> None:
    assert find(lambda rows: 2.0, time_limit=3.0) == ((32, False), [8])
    assert find(lambda rows: 2.0, time_limit=13.0) == ((128, True), [8, 16, 32, 64, 128])
    assert find(lambda rows: 2.0, time_limit=11.0) == ((64, False), [8, 16, 32, 64])
    assert find(lambda rows: 2.0, most=10, time_limit=3.0) == ((10, True), [8])
