"""The settings on this machine: which devices, how many threads, how much memory for K and V, and the conditions under
which its timings hold.

It knows torch and the flags that bear on it; it starts nothing and loads nothing.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
import transformers

from engine.measure.profiler import Profiler
from models.machine import processor_name, usable_cores
from models.network.loader import LoadedModel, LoadError, choose_dtype
from models.text import Text
from scheduler.serving_time.profile_file import Conditions
from scheduler.strategy import STRATEGIES
from server.cli.config import ServeConfig

log = logging.getLogger(__name__)

CPU = torch.device("cpu")

CPU_MEMORY_SHARE = 0.25
"""Part of the free memory that K and V may take on a CPU, over all executors, unless --kv-cache-memory says."""

SWAP_GIB = 4.0
"""Most host memory for rows that wait, as vLLM's --swap-space has it, unless --swap-space says."""

SWAP_MEMORY_SHARE = 0.25
"""Part of the free memory that rows which wait may take at most."""

PREFIX_MEMORY_SHARE = 0.125
"""Part of the free memory that K and V of prompts may take, unless --prefix-cache-memory says."""

PREDICTOR_THREADS = 4
"""Threads of a predictor at most: a short text's products are too small for more."""

PREDICTOR_NICENESS = 10
"""Niceness of a predictor, as in nice(1): a tenth of a core where an executor computes too, all of a free one."""


def hush_transformers() -> None:
    """Keep transformers quiet: its reports of a load end in our own errors, its progress bars are for terminals."""
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    if not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def cuda_devices(config: ServeConfig) -> list[str]:
    there = torch.cuda.device_count() if config.device != "cpu" else 0
    wanted = config.executors or there
    if config.device == "cuda" and there == 0:
        raise LoadError("--device cuda, but no CUDA device is visible: check the driver and CUDA_VISIBLE_DEVICES")
    if there and wanted > there:
        raise LoadError(f"--executors {wanted}, but only {there} CUDA devices are visible: one executor drives one")
    return [f"cuda:{index}" for index in range(wanted if there else 0)]


def first_device(config: ServeConfig) -> torch.device:
    """The device of the first executor. Raises LoadError."""
    return torch.device(next(iter(cuda_devices(config)), "cpu"))


def quantization(config: ServeConfig) -> str:
    """How weights are kept: as asked for, else as the strategy has it, else `auto`."""
    given = config.quantization
    return given if given != "auto" else STRATEGIES[config.strategy].quantization or "auto"


