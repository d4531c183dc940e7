"""The arena's surgery: literal pictures first, then random sequences of verbs against plain lists."""

from unittest.mock import Mock

import pytest
import torch
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.kv.arena import ArenaFull, KvArena
from engine.kv.row_kv import RowKv
from models.network.kv_store import KvShape
from tests.calls import note_calls
from tests.engine.invariants import check

SHAPE = KvShape(layers=2, kv_heads=2, head_dim=4, dtype=torch.float32, device=torch.device("cpu"))


def cells(*marks: float) -> RowKv:
    """K and V of a row whose every token is filled with its mark; V is the negative of K."""
    keys = torch.tensor(marks)[None, None, :, None].expand(SHAPE.layers, SHAPE.kv_heads, len(marks), SHAPE.head_dim)
    return RowKv(keys.clone(), -keys)


def marks(kv: RowKv) -> list[float]:
    assert torch.equal(kv.values, -kv.keys)
    assert torch.equal(kv.keys, kv.keys[:1, :1, :, :1].expand_as(kv.keys))
    line: list[float] = kv.keys[0, 0, :, 0].tolist()
    return line


def arena_of(capacity: int, max_rows: int, *rows: RowKv) -> KvArena:
    arena = KvArena(SHAPE, capacity, max_rows=max_rows)
    for row in rows:
        arena.insert(row)
    return arena


def write(arena: KvArena, *tokens: float) -> None:
    """One decode step: each live row gets a token."""
    enter(arena, list(tokens), [])


def enter(arena: KvArena, tokens: list[float], joining: list[list[float]]) -> None:
    """A step in which rows enter: those that run get a token each, and what does not count is marked -1."""
    width = arena.open([len(row) for row in joining])
    fed = torch.tensor([[-1.0] * (width - len(row)) + row for row in ([[token] for token in tokens] + joining)])
    keys = fed[:, None, :, None].expand(len(fed), SHAPE.kv_heads, width, SHAPE.head_dim)
    newest = arena.begin_pass(len(keys), keys.shape[2])
    for layer in range(SHAPE.layers):
        newest.write(layer, keys, -keys)


def test_what_a_step_of_several_tokens_may_read() -> None:
    """Each token what is before it in its row; a cell that holds none reads itself alone."""
    arena = arena_of(24, 3, cells(1, 2))
    arena.open([1, 3])
    mask = arena.mask(3)
    assert mask is not None and mask.int()[:, 0].tolist() == [
        [[1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 1, 0, 0, 1]],
        [[0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]],
        [[0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 1, 1, 1]],
    ]


def test_front_padding_is_released_when_the_longest_row_leaves() -> None:
    arena = arena_of(16, 2, cells(1, 2, 3, 4), cells(5))
    arena.remove(0)
    assert (arena.start, arena.window) == (3, 1)
    assert marks(arena.extract(0)) == [5]


def test_rows_that_fill_the_window_need_no_mask() -> None:
    arena = arena_of(16, 2, cells(1, 2), cells(3, 4))
    assert arena.mask() is None
    arena.remove(1)
    arena.insert(cells(5))
    mask = arena.mask()
    assert mask is not None and mask.tolist() == [[[[True, True]]], [[[False, True]]]]


def test_wiped_rows_leave_nothing_that_could_poison_their_successors() -> None:
    """The last row used to be copied into the place of the first, and its old cells kept their NaN."""
    arena = KvArena(SHAPE, 16, max_rows=4)
    for tokens in ((1.0,), (2, float("nan")), (3, float("nan"))):
        arena.insert(cells(*tokens))
    arena.remove(1, wipe=True)
    arena.remove(1, wipe=True)
    check(arena)
    assert marks(arena.extract(0)) == [1]
    for row in ((float("nan"), 4.0, 5.0), (6.0, 7.0, 8.0), (9.0,)):  # a short row takes the place of a long one
        arena.insert(cells(*row))
    arena.remove(1, wipe=True)
    check(arena)
    assert marks(arena.extract(1)) == [9]


def test_memory_is_laid_out_for_little_more_than_the_window_where_all_of_it_is_read() -> None:
    arena = KvArena(SHAPE, 240, max_rows=2)
    arena._room = 2
    arena.insert(cells(*range(1, 31)))
    arena.insert(cells(31))
    assert (arena.pitch, arena.columns) == (32, 120)
    for token in (1.0, 2.0, 3.0):
        write(arena, token, token)
    assert arena.pitch == 35, "the window has grown beyond it"
    arena.remove(0)
    write(arena, 4.0)
    assert (arena.pitch, arena.start, arena.end) == (7, 0, 5), "what is left is a small part of it"
    assert marks(arena.extract(0)) == [31, 1, 2, 3, 4]
    check(arena)


@pytest.mark.parametrize(("lacks", "copied"), [(False, [3, 3]), (True, [3])])
def test_rows_that_join_are_copied_together(monkeypatch: pytest.MonkeyPatch, lacks: bool, copied: list[int]) -> None:
    if lacks:
        monkeypatch.setattr(torch, "cat", Mock(side_effect=torch.OutOfMemoryError("injected")))
    calls = note_calls(monkeypatch, torch, "cat", lambda parts, dim: len(parts))
    arena = KvArena(SHAPE, 60, max_rows=5, by_token=True)
    for row in ([1.0, 2.0, 3.0], [4.0], [5.0, 6.0]):
        arena.insert(cells(*row))
    assert calls == []
    write(arena, 7, 8, 9)
    assert calls == copied
    arena.insert(cells(10.0, 11.0))
    arena.insert(cells(12.0))
    arena.remove(0)  # the last row takes its place, though it has not been copied yet
    write(arena, 13, 14, 15, 16)
    assert [marks(arena.extract(row)) for row in range(4)] == [[12, 13], [4, 8, 14], [5, 6, 9, 15], [10, 11, 16]]
    check(arena)


