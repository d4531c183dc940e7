"""The heart: whatever happens around a row, it generates what it would generate alone (design 1.4)."""

import random
from dataclasses import replace

import pytest

from engine.forward.batch import RunningBatch
from engine.kv.arena import KvArena
from engine.kv.row_kv import RowKv
from engine.lifecycle import Lifecycle
from engine.messages import NEVER, BatchPolicy, Cause, Entry, FinishReason, Overflow, RowId, RowSpec
from engine.torch_device import TorchDevice
from models.network.loader import LoadedModel
from models.text import Text
from tests.engine.invariants import check
from tests.engine.rows import device_of, greedy
from tests.reference import Reference
from tests.tiny import Net


class Schedule:
    """A random but repeatable run: arrivals in groups, some cancelled later, until all is done."""

    def __init__(self, seed: int, model: LoadedModel, text: Text, arena: type[KvArena] = KvArena) -> None:
        self.rng = random.Random(seed)
        self.model = model
        capacity, rows = [(300, 12), (1500, 8), (4000, 32)][seed % 3]
        batch = RunningBatch(model, arena(model.kv, capacity, max_rows=rows), headroom=self.rng.choice([0, 32]))
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
    for row_id, spec in schedule.specs.items():
        alone = tiny_reference.generate(spec)
        found = schedule.tokens[row_id]
        assert found == (alone[: len(found)] if row_id in schedule.cancelled else alone), f"row {row_id}"


def test_a_schedule_exercises_every_kind_of_surgery(net: Net) -> None:
    """The test above would prove little if no row were ever swapped_out, or no window ever slid or re-shaped."""
    seen: set[str] = set()

    class Watched(KvArena):
        def _lay_out(self, rows: int, columns: int, to: int, more: int = 0) -> None:
            if (rows, columns) == (self.rows, self.columns):
                seen.add("slide right" if to > self.start else "slide left")
            super()._lay_out(rows, columns, to, more)

        def reshape(self, rows: int, columns: int) -> None:
            seen.add("more rows" if rows > self.rows else "more columns")
            super().reshape(rows, columns)

        def extract(self, row: int) -> RowKv:
            seen.add("extract")
            return super().extract(row)

    for seed in range(6):
        Schedule(seed, *net, Watched).run(rows=30)
    assert seen == {"slide right", "slide left", "more rows", "more columns", "extract"}