def threads(config: ServeConfig) -> int:
    """CPU threads of one executor: an equal share of the cores that this process may use."""
    return max(1, usable_cores() // max(1, config.executors))


def torch_threads(config: ServeConfig, model: LoadedModel) -> int:
    """Threads of torch in an executor on a CPU: one beside compiled kernels, which have threads of their own. Two pools
    that wait by spinning take the cores from each other."""
    return 1 if model.reads_exactly else threads(config)


def run_beside_executors(device: str) -> None:
    """Set this process, which predicts lengths, to the threads and the niceness that executors on a --device leave it.

    Beside GPUs it has a quarter of the cores. Where executors compute on the same cores it has one thread, and gives
    way to theirs: what is predicted late is of use still, but a step waits for the slowest of its threads.
    """
    if device != "cpu" and torch.cuda.is_available():
        torch.set_num_threads(max(1, min(PREDICTOR_THREADS, usable_cores() // 4)))
        return
    torch.set_num_threads(1)
    os.nice(PREDICTOR_NICENESS)


def context_length(config: ServeConfig, longest: int) -> int:
    """Tokens of the longest request; `longest`: the model's context. Raises LoadError."""
    if config.max_model_len is not None and config.max_model_len > longest:
        raise LoadError(f"--max-model-len {config.max_model_len} exceeds the model's context of {longest}")
    return config.max_model_len or longest


def swap_bytes(config: ServeConfig) -> int:
    """Host memory for K and V of rows that wait, over all executors."""
    return _bytes(config.swap_space, min(SWAP_GIB, free_gib(CPU) * SWAP_MEMORY_SHARE))


def prefix_cache_bytes(config: ServeConfig) -> int:
    """Host memory for K and V of prompts that may come again, over all executors."""
    return _bytes(config.prefix_cache_memory, free_gib(CPU) * PREFIX_MEMORY_SHARE)


def _bytes(given: float | None, default: float) -> int:
    """GiB in bytes."""
    return int((default if given is None else given) * 2**30)


def capacity_tokens(config: ServeConfig, model: LoadedModel) -> int:
    """Tokens of K and V that the device's memory is to hold, as the flags say."""
    if config.kv_cache_memory is not None:
        room = config.kv_cache_memory * 2**30
    elif model.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(model.device)
        room = config.gpu_memory_utilization * total - (total - free)
    else:
        room = free_gib(CPU) * 2**30 * CPU_MEMORY_SHARE / max(1, config.executors)
    tokens = int(room) // model.kv.bytes_per_token
    if tokens < 2:
        raise LoadError("no memory is left for K and V: free some, or choose a smaller model or dtype")
    return tokens


def free_gib(device: torch.device) -> float:
    """GiB of memory that are free on a device; on a CPU, of the machine."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    return float(free / 2**30)


def require_memory(config: ServeConfig, weights: int, device: torch.device) -> None:
    """Raise LoadError, before anything is read, where a device has not the memory for a model of so many numbers."""
    dtype = choose_dtype(config.dtype, device)
    needed, free = weights * dtype.itemsize / 2**30, free_gib(device)
    if needed > free:
        raise LoadError(
            f"{config.model}: its weights take {needed:.1f} GiB in {str(dtype).removeprefix('torch.')}, "
            f"and {free:.1f} GiB of {device} memory are free: free some, or choose a smaller model"
        )


def require_room(config: ServeConfig, model: LoadedModel, capacity: int) -> None:
    """Raise LoadError where the device cannot hold what --kv-cache-memory asks for; log where less than that is of use.

    capacity  tokens that an executor can use: those of --max-num-seqs rows of the longest context, at most
    """
    given = config.kv_cache_memory
    if given is None:
        return
    wanted, free = capacity * model.kv.bytes_per_token / 2**30, free_gib(model.device)
    executors = 1 if model.device.type == "cuda" else max(1, config.executors)
    if executors * given > free:
        raise LoadError(
            f"--kv-cache-memory {given:g}: {executors} x {given:.1f} GiB of keys and values do not fit into the "
            f"{free:.1f} GiB that are free: give less"
        )
    if given - wanted > 0.05 * given:
        rows = f"--max-num-seqs {config.expected_slots} rows of the longest context"
        log.warning("--kv-cache-memory %g: %s need no more than %.1f GiB, which is what is used", given, rows, wanted)


def conditions_of(config: ServeConfig, model: LoadedModel) -> Conditions:
    """The conditions that the timings of one executor with this model depend on: the key of its profile."""
    path = Path(config.model).expanduser()
    return Conditions(
        model=str(path.resolve()) if path.exists() else config.model,
        dtype=str(model.kv.dtype).removeprefix("torch."),
        quantization=str(model.quantization),
        device=device_name(model.device),
        threads=threads(config) if model.device.type == "cpu" else 0,
        max_num_batched_tokens=config.chunk_tokens(model.device.type),
    )


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()


def open_profiler(
    config: ServeConfig, model: LoadedModel, text: Text, rows: int, capacity: int, clock: Callable[[], float]
) -> Profiler:
    """Measures a model as an executor would run it, with this many rows and tokens of K and V at most."""
    chunk = config.chunk_tokens(model.device.type)
    return Profiler(model, text, capacity_tokens=capacity, max_rows=rows, chunk_tokens=chunk, clock=clock)
