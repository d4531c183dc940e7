"""A prompt that begins like an earlier one is read from there on, and nothing of the answer tells."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.forward.prefill import Prefilled
from engine.kv.device_blocks import DeviceBlocks
from engine.kv.prefix_cache import PrefixCache
from engine.kv.row_kv import RowKv
from engine.lifecycle import Lifecycle
from engine.messages import NEVER, BatchPolicy, RowSpec
from engine.row import Row
from engine.torch_device import TorchDevice
from models.network.loader import LoadedModel, load
from models.text import Text
from tests.calls import note_calls
from tests.engine.forward.test_parity import Schedule, assert_as_if_alone
from tests.engine.invariants import check
from tests.engine.rows import answers_of, device_of, finish, lifecycle_of, read, short_in, spec, tokens_of
from tests.reference import Reference
from tests.tiny import Net


def lifecycle_with(prefixes: PrefixCache[RowKv], model: LoadedModel, text: Text, chunk: int = 64) -> Lifecycle[Row]:
    return lifecycle_of(model, text, capacity=1500, rows=6, chunk=chunk, headroom=32, prefixes=prefixes)


def read_one(net: tuple[LoadedModel, Text], one: RowSpec, *kept: Any) -> Prefilled:
    """A prompt alone."""
    with torch.inference_mode():
        return read(*net, [one], *kept)[one.row_id]


def assert_equal_bits(hit: Prefilled, miss: Prefilled) -> None:
    assert torch.equal(hit.kv.keys, miss.kv.keys) and torch.equal(hit.kv.values, miss.kv.values)
    assert torch.equal(hit.logits, miss.logits)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("length", [65, 128, 129, 200, 330])
def test_a_hit_computes_the_bits_of_a_miss(dtype: str, length: int, tiny_folder: Path, tiny_text: Text) -> None:
    net = load(tiny_folder, dtype=dtype), tiny_text
    whole, prefixes = spec(0, 330), PrefixCache[RowKv](2**30)
    read_one(net, whole, prefixes)
    one = replace(whole, prompt=(*whole.prompt[:length], 9, 8, 7))
    hit, miss = (read_one(net, one, cache) for cache in (prefixes, PrefixCache[RowKv](0)))
    assert (hit.row.cached_prompt, miss.row.cached_prompt) == (length // 64 * 64, 0)
    assert_equal_bits(hit, miss)


@pytest.mark.parametrize(("room", "copies"), [(10**9, 0), (3 * 64, 5), (0, 5)])
def test_a_hit_on_blocks_that_stayed_on_the_device_copies_none_from_the_host_and_has_the_same_bits(
    room: int, copies: int, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room on the device for so many tokens. All blocks were in host memory alone, and copied in for each hit."""
    copied_in = note_calls(monkeypatch, RowKv, "to", lambda block, device: block)
    lifecycle = lifecycle_with(PrefixCache[RowKv](2**30), *net)
    device_of(lifecycle)._blocks = DeviceBlocks(torch.device("cpu"), room * net.model.kv.bytes_per_token)
    answers = [answers_of(lifecycle, [replace(spec(0, 330), row_id=row_id)])[row_id] for row_id in range(2)]
    assert answers[0] == answers[1] and len(copied_in) == copies
    hit = read_one(net, spec(0, 330), device_of(lifecycle).prefixes, device_of(lifecycle)._blocks)
    assert hit.row.cached_prompt == 320
    assert_equal_bits(hit, read_one(net, spec(0, 330), PrefixCache[RowKv](0)))


def test_blocks_on_the_device_give_way_where_its_memory_runs_short(net: Net) -> None:
    prefixes: PrefixCache[RowKv] = PrefixCache(2**30, chunk=4)
    lifecycle = lifecycle_with(prefixes, short_in(net.model, object, 1), net.text)
    blocks = device_of(lifecycle)._blocks = DeviceBlocks(torch.device("cpu"), 2**30)
    lifecycle.table.admit([spec(0, 30)])
    lifecycle.turn()
    assert blocks.bytes > 0
    updates = finish(lifecycle)
    assert blocks.bytes == 0
    assert tokens_of(updates)[0] == answers_of(lifecycle_of(*net), [spec(0, 30)])[0][1:]


