"""Prefill in chunks and in company gives what one plain pass over each prompt gives."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from engine.device import StepOutcome
from engine.forward.batch import RunningBatch
from engine.forward.decode import Decode
from engine.forward.prefill import Prefill, Prefilled
from engine.kv.arena import KvArena
from engine.kv.prefix_cache import PrefixCache
from engine.kv.row_kv import RowKv
from engine.lifecycle import Lifecycle
from engine.messages import RowSpec, TokenLogprob
from engine.row import Row
from engine.torch_device import TorchDevice
from models.network.loader import LoadedModel
from models.text import Text
from tests.calls import Operations, note_calls
from tests.engine.rows import admitted, read, spec
from tests.tiny import Net


@dataclass(frozen=True)
class Plain:
    """A prompt through transformers alone: K, V and all logits."""

    kv: RowKv
    logits: Tensor  # (prompt, vocab)


@pytest.fixture(scope="module")
def network(tiny_folder: Path) -> PreTrainedModel:
    network: PreTrainedModel = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    nn.Module.eval(network)
    return network


def plain(network: PreTrainedModel, prompt: Sequence[int]) -> Plain:
    cache: Any = DynamicCache()
    with torch.inference_mode():
        logits = network(input_ids=torch.tensor([prompt]), past_key_values=cache, use_cache=True).logits[0]
    keys = torch.stack([layer.keys[0] for layer in cache.layers])
    values = torch.stack([layer.values[0] for layer in cache.layers])
    return Plain(RowKv(keys, values), logits)


def rows_of(model: LoadedModel, text: Text, specs: Sequence[RowSpec]) -> list[Row]:
    return [Row(one, text, model.end_token_ids) for one in specs]


def assert_same(found: Prefilled, expected: Plain) -> None:
    assert found.kv.length == len(found.row.prompt)
    for ours, theirs in (
        (found.kv.keys, expected.kv.keys),
        (found.kv.values, expected.kv.values),
        (found.logits, expected.logits[-1]),
    ):
        torch.testing.assert_close(ours, theirs, atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("grain", [1, 16])
@pytest.mark.parametrize("chunk", [1, 7, 20, 64, 10_000])
def test_ragged_rows_in_chunks_equal_transformers(net: Net, network: PreTrainedModel, chunk: int, grain: int) -> None:
    specs = [spec(row_id, length) for row_id, length in enumerate([5, 24, 1, 17, 24])]
    done = read(*net, specs, grain=grain, chunk=chunk)
    assert done.keys() == {0, 1, 2, 3, 4}
    for one in specs:
        assert_same(done[one.row_id], plain(network, one.prompt))


@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=5), chunk=st.integers(1, 60), data=st.data())
def test_rows_that_are_dropped_midway_do_not_disturb_the_others(
    net: Net, network: PreTrainedModel, lengths: list[int], chunk: int, data: st.DataObject
) -> None:
    specs = [spec(row_id, length) for row_id, length in enumerate(lengths)]
    group, done, dropped = (Prefill(net.model, rows_of(*net, specs)), dict[int, Prefilled](), set[int]())
    while group.rows:
        if data.draw(st.booleans()):
            row_id = data.draw(st.integers(0, len(lengths) - 1))
            dropped |= {row.row_id for row in group.rows if row.row_id == row_id}
            group.drop(row_id)
        if group.rows:
            done |= {found.row.row_id: found for found in group.advance(chunk)}
    assert done.keys() | dropped == set(range(len(lengths))) and not done.keys() & dropped
    for row_id, found in done.items():
        assert_same(found, plain(network, specs[row_id].prompt))


def test_a_chunk_is_at_most_as_many_tokens_as_given_but_at_least_one_column(net: Net) -> None:
    specs = [spec(row_id, length) for row_id, length in enumerate([10, 9, 4])]

    def advances(chunk: int) -> list[list[int]]:
        group = Prefill(net.model, rows_of(*net, specs))
        return [[found.row.row_id for found in group.advance(chunk)] for _ in range(20) if group.rows]

    assert advances(12) == [[2], [0, 1]]  # 3 rows x 4 columns, then 2 rows x 6 columns
    assert advances(1) == [[], [], [], [2], [], [], [], [], [1], [0]]


# Log-probabilities of the prompt


@pytest.mark.parametrize("chunk", [1, 5, 16, 27])
def test_log_probabilities_of_prompts_are_those_of_a_plain_pass(net: Net, network: PreTrainedModel, chunk: int) -> None:
    """Wherever the chunks end, and also when a mate wants none."""
    specs = [spec(0, 9, prompt_logprobs=0), spec(1, 12), spec(2, 5, prompt_logprobs=3), spec(3, 1, prompt_logprobs=1)]
    done = read(*net, specs, chunk=chunk)
    assert done[1].row.prompt_logprobs is None
    for row_id, top in ((0, 0), (2, 3), (3, 1)):
        found, prompt = done[row_id].row.prompt_logprobs, specs[row_id].prompt
        assert found is not None and found[0] is None and len(found) == len(prompt)
        lines = plain(network, prompt).logits.log_softmax(dim=-1)
        for line, token, report in zip(lines, prompt[1:], found[1:], strict=False):
            assert isinstance(report, TokenLogprob) and report.token_id == token
            best = line.topk(top)
            assert [other for other, _ in report.top] == best.indices.tolist()
            numbers = [report.logprob, *(value for _, value in report.top)]
            assert numbers == pytest.approx([float(line[token]), *best.values.tolist()], abs=1e-4)
            assert report.rank == 1 + int((line > line[token]).sum())


@pytest.mark.parametrize(("lengths", "shapes"), [([50, 33], [(2, 64)]), ([70], [(1, 128)]), ([4096], [(1, 4096)])])
def test_passes_have_few_widths_and_no_position_beyond_the_context(
    net: Net, lengths: list[int], shapes: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A width that a GPU had never seen took it up to four times as long."""
    model = replace(net.model, context_length=max(lengths))

    def shape(model: LoadedModel, tokens: Tensor, positions: Tensor, *_: object) -> tuple[int, ...]:
        assert positions.shape == tokens.shape and int(positions.max()) < model.context_length
        return tuple(tokens.shape)

    seen = note_calls(monkeypatch, LoadedModel, "forward", shape)
    specs = [spec(row_id, length) for row_id, length in enumerate(lengths)]
    Prefill(model, rows_of(model, net.text, specs), grain=64).finish(8192)
    assert seen == shapes


