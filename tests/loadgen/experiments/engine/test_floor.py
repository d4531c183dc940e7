from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from loadgen.experiments.engine.measure import Floor, measure_bandwidth, weight_bytes
from models.network.packing import pack
from models.network.quantization import Quantization
from tests.loadgen.experiments.engine.parts import ticking


def test_a_step_reads_weights_and_the_live_k_and_v_once() -> None:
    floor = Floor(bandwidth=1000.0, weight_bytes=500, kv_bytes_per_token=10)
    assert floor.step(rows=2, input_len=20, output_len=10) == pytest.approx((500 + 2 * 25 * 10) / 1000)


def network(*, tied: bool) -> LlamaForCausalLM:
    config = LlamaConfig(vocab_size=50, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    config.tie_word_embeddings = tied
    return LlamaForCausalLM(config)


def test_a_table_that_is_only_looked_up_is_not_read() -> None:
    table = 50 * 8 * 4
    tied, untied = network(tied=True), network(tied=False)
    assert sum(weight.nbytes for weight in untied.parameters()) == weight_bytes(untied) + table
    assert weight_bytes(tied) == weight_bytes(untied) == sum(weight.nbytes for weight in tied.parameters())


@pytest.mark.parametrize(("quantization", "size"), [("none", 4.0), ("float16", 2.0), ("int8", 1.0 + 2 / 32)])
def test_weights_count_as_they_are_kept(quantization: str, size: float) -> None:
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    network = LlamaForCausalLM(config).requires_grad_(False)
    norms = 3 * 32 * 4
    pack(network, Quantization(quantization))
    assert weight_bytes(network) == (7 * 32 * 32 + 64 * 32) * size + norms


def test_bandwidth_is_the_best_of_what_was_timed() -> None:
    # One tick each: a copy moves twice its bytes.
    assert measure_bandwidth(torch.device("cpu"), ticking(), size=4096) == 2 * 4096
