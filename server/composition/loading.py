"""From a configuration to models (one an executor), text, and executors."""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from engine.device import HEADROOM
from engine.executor import Executor
from engine.forward.batch import RunningBatch
from engine.forward.graphs import DecodeGraphs, capture_nothing, capture_on, graphs_for
from engine.kv.arena import KvArena
from engine.kv.host_store import HostStore
from engine.kv.prefix_cache import CHUNK, PrefixCache
from engine.kv.row_kv import RowKv
from engine.lifecycle import Lifecycle
from engine.measure.probe import probe
from engine.measure.timing import Timings
from engine.messages import Deliver, Entry, ExecutorInfo
from engine.row import Row
from engine.sampling.grammar import Grammars
from engine.simulated.batch import SimulatedBatch, SimulatedKv, SimulatedRow
from engine.simulated.machine import Machine
from engine.torch_device import TorchDevice
from engine.virtual_device import VirtualDevice
from models.catalog.catalog import default_cache
from models.catalog.checkpoint import count_values
from models.errors import LoadError
from models.network.decoder.decoder import Decoder
from models.network.embeddings import token_embeddings
from models.network.generation_config import SamplingDefaults
from models.network.loader import LoadedModel, load
from models.network.quantization import Kernels
from models.progress import Bars
from models.text import Text
from scheduler.length.features import TokenFeatures
from scheduler.serving_time.profile_file import Conditions
from scheduler.strategy import STRATEGIES, Length
from server.cache_paths import fetch_model
from server.composition import devices
from server.composition.slots import choose_slots, timings_of
from server.config import ServeConfig
from server.grammars import GrammarCompiler, TrialProcess, run_trials
from server.lengths.predictors import choose_predictor
from server.settings import read_text

log = logging.getLogger(__name__)

WARM_ROWS = 32  # for which the head is compiled before the first request


@dataclass(frozen=True, slots=True)
class Loaded:
    text: Text
    vocab_size: int  # ids known to both tokenizer and network
    executors: tuple[Executor, ...]
    store: HostStore[Any]
    prefixes: PrefixCache[Any]
    conditions: Conditions  # of the executors' runs
    token_features: TokenFeatures | None
    sampling_defaults: SamplingDefaults = SamplingDefaults()
    grammars: GrammarCompiler | None = None
    timings: Timings = Timings()  # made while loading
    shares_cores: bool = False  # executors compute on the predictor's cores


def load_engine(config: ServeConfig, deliver: Deliver) -> Loaded:
    """Executors' threads are not started. Raises CatalogError, LoadError and TextError."""
    models, text = load_models(config)
    chosen = choose_slots(config, models[0], text, default_cache())
    config = replace(config, max_num_seqs=chosen.slots)
    store: HostStore[Row] = HostStore(devices.swap_bytes(config))
    prefixes: PrefixCache[RowKv] = PrefixCache(devices.prefix_cache_bytes(config))
    grammars = Grammars(text.to_json, text.vocab_size, models[0].end_token_ids)
    compiler = None if config.no_structured_outputs else _open_grammars(grammars, text, models[0])
    executors = [
        build_executor(config, index, model, text, store, deliver, grammars, prefixes)
        for index, model in enumerate(models)
    ]
    first = models[0]
    return Loaded(
        text=text,
        vocab_size=first.vocab_size,
        sampling_defaults=first.sampling_defaults,
        executors=tuple(executors),
        store=store,
        prefixes=prefixes,
        grammars=compiler,
        conditions=devices.conditions_of(config, first),
        timings=chosen.timings,
        token_features=TokenFeatures.of(token_embeddings(first)) if choose_predictor(config) is Length.OWN else None,
        shares_cores=first.device.type == "cpu",
    )


def _open_grammars(grammars: Grammars, text: Text, model: LoadedModel) -> GrammarCompiler:
    process = TrialProcess(run_trials, text.to_json(), text.vocab_size, tuple(model.end_token_ids))
    process.start()
    grammars.prepare()
    return GrammarCompiler(grammars, process)


def load_models(config: ServeConfig, most: int | None = None) -> tuple[tuple[LoadedModel, ...], Text]:
    """A network an executor, `most` at most: on CUDA a device each, on a CPU shared weights. Fetches and probes. Raises
    CatalogError, LoadError and TextError.
    """
    devices.hush_transformers()
    folder = fetch_model(config)
    text = Text.load(folder, chat_template=chat_template(config))
    text.warm_up()
    models = tuple(islice(load_networks(config, folder), most))
    _require_invariance(config, models[0])
    probe(models[0], text)
    models = tuple(join_text(model, text) for model in models)
    if isinstance(network := models[0].network, Decoder):
        network.warm_up(config.chunk_tokens(models[0].device.type), min(config.expected_slots, WARM_ROWS))
    return models, text


def join_text(model: LoadedModel, text: Text) -> LoadedModel:
    """With ids and end tokens of both; texts that encode to others are refused."""
    text.limit_ids(model.vocab_size)
    known = min(text.vocab_size, model.vocab_size)
    ends = model.end_token_ids | text.end_token_ids
    return replace(model, vocab_size=known, end_token_ids=frozenset(end for end in ends if end < known))


