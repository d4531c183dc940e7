"""Hidden states at the ends of prompts are those of transformers, however the prompts are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from engine.forward.batch import RunningBatch
from engine.forward.prefill import Prefill
from engine.kv.arena import KvArena
from engine.kv.prefix_cache import PrefixCache
from engine.kv.row_kv import RowKv
from engine.messages import RowSpec
from engine.pipeline import Pipeline
from engine.row import Row
from models.network.hidden_states import choose_layer
from models.network.loader import LoadedModel, load
from models.text import Text
from tests.architectures import GROUPED, build
from tests.engine.rows import finish, spec

RAGGED = [spec(row_id, length) for row_id, length in enumerate([5, 24, 1, 17, 24])]


@pytest.fixture(scope="module", params=["Llama", "Mixtral"], ids=["own pass", "through transformers"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {**GROUPED, "num_hidden_layers": 3, **({"num_local_experts": 4} if request.param == "Mixtral" else {})}
    return build(tmp_path_factory.mktemp("states"), request.param, sizes)


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedModel:
    return replace(load(folder, dtype="float32"), state_layer=choose_layer(3))


@pytest.fixture(scope="module")
def network(folder: Path) -> PreTrainedModel:
    network: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    nn.Module.eval(network)
    return network


def assert_told(found: dict[int, bytes], specs: Sequence[RowSpec], network: PreTrainedModel) -> None:
    assert found.keys() == {one.row_id for one in specs}
    for one in specs:
        with torch.inference_mode():
            states = network(input_ids=torch.tensor([one.prompt]), output_hidden_states=True).hidden_states
        state = np.frombuffer(found[one.row_id], dtype=np.float32)
        np.testing.assert_allclose(state, states[2][0, -1].numpy(), atol=5e-5, rtol=1e-4)


def read(
    model: LoadedModel, text: Text, specs: Sequence[RowSpec], chunk: int, prefixes: PrefixCache[RowKv] | None = None
) -> dict[int, bytes]:
    group = Prefill(model, [Row(one, text, frozenset()) for one in specs], prefixes)
    found: dict[int, bytes] = {}
    while group.rows:
        found |= {done.row.row_id: done.row.hidden_state for done in group.advance(chunk)}
    return found


def test_the_layer_is_at_two_thirds_of_the_depth() -> None:
    assert [choose_layer(layers) for layers in (1, 2, 3, 30, 32)] == [1, 1, 2, 20, 21]


@pytest.mark.parametrize("chunk", [1, 7, 64, 10_000])
def test_ragged_prompts_in_chunks(model: LoadedModel, tiny_text: Text, network: PreTrainedModel, chunk: int) -> None:
    assert_told(read(model, tiny_text, RAGGED, chunk), RAGGED, network)


def test_a_prompt_that_is_scored(model: LoadedModel, tiny_text: Text, network: PreTrainedModel) -> None:
    specs = [spec(0, 9, prompt_logprobs=1), spec(1, 12)]
    assert_told(read(model, tiny_text, specs, 10), specs, network)


def test_a_prompt_whose_beginning_was_kept(model: LoadedModel, tiny_text: Text, network: PreTrainedModel) -> None:
    prefixes: PrefixCache[RowKv] = PrefixCache(2**20, chunk=8)
    first = spec(0, 20)
    again = replace(first, row_id=1, prompt=(*first.prompt, 7, 8, 9))
    read(model, tiny_text, [first], 64, prefixes)
    assert_told(read(model, tiny_text, [again], 64, prefixes), [again], network)
    assert prefixes.hits == 16


def test_the_first_token_brings_it_also_where_other_rows_decode_meanwhile(
    model: LoadedModel, tiny_text: Text, network: PreTrainedModel
) -> None:
    batch = RunningBatch(model, KvArena(model.kv, 1000, max_rows=2), headroom=0)
    pipeline = Pipeline(model, tiny_text, batch, max_prefill_tokens=8)
    pipeline.admit(RAGGED[:2])
    updates = [update for _ in range(5) for update in pipeline.turn()]
    pipeline.admit(RAGGED[2:])
    updates += finish(pipeline)
    told = [update for update in updates if update.hidden_state]
    assert len(told) == len(RAGGED) and len(updates) > 2 * len(RAGGED)
    assert_told({update.row_id: update.hidden_state for update in told}, RAGGED, network)


def test_none_is_told_where_none_is_asked_for(model: LoadedModel, tiny_text: Text) -> None:
    assert set(read(replace(model, state_layer=None), tiny_text, RAGGED, 64).values()) == {b""}
