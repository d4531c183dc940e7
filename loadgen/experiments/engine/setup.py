"""Networks to compare, and a decode step's floor: the time to read weights and live KV once."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import psutil
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from engine.device import HEADROOM
from engine.forward.batch import RunningBatch
from engine.forward.graphs import graphs_for
from engine.kv.arena import KvArena
from engine.lifecycle import Lifecycle
from engine.measure.profiler import read_clock
from engine.row import Row
from engine.torch_device import TorchDevice
from loadgen.compare.machine import describe_machine, find_versions
from loadgen.experiments.options import EngineBench
from models.native.decoder import NativeDecoder
from models.network.decoder.decoder import Decoder
from models.network.decoder.family import read_spec
from models.network.generation_config import SamplingDefaults
from models.network.linear import InferenceLinear
from models.network.loader import LoadedModel, load
from models.network.model_config import read_kv_shape
from models.network.quantization import Quantization
from models.text import Text
from server.composition.devices import device_name
from server.composition.loading import load_models
from server.config import ServeConfig

Clock = Callable[[], float]

BUFFER_BYTES = 2**30  # read at once, more than any cache

REPEATS = 7


@dataclass(frozen=True, slots=True)
class Floor:
    bandwidth: float  # bytes/s
    weight_bytes: int  # read in each step
    kv_bytes_per_token: int

    def step(self, rows: int, input_len: int, output_len: int) -> float:
        """Seconds, halfway through the outputs."""
        return (self.weight_bytes + rows * (input_len + output_len / 2) * self.kv_bytes_per_token) / self.bandwidth


def weight_bytes(network: torch.nn.Module) -> int:
    """All weights that a step reads once: an untied embedding table is not."""
    plain = (module for module in network.modules() if not isinstance(module, torch.nn.Embedding))
    weights = {id(weight): weight.nbytes for module in plain for weight in module.parameters(recurse=False)}
    kept = (layer for layer in network.modules() if isinstance(layer, InferenceLinear | NativeDecoder))
    return sum(weights.values()) + sum(layer.weight_bytes for layer in kept)


def measure_bandwidth(device: torch.device, clock: Clock = time.perf_counter, size: int | None = None) -> float:
    """Bytes/s of all threads: the best of sums and copies.

    size   bytes read at once; None: BUFFER_BYTES, or less where memory is short
    """
    room = psutil.virtual_memory().available // 8 if device.type == "cpu" else BUFFER_BYTES
    source = torch.ones((size or min(BUFFER_BYTES, room)) // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    ways: tuple[tuple[Callable[[], torch.Tensor], int], ...] = (
        (source.sum, source.nbytes),
        (lambda: target.copy_(source), 2 * source.nbytes),
    )
    best = 0.0
    for work, moved in ways * REPEATS:
        begin = read_clock(device, clock)
        work()
        best = max(best, moved / (read_clock(device, clock) - begin))
    return best


CHUNK_TOKENS = 512  # prompt tokens between two decode steps; the server's default


@dataclass(frozen=True)
class Subject:
    """A model as this project runs it, and how transformers alone would."""

    model: LoadedModel
    text: Text
    load_plain: Callable[[], PreTrainedModel]

    @cached_property
    def floor(self) -> Floor:
        bandwidth = measure_bandwidth(self.model.device)
        return Floor(bandwidth, weight_bytes(self.model.network), self.model.kv.bytes_per_token)

    @property
    def vocab(self) -> int:
        return min(self.text.vocab_size, self.model.vocab_size)

    @property
    def dtype(self) -> str:
        return str(self.model.kv.dtype).removeprefix("torch.")

    @property
    def weights(self) -> str:
        kept = self.model.quantization
        return self.dtype if kept is Quantization.NONE else f"{self.dtype}, weights in {kept}"

    def lifecycle(self, slots: int, columns: int) -> Lifecycle[Row]:
        arena = KvArena(self.model.kv, slots * (columns + HEADROOM + 1), max_rows=slots)
        batch = RunningBatch(self.model, arena, graphs=graphs_for(self.model, arena))
        return Lifecycle(TorchDevice(self.model, self.text, batch, max_prefill_tokens=CHUNK_TOKENS))


def load_subject(asked: EngineBench) -> Subject:
    """As a server loads it; raises CatalogError, LoadError and TextError."""
    given = {name: getattr(asked, name) for name in ("model", "dtype", "quantization", "device")}
    (model,), text = load_models(ServeConfig(**given), most=1)
    return Subject(model, text, partial(load_plain, model))


def load_beside(subject: Subject, quantization: str) -> Subject:
    kept = load(subject.model.folder, dtype=subject.dtype, device=str(subject.model.device), quantization=quantization)
    return replace(subject, model=kept)


def load_plain(model: LoadedModel) -> PreTrainedModel:
    network: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        model.folder, dtype=model.kv.dtype, local_files_only=True, use_safetensors=True
    )
    torch.nn.Module.to(network, model.device)
    torch.nn.Module.eval(network).requires_grad_(False)
    return network


def describe_device(device: torch.device) -> dict[str, object]:
    return {"device": device_name(device), "threads": torch.get_num_threads()} | describe_machine() | find_versions()


def llama_8b(layers: int) -> LlamaConfig:
    """Llama 3.1 8B's sizes (32 layers), but for its context."""
    return _make_llama(layers, hidden_size=4096, intermediate_size=14336)


def llama_1b(layers: int) -> LlamaConfig:
    """Llama 3.2 1B's sizes (16 layers)."""
    return _make_llama(layers, hidden_size=2048, intermediate_size=8192, tie_word_embeddings=True)


def _make_llama(layers: int, **sizes: Any) -> LlamaConfig:
    sizes |= {"num_attention_heads": 32, "num_key_value_heads": 8}
    return LlamaConfig(vocab_size=128256, num_hidden_layers=layers, max_position_embeddings=32768, **sizes)


def tiny(layers: int) -> LlamaConfig:
    """Fast on a CPU; wide weights separate likely tokens by more than rounding."""
    return LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.3,
    )


def make_network(config: LlamaConfig, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """With the same numbers each time."""
    torch.manual_seed(0)
    with device:
        network: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
    torch.nn.Module.to(network, device)  # what ignored the default device
    torch.nn.Module.eval(network).requires_grad_(False)
    return network


def make_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """A token for each byte, and words for other numbers."""
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(f"<{number}>" for number in range(256, vocabulary))]
    backend = Tokenizer(BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)  # type: ignore[no-untyped-call]


def random_subject(config: LlamaConfig, dtype: torch.dtype, device: torch.device) -> Subject:
    network, context = make_network(config, dtype, device), config.max_position_embeddings
    decoder = Decoder(network, read_spec(network), context)
    if device.type == "cuda":
        decoder.compile_parts()
    model = LoadedModel(
        folder=Path("random"),
        network=decoder,
        kv=read_kv_shape(config, dtype, device),
        vocab_size=config.vocab_size,
        context_length=context,
        end_token_ids=frozenset(),
        sampling_defaults=SamplingDefaults(),
    )
    return Subject(model, Text(make_tokenizer(config.vocab_size)), partial(make_network, config, dtype, device))