def launches(function: Any, _: Any) -> list[str]:
    """Launches and copies, and new memory; views are neither."""
    returns = [one.alias_info for one in function._schema.returns]
    if returns and not any(one is None or one.is_write for one in returns):
        return []
    return ["launch", "allocation"] if all(one is None for one in returns) else ["launch"]


@torch.inference_mode()
@pytest.mark.parametrize(("kept", "most"), [(0, 8.97 / 6), (2**30, 12.97 / 4)])
def test_prompts_take_few_launches(net: Net, monkeypatch: pytest.MonkeyPatch, kept: int, most: float) -> None:
    """From queue to batch, without the network: they were 8.97 a prompt, 12.97 where its prefix is kept."""
    rows = 64
    monkeypatch.setattr(LoadedModel, "forward", lambda model, *given: torch.zeros(len(given[-1][0]), 320))
    monkeypatch.setattr(Decode, "step", lambda decode: StepOutcome())
    arena = KvArena(net.model.kv, rows * 200, max_rows=rows, by_token=True)
    device = TorchDevice(*net, RunningBatch(net.model, arena), 8192, prefixes=PrefixCache(kept, chunk=64))
    lifecycle = admitted(Lifecycle(device), [spec(row_id, 64) for row_id in range(rows)])
    with Operations(launches) as kernels:
        while len(device.batch.rows) < rows:
            lifecycle.turn()
        assert len(arena.tokens) == 2
    assert len(kernels.found) / rows < most