class ArenaMachine(RuleBasedStateMachine):
    """Random surgery; the model is one list of marks a row."""

    by_token = False

    def __init__(self) -> None:
        super().__init__()
        self.arena = KvArena(SHAPE, 60, max_rows=5, by_token=self.by_token)
        self.rows: list[list[float]] = []
        self.fresh = 0
        self.addresses = (self.arena.buffers[0].data_ptr(), self.arena.buffers[1].data_ptr())

    def mark(self) -> float:
        self.fresh += 1
        return float(self.fresh)

    @rule(length=st.integers(1, 20))
    def insert(self, length: int) -> None:
        row = [self.mark() for _ in range(length)]
        fits = len(self.rows) < self.arena.rows and max(length, self.arena.window) <= self.arena.columns
        if not fits:
            with pytest.raises(ArenaFull):
                self.arena.insert(cells(*row))
            return
        assert self.arena.insert(cells(*row)) == len(self.rows)
        self.rows.append(row)

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), wipe=st.booleans())
    def remove(self, data: st.DataObject, wipe: bool) -> None:
        place = data.draw(st.integers(0, len(self.rows) - 1))
        self.arena.remove(place, wipe=wipe)
        self.forget(place)

    @precondition(lambda self: self.rows)
    @rule()
    def step(self) -> None:
        if self.arena.window == self.arena.columns:
            with pytest.raises(ArenaFull):
                self.arena.open()
            return
        tokens = [self.mark() for _ in self.rows]
        write(self.arena, *tokens)
        for row, token in zip(self.rows, tokens, strict=True):
            row.append(token)

    @precondition(lambda self: self.rows and self.arena.window < self.arena.columns)
    @rule()
    def failed_step(self) -> None:
        self.arena.close(self.arena.open())

    @precondition(lambda self: self.arena.window < self.arena.columns)
    @rule(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=3), fails=st.booleans())
    def enter(self, lengths: list[int], fails: bool) -> None:
        rows, columns = len(self.rows) + len(lengths), self.arena.window + max(lengths)
        if rows > self.arena.rows or columns > self.arena.columns:
            with pytest.raises(ArenaFull):
                self.arena.open(lengths)
            return
        if fails:
            self.arena.close(self.arena.open(lengths), len(lengths))
            return
        joining = [[self.mark() for _ in range(length)] for length in lengths]
        tokens = [self.mark() for _ in self.rows]
        enter(self.arena, tokens, joining)
        for row, token in zip(self.rows, tokens, strict=True):
            row.append(token)
        self.rows += joining

    @rule(rows=st.integers(1, 6), columns=st.integers(1, 60))
    def reshape(self, rows: int, columns: int) -> None:
        fits = rows >= len(self.rows) and columns >= self.arena.window and rows * columns <= 60
        if not fits:
            with pytest.raises(ArenaFull):
                self.arena.reshape(rows, columns)
            return
        self.arena.reshape(rows, columns)
        assert (self.arena.rows, self.arena.columns) == (rows, columns)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def extract_and_restore(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.rows) - 1))
        kv = self.arena.extract(place)
        self.arena.remove(place)
        row = self.forget(place)
        assert marks(kv) == row
        if not self.rows:  # an empty arena has its first proportions again
            self.arena.reshape(1, kv.length)
        self.arena.insert(kv)
        self.rows.append(row)

    def forget(self, place: int) -> list[float]:
        """The last row moves into the place of the one that leaves."""
        row, self.rows[place] = self.rows[place], self.rows[-1]
        self.rows.pop()
        return row

    @invariant()
    def holds_exactly_the_rows_of_the_model(self) -> None:
        check(self.arena)
        assert (self.arena.buffers[0].data_ptr(), self.arena.buffers[1].data_ptr()) == self.addresses
        assert [marks(self.arena.extract(place)) for place in range(self.arena.live)] == self.rows


class TightMachine(ArenaMachine):
    """An arena machine whose memory is laid out for few columns beyond the window."""

    def __init__(self) -> None:
        super().__init__()
        self.arena._room = 2
        self.arena._view(self.arena.rows, self.arena.columns)


class ByTokenMachine(ArenaMachine):
    """An arena machine whose tokens are runs of memory, which are read where `starts` says in whatever view."""

    by_token = True

    @invariant()
    def rows_without_holes_are_runs(self) -> None:
        keys, values = (cells[0, :, 0, 0].tolist() for cells in self.arena.tokens)
        assert keys[60] == values[60] == 0, "the last token is no row's"
        if not self.arena.has_holes:
            for start, row in zip(self.arena.starts(), self.rows, strict=True):
                assert keys[start : start + len(row)] == row
                assert values[start : start + len(row)] == [-mark for mark in row]


TestByTokenMachine = ByTokenMachine.TestCase
TestByTokenMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

TestTightMachine = TightMachine.TestCase
TestTightMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

TestArenaMachine = ArenaMachine.TestCase
TestArenaMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