def _require_invariance(config: ServeConfig, model: LoadedModel) -> None:
    by_shape = STRATEGIES[config.strategy].refill.entry is Entry.SHAPE  # whose holes regroup other rows' sums
    if config.batch_invariant and (by_shape or not model.reads_exactly):
        needs = "compiled kernels (--kernels native says what they lack) and a strategy that reads prompts apart"
        here = f"{config.strategy} on {'compiled' if model.reads_exactly else 'torch'} kernels"
        raise LoadError(f"--batch-invariant needs {needs}, such as baton-pd, unlike baton; this is {here}")


def load_networks(config: ServeConfig, folder: Path) -> Iterator[LoadedModel]:
    """Loaded on demand. Raises LoadError."""
    names = devices.cuda_devices(config)
    for name in names:
        yield _network(config, folder, name)
    if not names:
        torch.set_num_threads(devices.threads(config))
        yield (first := _network(config, folder, "cpu"))
        yield from (first.twin() for _ in range(max(1, config.executors) - 1))


def _network(config: ServeConfig, folder: Path, device: str) -> LoadedModel:
    devices.require_memory(config, count_values(folder), torch.device(device))
    kept, kernels = devices.quantization(config), Kernels(config.kernels)
    return load(folder, dtype=config.dtype, device=device, quantization=kept, kernels=kernels)


def chat_template(config: ServeConfig) -> str | None:
    """Of the flag's file; None without it. Raises ConfigError."""
    file = config.chat_template
    return None if file is None else read_text(file, f"--chat-template {file}")


def build_executor(
    config: ServeConfig,
    index: int,
    model: LoadedModel,
    text: Text,
    store: HostStore[Row],
    deliver: Deliver,
    grammars: Grammars | None = None,
    prefixes: PrefixCache[RowKv] | None = None,
) -> Executor:
    context = devices.context_length(config, model.context_length)
    capacity = min(devices.capacity_tokens(config, model), config.expected_slots * context)
    devices.require_room(config, model, capacity)
    if config.max_model_len is not None and capacity < context:
        remedy = "lower it, or give more with --kv-cache-memory or --gpu-memory-utilization"
        raise LoadError(f"a KV cache of {capacity} tokens holds no row of --max-model-len {context}: {remedy}")
    arena = KvArena(model.kv, capacity, max_rows=config.expected_slots)
    batch = RunningBatch(model, arena, graphs=_graphs(config, model, arena))
    device = TorchDevice(model, text, batch, config.chunk_tokens(model.device.type), grammars, prefixes)
    info = ExecutorInfo(index, str(model.device), capacity, arena.max_rows, min(context, capacity))
    threads = None if model.device.type == "cuda" else devices.torch_threads(config, model)
    return Executor(info, Lifecycle(device, store), deliver, threads=threads)


def _graphs(config: ServeConfig, model: LoadedModel, arena: KvArena) -> DecodeGraphs | None:
    """Captured unless --enforce-eager; None where attention goes by a mask."""
    begin = time.monotonic()
    graphs = graphs_for(model, arena, capture_nothing if config.enforce_eager else capture_on)
    if graphs is None:
        if model.device.type == "cuda":
            log.warning("decoding without CUDA graphs, which costs speed: flash attention does not compute this model")
        return None
    with Bars() as bars:
        graphs.prepare(bars.begin("preparing decode steps", len(graphs)).advance)
    log.info("prepared %d decode steps in %.1f s", len(graphs), time.monotonic() - begin)
    return graphs


def load_virtual(machine: Machine, config: ServeConfig, deliver: Deliver) -> Loaded:
    text = Text.load(fetch_model(config), chat_template=chat_template(config))
    text.warm_up()
    context = devices.context_length(config, machine.longest)
    machine = replace(machine, max_num_seqs=config.max_num_seqs or machine.max_num_seqs, context_length=context)
    kept = machine.prefix_cache_tokens
    store: HostStore[SimulatedRow] = HostStore()
    prefixes: PrefixCache[SimulatedKv] = PrefixCache(kept, chunk=CHUNK if kept else 1)
    chunk = config.chunk_tokens("cuda")  # as the virtual device would
    executors = []
    for index in range(config.executors or machine.workers):
        batch = SimulatedBatch(machine.capacity_tokens, machine.max_num_seqs, HEADROOM)
        device = VirtualDevice(batch, machine.cost, chunk, prefixes, name=config.device, text=text)
        info = ExecutorInfo(index, config.device, machine.capacity_tokens, machine.max_num_seqs, machine.longest)
        executors.append(Executor(info, Lifecycle(device, store), deliver))
    log.warning("%s takes time and computes nothing: all text is filler, and no answer is recorded", config.device)
    return Loaded(
        text=text,
        vocab_size=text.vocab_size,
        executors=tuple(executors),
        store=store,
        prefixes=prefixes,
        conditions=Conditions(config.model, "none", "none", config.device, 0, chunk),
        timings=timings_of(machine.cost, machine.max_num_seqs),
        token_features=TokenFeatures.hashed(text.vocab_size) if choose_predictor(config) is Length.OWN else None,
    )
