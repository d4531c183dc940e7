"""Checkpoints that may be loaded, the networks made of them, and how these compute."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.errors import LoadError
from models.network.decoder.decoder import Decoder
from models.network.generation_config import SamplingDefaults
from models.network.kv_store import KvShape, PassingStore
from models.network.linear import HalfLinear, PackedLinear
from models.network.loader import LoadedModel, load
from models.network.model_config import choose_dtype
from models.network.packing import halves
from models.network.quantization import Kernels
from tests import tiny
from tests.architectures import GROUPED, build


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.build(tmp_path / "tiny")


def edit(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file; None takes one out."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def forward(model: LoadedModel, tokens: Tensor, select: tuple[Tensor, Tensor] | None = None) -> Tensor:
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    return model.forward(tokens, positions, None, PassingStore(), select)


# What is refused


STRANGE = [
    ({"auto_map": {"AutoModelForCausalLM": "modeling.Evil"}}, "auto_map"),
    ({"model_type": "qwen3", "layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
]


@pytest.mark.parametrize(("changes", "said"), STRANGE)
def test_code_and_layers_with_a_state_of_their_own_are_refused(folder: Path, changes: Any, said: str) -> None:
    edit(folder / "config.json", **changes)
    with pytest.raises(LoadError, match=said):
        load(folder)


def test_weights_that_are_not_safetensors_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"x": torch.zeros(1)}, folder / "pytorch_model.bin")
    with pytest.raises(LoadError, match="safetensors"):
        load(folder)


NOT_TO_BE_HAD = [
    ({"dtype": "int3"}, "'int3': choose auto, float32, bfloat16, float16"),
    ({"quantization": "int3"}, "'int3': choose auto, none, float16, int8, int4"),
    ({"dtype": "bfloat16", "quantization": "float16"}, "--dtype float32"),
]


@pytest.mark.parametrize(("asked", "said"), NOT_TO_BE_HAD)
def test_numbers_that_cannot_be_had_are_refused_with_the_remedy(folder: Path, asked: Any, said: str) -> None:
    with pytest.raises(LoadError, match=said):
        load(folder, **asked)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"model_type": "nonsense"}', '{"a": ' * 100_000], ids=range(5))
def test_a_config_that_says_no_known_model_is_refused(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(LoadError, match=r"config\.json is not that of a known model"):
        load(folder)


# What is made of it


def test_a_checkpoint_tells_its_shape(tiny_model: LoadedModel) -> None:
    shape = KvShape(layers=2, kv_heads=2, head_dim=8, dtype=torch.float32, device=torch.device("cpu"))
    assert tiny_model.kv == shape
    assert shape.bytes_per_token == 2 * 2 * 2 * 8 * 4
    assert (tiny_model.vocab_size, tiny_model.context_length) == (320, 512)
    assert tiny_model.end_token_ids == {2}


CAPABILITIES = [
    ({"avx512_bf16": True, "amx_bf16": False}, "cpu", torch.bfloat16),
    ({"avx512_bf16": False, "amx_bf16": True}, "cpu", torch.bfloat16),
    ({"avx2": True, "avx512_bf16": False}, "cpu", torch.float32),
    ({}, "cpu", torch.float32),
    ({}, "cuda", torch.bfloat16),
]


@pytest.mark.parametrize(("capabilities", "device", "expected"), CAPABILITIES)
def test_auto_is_bfloat16_where_the_device_computes_with_it(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], device: str, expected: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert choose_dtype("auto", torch.device(device)) is expected


STORED = [
    *(("bfloat16", "auto", "float16"), ("float16", "auto", "float16")),
    *(("float32", "auto", "none"), ("bfloat16", "float32", "none")),
]


@pytest.mark.skipif(not halves(torch.float32, torch.device("cpu")), reason="this build of torch lacks the kernels")
@pytest.mark.parametrize(("stored", "asked", "expected"), STORED)
def test_auto_keeps_weights_of_16_bits_in_16_bits_unless_told_otherwise(
    folder: Path, monkeypatch: pytest.MonkeyPatch, stored: str, asked: str, expected: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    edit(folder / "config.json", dtype=stored)
    model = load(folder, dtype=asked, kernels=Kernels.TORCH)
    assert model.kv.dtype is torch.float32
    assert model.quantization == expected
    assert isinstance(model.network, Decoder)
    assert isinstance(model.network.head, HalfLinear if expected == "float16" else PackedLinear)


@pytest.mark.parametrize(("quantization", "likeness"), [("float16", 0.99999), ("int8", 0.999), ("int4", 0.9)])
def test_networks_of_fewer_bits_are_near_float32(folder: Path, quantization: str, likeness: float) -> None:
    plain = load(folder, dtype="float32", quantization="none")
    if not halves(torch.float32, plain.device):
        pytest.skip("this build of torch lacks the kernels")
    model = load(folder, dtype="float32", quantization=quantization)
    tokens = torch.tensor([[5, 6, 7, 8]])
    expected, found = forward(plain, tokens), forward(model, tokens)
    assert torch.nn.functional.cosine_similarity(found.flatten(), expected.flatten(), dim=0) > likeness
    rows = (torch.tensor([0]), torch.tensor([3]))
    assert torch.equal(forward(model.twin(), tokens, rows), forward(model, tokens, rows))


def test_sampling_defaults_come_from_the_models_own_recommendation(folder: Path) -> None:
    assert load(folder).sampling_defaults == SamplingDefaults()
    edit(folder / "generation_config.json", do_sample=True, temperature=0.6, top_k=20, top_p=0.95, max_length=99)
    assert load(folder).sampling_defaults == SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95)


@pytest.mark.parametrize(("named", "expected"), [(7, {7, 2}), ([7, 2], {7, 2}), (None, {2})])
def test_end_tokens_are_those_of_both_configs(folder: Path, named: int | list[int] | None, expected: set[int]) -> None:
    edit(folder / "generation_config.json", eos_token_id=named)
    assert load(folder).end_token_ids == expected


CONTEXTS = [
    ("Mistral", {"sliding_window": 64}, 64),
    ("Mistral", {"sliding_window": 500}, 128),
    ("Mistral", {"sliding_window": None}, 128),
    ("Qwen2", {"sliding_window": 64, "use_sliding_window": False}, 128),
    ("Qwen2", {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 1}, 64),
]


@pytest.mark.parametrize(("kind", "extra", "context"), CONTEXTS)
def test_a_context_ends_where_a_window_forgets(tmp_path: Path, kind: str, extra: dict[str, Any], context: int) -> None:
    assert load(build(tmp_path, kind, {**GROUPED, **extra})).context_length == context


def test_the_context_ends_where_longrope_would_rotate_all_rows_otherwise(tmp_path: Path) -> None:
    """A row used to change its answer when a neighbour grew past that length."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "original_max_position_embeddings": 32}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, **factors}
    sizes = {**GROUPED, "rope_parameters": rope, "original_max_position_embeddings": 32}
    assert load(build(tmp_path, "Phi3", sizes)).context_length == 32


