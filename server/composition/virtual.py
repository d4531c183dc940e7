"""The engine's part of the composition root where `--device virtual:PRESET` is asked for: no model is loaded but its
tokenizer, and executors' threads run on devices that only take time."""

from __future__ import annotations

import logging
from dataclasses import replace

from engine.device import HEADROOM
from engine.executor import Executor
from engine.kv.host_store import HostStore
from engine.kv.prefix_cache import CHUNK, PrefixCache
from engine.lifecycle import Lifecycle
from engine.messages import Deliver, ExecutorInfo
from engine.simulated.batch import SimulatedBatch, SimulatedKv, SimulatedRow
from engine.simulated.machine import Machine
from engine.simulated.virtual import VirtualDevice
from models.network.generation_config import SamplingDefaults
from models.text import Text
from scheduler.length.features import TokenFeatures
from scheduler.serving_time.profile_file import Conditions
from server.cli.config import ServeConfig
from server.composition.cache_paths import fetch_model
from server.composition.devices import context_length
from server.composition.loading import Loaded, chat_template
from server.lengths.kinds import IN_MODEL, choose_predictor

log = logging.getLogger(__name__)


def load_virtual(machine: Machine, config: ServeConfig, deliver: Deliver) -> Loaded:
    """Load the tokenizer and build executors, whose threads are not started. Raises UserError."""
    text = Text.load(fetch_model(config), chat_template=chat_template(config))
    text.warm_up()
    context = context_length(config, machine.longest)
    machine = replace(machine, max_num_seqs=config.max_num_seqs or machine.max_num_seqs, context_length=context)
    kept = machine.prefix_cache_tokens
    store: HostStore[SimulatedRow] = HostStore()
    prefixes: PrefixCache[SimulatedKv] = PrefixCache(kept, chunk=CHUNK if kept else 1)
    executors = [
        _build_executor(config, index, machine, store, prefixes, deliver)
        for index in range(config.executors or machine.workers)
    ]
    log.warning("%s takes time and computes nothing: all text is filler, and no answer is recorded", config.device)
    return Loaded(
        text=text,
        vocab_size=text.vocab_size,
        sampling_defaults=SamplingDefaults(),
        executors=tuple(executors),
        store=store,
        prefixes=prefixes,
        grammars=None,
        conditions=Conditions(config.model, "none", "none", config.device, 0, config.chunk_tokens("cuda")),
        token_features=TokenFeatures.hashed(text.vocab_size) if choose_predictor(config) in IN_MODEL else None,
        shares_cores=False,
    )


def _build_executor(
    config: ServeConfig,
    index: int,
    machine: Machine,
    store: HostStore[SimulatedRow],
    prefixes: PrefixCache[SimulatedKv],
    deliver: Deliver,
) -> Executor:
    chunk = config.chunk_tokens("cuda")  # what it stands for
    batch = SimulatedBatch(machine.capacity_tokens, machine.max_num_seqs, HEADROOM)
    device = VirtualDevice(config.device, batch, machine.cost, chunk, prefixes)
    info = ExecutorInfo(index, config.device, machine.capacity_tokens, machine.max_num_seqs, machine.longest)
    return Executor(info, Lifecycle(device, store, chunk), deliver)