def test_what_is_dearer_to_copy_than_to_read_is_read(net: Net) -> None:
    """It was counted as a hit all the same."""
    prefixes: PrefixCache[RowKv] = PrefixCache(2**20, chunk=4)
    lifecycle, cached = lifecycle_with(prefixes, *net), []
    for row_id, terms in enumerate([BatchPolicy(), BatchPolicy(kept_from=NEVER), BatchPolicy()]):
        updates = finish(lifecycle, [replace(spec(0, 30), row_id=row_id)], terms)
        cached.append(sum(update.cached_prompt for update in updates))
    assert cached == [0, 0, 28] and prefixes.hits == 28


def test_a_prompt_that_is_read_whole_keeps_no_other_from_a_hit(net: Net) -> None:
    """Both were read in one group, which begins where the least kept prompt does."""
    prefixes: PrefixCache[RowKv] = PrefixCache(2**20, chunk=4)
    lifecycle = lifecycle_with(prefixes, *net)
    finish(lifecycle, [spec(0, 30)])
    both = [replace(spec(0, 30), row_id=1), replace(spec(0, 30, prompt_logprobs=0), row_id=2)]
    assert {one.row_id: one.cached_prompt for one in finish(lifecycle, both) if one.cached_prompt} == {1: 28}


def test_prompts_admitted_together_are_read_from_where_each_ones_kept_prefix_ends(net: Net) -> None:
    lifecycle = lifecycle_with(PrefixCache[RowKv](2**20, chunk=4), *net)
    first = spec(0, 20)
    finish(lifecycle, [first])
    specs = [
        replace(first, row_id=1, prompt=(*first.prompt, 5, 6)),
        spec(2, 22),
        replace(first, row_id=3, prompt=(*first.prompt[:12], 7)),
        replace(first, row_id=4, prompt=(*first.prompt, 9), cache_scope="another's"),
    ]
    assert {one.row_id: one.cached_prompt for one in finish(lifecycle, specs) if one.cached_prompt} == {1: 20, 3: 12}


class Conversations(Schedule):
    """Arrivals of which most go on where an earlier row's answer has come to."""

    def __init__(self, seed: int, model: LoadedModel, text: Text, prefixes: PrefixCache[RowKv]) -> None:
        super().__init__(seed, model, text)
        self.prefixes = prefixes
        chunk = self.rng.choice([8, 64, 512])
        self.lifecycle = Lifecycle(TorchDevice(model, text, device_of(self.lifecycle).batch, chunk, prefixes=prefixes))
        self.cached = 0

    def arrive(self) -> RowSpec:
        row = super().arrive()
        if self.specs and self.rng.random() < 0.7:
            earlier = self.specs[self.rng.choice(list(self.specs))]
            history = (*earlier.prompt, *self.tokens[earlier.row_id])[-150:]
            row = replace(row, prompt=(*history, *row.prompt[:20]))
        self.specs[row.row_id] = replace(row, cache_scope=self.rng.choice(["", "", "b"]))
        return self.specs[row.row_id]

    def turn(self) -> None:
        super().turn()
        check(self.prefixes)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("capacity", [40, 300, 10_000])
def test_conversations_are_as_in_transformers(seed: int, capacity: int, net: Net, tiny_reference: Reference) -> None:
    """Whatever is cancelled, evicted, preempted and handed back meanwhile, in memory for `capacity` tokens."""
    chunk = random.Random(seed).choice([4, 16])
    prefixes = PrefixCache[RowKv](capacity * net.model.kv.bytes_per_token, chunk=chunk)
    schedule = Conversations(seed, *net, prefixes)
    schedule.terms = [BatchPolicy(), BatchPolicy(kept_from=NEVER), BatchPolicy(closed=True, iterations=9)]
    schedule.run(rows=20)
    assert_as_if_alone(schedule, tiny_reference)
    assert prefixes.hits > 0 or capacity == 40
    assert prefixes.bytes <= prefixes.capacity


def test_bfloat16_conversations_answer_alike_with_and_without_a_cache(tiny_folder: Path, tiny_text: Text) -> None:
    model = load(tiny_folder, dtype="bfloat16")

    def converse(prefixes: PrefixCache[RowKv]) -> list[list[int]]:
        lifecycle, history, answers = lifecycle_with(prefixes, model, tiny_text, 128), tuple[int, ...](), []
        for turn in range(4):
            history += spec(turn, 50).prompt
            answers.append(answers_of(lifecycle, [replace(spec(turn, max_tokens=30), prompt=history)])[turn])
            history += tuple(answers[-1])
        return answers

    prefixes: PrefixCache[RowKv] = PrefixCache(2**30)
    assert converse(prefixes) == converse(PrefixCache[RowKv](0))
    assert prefixes.hits == 128 + 192, "whole chunks of the prompts two and three"