# How it computes


def test_a_selection_gathers_exactly_the_wanted_logits(tiny_model: LoadedModel) -> None:
    tokens = torch.arange(3, 21).reshape(3, 6)
    whole = forward(tiny_model, tokens)
    rows, places = torch.tensor([2, 0, 0, 1]), torch.tensor([5, 0, 3, 3])
    chosen = forward(tiny_model, tokens, (rows, places))
    assert (whole.shape, chosen.shape, chosen.dtype) == ((3, 6, 320), (4, 320), torch.float32)
    torch.testing.assert_close(chosen, whole[rows, places])
    torch.testing.assert_close(forward(tiny_model, tokens), whole)


def test_a_selection_of_nothing_gives_no_logits(tiny_model: LoadedModel) -> None:
    none = torch.zeros(0, dtype=torch.long)
    assert forward(tiny_model, torch.ones(1, 4, dtype=torch.long), (none, none)).shape == (0, 320)


@pytest.fixture(params=["Llama", "StableLm"])
def any_model(request: pytest.FixtureRequest, tmp_path: Path) -> LoadedModel:
    """A network of this server's own, and one of transformers'."""
    return load(build(tmp_path, request.param, GROUPED), dtype="float32", kernels=Kernels.TORCH)


def test_a_twin_has_the_same_weights_in_the_same_memory(any_model: LoadedModel) -> None:
    pairs = zip(any_model.twin().network.parameters(), any_model.network.parameters(), strict=True)
    assert {ours.data_ptr() == theirs.data_ptr() for ours, theirs in pairs} == {True}


