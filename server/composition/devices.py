"""Settings on this machine: devices, threads, memory, and the conditions of timings."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
import transformers

from engine.measure.profiler import Profiler
from models.errors import LoadError
from models.machine import processor_name, usable_cores
from models.network.loader import LoadedModel
from models.network.model_config import choose_dtype
from models.text import Text
from scheduler.serving_time.profile_file import Conditions
from scheduler.strategy import STRATEGIES
from server.config import ServeConfig

log = logging.getLogger(__name__)

CPU = torch.device("cpu")

CPU_MEMORY_SHARE = 0.25  # of free memory for the KV cache on a CPU, without --kv-cache-memory

SWAP_GIB = 4.0  # host memory for swapped rows, as vLLM's --swap-space

SWAP_MEMORY_SHARE = 0.25  # of free memory, at most

PREFIX_MEMORY_SHARE = 0.125  # of free memory for the prefix cache, without --prefix-cache-memory


def hush_transformers() -> None:
    """Its load reports end in our errors, and its progress bars suit terminals only."""
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
    """Raises LoadError."""
    return torch.device(next(iter(cuda_devices(config)), "cpu"))


def quantization(config: ServeConfig) -> str:
    given = config.quantization
    return given if given != "auto" else STRATEGIES[config.strategy].quantization or "auto"


def threads(config: ServeConfig) -> int:
    return max(1, usable_cores() // max(1, config.executors))


def torch_threads(config: ServeConfig, model: LoadedModel) -> int:
    """One beside compiled kernels: two spinning pools compete for cores."""
    return 1 if model.reads_exactly else threads(config)


def context_length(config: ServeConfig, longest: int) -> int:
    """`longest`: the model's context. Raises LoadError."""
    if config.max_model_len is not None and config.max_model_len > longest:
        raise LoadError(f"--max-model-len {config.max_model_len} exceeds the model's context of {longest}")
    return config.max_model_len or longest


def swap_bytes(config: ServeConfig) -> int:
    """Over all executors."""
    return _bytes(config.swap_space, min(SWAP_GIB, free_gib(CPU) * SWAP_MEMORY_SHARE))


def prefix_cache_bytes(config: ServeConfig) -> int:
    """Over all executors."""
    return _bytes(config.prefix_cache_memory, free_gib(CPU) * PREFIX_MEMORY_SHARE)


def _bytes(given: float | None, default: float) -> int:
    return int((default if given is None else given) * 2**30)


def capacity_tokens(config: ServeConfig, model: LoadedModel) -> int:
    """KV cache, by the flags."""
    if config.kv_cache_memory is not None:
        room = config.kv_cache_memory * 2**30
    elif model.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(model.device)
        room = config.gpu_memory_utilization * total - (total - free)
    else:
        room = free_gib(CPU) * 2**30 * CPU_MEMORY_SHARE / max(1, config.executors)
    tokens = int(room) // model.kv.bytes_per_token
    if tokens < 2:
        raise LoadError("no memory is left for the KV cache: free some, or choose a smaller model or dtype")
    return tokens


def free_gib(device: torch.device) -> float:
    """GiB, on a CPU of the machine."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    return float(free / 2**30)


def require_memory(config: ServeConfig, weights: int, device: torch.device) -> None:
    """Raises LoadError before anything is read."""
    dtype = choose_dtype(config.dtype, device)
    needed, free = weights * dtype.itemsize / 2**30, free_gib(device)
    if needed > free:
        weights_take = f"its weights take {needed:.1f} GiB in {str(dtype).removeprefix('torch.')}"
        there = f"{free:.1f} GiB of {device} memory are free: free some, or choose a smaller model"
        raise LoadError(f"{config.model}: {weights_take}, and {there}")


def require_room(config: ServeConfig, model: LoadedModel, capacity: int) -> None:
    """Raises LoadError where --kv-cache-memory does not fit; logs where only `capacity` is usable."""
    given = config.kv_cache_memory
    if given is None:
        return
    wanted, free = capacity * model.kv.bytes_per_token / 2**30, free_gib(model.device)
    executors = 1 if model.device.type == "cuda" else max(1, config.executors)
    if executors * given > free:
        wants = f"--kv-cache-memory {given:g}: {executors} x {given:.1f} GiB of KV cache"
        raise LoadError(f"{wants} do not fit into the {free:.1f} GiB that are free: give less")
    if given - wanted > 0.05 * given:
        rows = f"--max-num-seqs {config.expected_slots} rows of the longest context"
        log.warning("--kv-cache-memory %g: %s need no more than %.1f GiB, which is what is used", given, rows, wanted)


def conditions_of(config: ServeConfig, model: LoadedModel) -> Conditions:
    """The key of an executor's profile."""
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
    """With as many rows and tokens of KV cache as an executor."""
    chunk = config.chunk_tokens(model.device.type)
    return Profiler(model, text, capacity_tokens=capacity, max_rows=rows, chunk_tokens=chunk, clock=clock)