def test_twins_run_at_once_without_noticing_each_other(any_model: LoadedModel) -> None:
    """Each selects other logits; the twin's twin, too, has lost the hooks that it was copied with."""
    tokens = torch.randint(3, 320, (4, 40), generator=torch.Generator().manual_seed(0))
    whole = forward(any_model, tokens)

    def run(model: LoadedModel, place: int) -> bool:
        select = torch.arange(4), torch.full((4,), place)
        return all(torch.allclose(forward(model, tokens, select), whole[:, place], atol=1e-4) for _ in range(50))

    twin = any_model.twin()
    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(run, (any_model, twin, twin.twin()), (3, 17, 39), timeout=60))


def test_a_checkpoint_that_lacks_weights_is_refused_instead_of_served_with_random_ones(folder: Path) -> None:
    """transformers only prints a report and makes them up, and the probe compares the network with itself."""
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LoadError, match=r"1 of its weights .* model\.layers\.1\.mlp\.down_proj\.weight"):
        load(folder)


@pytest.mark.parametrize("text", ["{not json", "[1]", '{"temperature": "0.7"}', '{"top_p": -1}', '{"top_k": -2}'])
def test_sampling_that_cannot_be_recommended_is_refused_at_start(folder: Path, text: str) -> None:
    """A temperature written as a string used to pass, and then failed every request that brought none."""
    (folder / "generation_config.json").write_text(text)
    with pytest.raises(LoadError, match=r"generation_config\.json is not usable"):
        load(folder)


BITSANDBYTES = {"quant_method": "bitsandbytes", "load_in_4bit": True}
BITSANDBYTES = {"quant_method": "bitsandbytes", "load_in_4bit": True}
NO_NETWORKS: Mapping[str, Sequence[Any]] = {
    "num_hidden_layers": (-1, "two"),
    "num_attention_heads": (0,),
    "num_key_value_heads": (3,),
    "hidden_size": ("wide", [32]),
    "vocab_size": (0, 10**12),
    "max_position_embeddings": ("long",),
    "rms_norm_eps": (float("nan"), float("inf"), {}),
    "hidden_act": ("nosuch", 3),
    "rope_parameters": ({"rope_type": "nosuch"}, 5),
    "layer_types": (7,),
    "dtype": ("float7",),
    "quantization_config": ({"quant_method": "gptq", "bits": 4}, BITSANDBYTES, 3),
    "eos_token_id": (10**9, -7, "end", [2, None]),
    "text_config": ({"model_type": "nosuch"},),
}


@pytest.mark.parametrize(("key", "value"), [(key, one) for key, some in NO_NETWORKS.items() for one in some])
def test_a_config_that_makes_no_network_is_refused_with_a_remedy(folder: Path, key: str, value: Any) -> None:
    """Many of these ended in a traceback; negative layers, a NaN and an end beyond the vocabulary were loaded."""
    edit(folder / "config.json", **{key: value})
    (folder / "generation_config.json").unlink()
    with pytest.raises(LoadError, match=r"tiny.*(Download|Copy|choose)|correct it"):
        load(folder)
